"""What one layer keeps of earlier tokens: the single source for allocation and for planning."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import torch


@dataclass(frozen=True)
class LayerStateSpec:
    """Shapes and dtypes of one layer's state on one rank.

    Args:
        layer_number: the model's layer, from 1, counted over all pipeline stages.
        kind: which adapter holds it, a key of `state.adapters.ADAPTERS`.
        per_token: name to shape `(heads, dim)` of what every token leaves behind.
        state_dtype: dtype of the state's pages.
        cotangent_dtype: dtype in which cotangents accumulate.

    Example:
        >>> spec = LayerStateSpec(1, "attention", {"key": (2, 32), "value": (2, 32)})
        >>> spec.state_bytes_per_token, spec.cotangent_bytes_per_token
        (512, 512)
    """

    layer_number: int
    kind: str
    per_token: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    state_dtype: torch.dtype = torch.float32
    cotangent_dtype: torch.dtype = torch.float32

    @property
    def _elements_per_token(self) -> int:
        return sum(prod(shape) for shape in self.per_token.values())

    @property
    def state_bytes_per_token(self) -> int:
        """Bytes that one token's state takes in this layer."""
        return self._elements_per_token * self.state_dtype.itemsize

    @property
    def cotangent_bytes_per_token(self) -> int:
        """Bytes that one token's cotangent takes in this layer."""
        return self._elements_per_token * self.cotangent_dtype.itemsize
