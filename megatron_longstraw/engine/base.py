"""The interface of an engine."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did.

    Args:
        grad_norm: the global gradient norm before clipping; 0 where it was not finite.
        applied: whether the weights were changed; False where the gradient was not finite.
    """

    grad_norm: float
    applied: bool


class Engine(Protocol):
    """Accumulates, finalizes and applies gradients, many backwards to a step."""

    @property
    def model(self) -> nn.Module:
        """The wrapped model that segments run through; gradients accumulate inside `no_sync()`."""
        ...

    def zero_grad(self) -> None:
        """Clear the gradient buffers, in place."""
        ...

    def finalize(self, denominator: float) -> None:
        """Reduce gradients over ranks once, and divide by the sum of all ranks' denominators."""
        ...

    def step(self, lr: float) -> StepResult:
        """Clip, and apply the optimizer with this learning rate."""
        ...

    def sharded_state_dict(self, *, is_loading: bool) -> dict[str, Any]:
        """Weights and optimizer for megatron-core's distributed checkpointing."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what a checkpoint held."""
        ...
