"""SwiGLU that saves only its input for backward."""

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional


class _SwiGLUFunction(torch.autograd.Function):
    """`silu(gate) * up` with `[gate, up]` side by side in the input."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        """Activate; keep the input."""
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        """`d up = d * silu(gate)`, `d gate = d * up * silu'(gate)`."""
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        d_gate_up = torch.empty_like(gate_up)
        d_gate, d_up = d_gate_up.chunk(2, dim=-1)
        torch.mul(d_out, functional.silu(gate), out=d_up)
        torch.ops.aten.silu_backward.grad_input(d_out * up, gate, grad_input=d_gate)
        return d_gate_up


class SwiGLU(nn.Module):
    """The gated activation of the MLP, built as Megatron builds activations."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()

    def forward(self, gate_up: Tensor) -> Tensor:
        """Activate `[..., 2 * ffn]` to `[..., ffn]`."""
        return _SwiGLUFunction.apply(gate_up)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None) -> Any:
        """Nothing to save; Megatron's MLP asks each of its parts."""
        return {}
