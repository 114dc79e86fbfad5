"""The plain implementation: one softmax over all keys, differentiated by autograd. The truth for the fast ones."""

from typing import Any

import torch
from torch import Tensor

from megatron_longstraw.kernels.segment_attention.contract import OwnCotangent, PastPage


def attention(
    query: Tensor, key: Tensor, value: Tensor, past_key: Tensor, past_value: Tensor, *, scale: float
) -> Tensor:
    """Attend with one softmax.

    Args:
        query: `[tokens, rows, query_heads, head_dim]`.
        key: `[tokens, rows, kv_heads, head_dim]`.
        value: like `key`.
        past_key: `[kv_heads, past_tokens, head_dim]`.
        past_value: like `past_key`.
        scale: factor of the scores.

    Returns:
        `[tokens, rows, query_heads, head_dim]`.
    """
    tokens, rows, query_heads, _ = query.shape
    repeat = query_heads // key.shape[2]
    past_tokens = past_key.shape[1]

    def all_keys(past: Tensor, own: Tensor) -> Tensor:
        past_rows = past.unsqueeze(0).expand(rows, -1, -1, -1)
        return torch.cat([past_rows, own.permute(1, 2, 0, 3)], dim=2).repeat_interleave(repeat, dim=1)

    scores = query.permute(1, 2, 0, 3) @ all_keys(past_key, key).transpose(-1, -2) * scale
    visible = torch.ones(tokens, past_tokens + tokens, dtype=torch.bool, device=query.device).tril(past_tokens)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return (weights @ all_keys(past_value, value)).permute(2, 0, 1, 3)


def _past(past: tuple[PastPage, ...], key: Tensor, name: str) -> Tensor:
    empty = key.new_empty(key.shape[2], 0, key.shape[3])
    return torch.cat([empty, *(getattr(page, name).to(key.dtype) for page in past)], dim=1)


class ReferenceSegmentAttention(torch.autograd.Function):
    """`attention` with the gradient of the past added to its pages in place."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        past: tuple[PastPage, ...],
        scale: float,
        own_cotangent: OwnCotangent | None,
    ) -> Tensor:
        """Compute the output; keep the inputs for backward."""
        ctx.save_for_backward(query, key, value)
        ctx.past, ctx.scale, ctx.own_cotangent = past, scale, own_cotangent
        return attention(query, key, value, _past(past, key, "key"), _past(past, value, "value"), scale=scale)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Differentiate by autograd; add the past's part to the pages in place."""
        query, key, value = ctx.saved_tensors
        inputs = [query, key, value, _past(ctx.past, key, "key"), _past(ctx.past, value, "value")]
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        with torch.enable_grad():
            out = attention(*leaves, scale=ctx.scale)
        d_query, d_key, d_value, d_past_key, d_past_value = torch.autograd.grad(out, leaves, d_out)
        start = 0
        for page in ctx.past:
            stop = start + page.key.shape[1]
            if page.d_key is not None and page.d_value is not None:
                page.d_key.add_(d_past_key[:, start:stop])
                page.d_value.add_(d_past_value[:, start:stop])
            start = stop
        if ctx.own_cotangent is not None:
            own_key, own_value = ctx.own_cotangent()
            d_key, d_value = d_key + own_key, d_value + own_value
        return d_query, d_key, d_value, None, None, None
