"""RMS normalisation that keeps the model's dtype and saves only its input for backward."""

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn


class _RMSNormFunction(torch.autograd.Function):
    """`y = x / sqrt(mean(x^2) + eps) * weight`, reduced in float32 or wider, rounded before the weight is applied."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise; keep the input and the reciprocal root."""
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        reciprocal = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(hidden, weight, reciprocal)
        return (wide * reciprocal).to(hidden.dtype) * weight

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """`dx = r * (g - n * mean(g * n))` with `n = x * r` and `g = dy * weight`."""
        hidden, weight, reciprocal = ctx.saved_tensors
        wide = reciprocal.dtype
        normal = hidden.to(wide) * reciprocal
        d_normal = (d_out * weight).to(wide)
        mean = (d_normal * normal).mean(-1, keepdim=True)
        d_hidden = (d_normal - normal * mean) * reciprocal
        d_weight = (d_out.to(wide) * normal.to(hidden.dtype)).flatten(0, -2).sum(0)
        return d_hidden.to(hidden.dtype), d_weight.to(weight.dtype), None


class RMSNorm(nn.Module):
    """RMS norm over the last dimension, built as Megatron builds norms.

    Args:
        config: gives the parameters' dtype and whether sequence parallelism shards the tokens.
        hidden_size: size of the last dimension.
        eps: added to the mean square.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # Under sequence parallelism each tensor rank holds a partial gradient, which Megatron sums by this mark.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise `[..., hidden_size]`."""
        return _RMSNormFunction.apply(hidden, self.weight, self.eps)
