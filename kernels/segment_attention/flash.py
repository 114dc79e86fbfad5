"""Flash attention on pages through PyTorch's own ops, on the CPU and on CUDA.

Forward merges one unmasked partial attention per page with the causal one over the segment, by log-sum-exp. Backward
calls the flash backward of every part with the *merged* output and log-sum-exp. Each part then recomputes its true
probabilities `exp(s - l)` and the true row term `sum(d_out * out)`, so each part's gradient is exact; see README.md.

Grouped queries are folded into the query length where there is no mask, so past keys and values are never repeated.
"""

from typing import Any

import torch
from torch import Tensor

from megatron_longstraw.kernels.merge import merge_partial_attention
from megatron_longstraw.kernels.segment_attention.contract import OwnCotangent, PastPage

_aten = torch.ops.aten


def flash_forward(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attend with aten's flash attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: `[batch, heads, key_tokens, head_dim]`.
        value: like `key`.
        causal: mask from the top left; for `tokens == key_tokens` only.
        scale: factor of the scores.

    Returns:
        Output like `query`, and log-sum-exp `[batch, heads, tokens]` in float32 or wider.
    """
    if query.device.type == "cpu":
        out, log_sum_exp = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
        return out, log_sum_exp
    result = _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)
    return result[0], result[1]


def flash_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    merged: tuple[Tensor, Tensor],
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate one part of an attention, given the merged output and log-sum-exp over all its parts.

    Shapes as in `flash_forward`; `merged` is its result after merging.

    Returns:
        Gradients of `query` (this part's contribution), `key` and `value`.
    """
    out, log_sum_exp = merged
    if query.device.type == "cpu":
        d_query, d_key, d_value = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            d_out, query, key, value, out, log_sum_exp, 0.0, causal, scale=scale
        )
        return d_query, d_key, d_value
    # Dropout is 0, so the random state that the op asks for is never read.
    no_random = torch.zeros(2, dtype=torch.uint64, device=query.device)
    d_query, d_key, d_value = _aten._scaled_dot_product_flash_attention_backward(
        d_out,
        query,
        key,
        value,
        out,
        log_sum_exp,
        None,
        None,
        query.shape[2],
        key.shape[2],
        0.0,
        causal,
        no_random,
        no_random[:0],
        scale=scale,
    )
    return d_query, d_key, d_value


def fold(tensor: Tensor, kv_heads: int) -> Tensor:
    """Fold `[tokens, rows, query_heads, head_dim]` to `[1, kv_heads, group * rows * tokens, head_dim]`."""
    tokens, rows, query_heads, head_dim = tensor.shape
    grouped = tensor.view(tokens, rows, kv_heads, query_heads // kv_heads, head_dim)
    return grouped.permute(2, 3, 1, 0, 4).reshape(1, kv_heads, -1, head_dim)


def unfold(folded: Tensor, like: Tensor) -> Tensor:
    """Undo `fold`: `[1, kv_heads, group * rows * tokens, head_dim]` to `[tokens, rows, query_heads, head_dim]`."""
    tokens, rows, query_heads, head_dim = like.shape
    kv_heads = folded.shape[1]
    grouped = folded.reshape(kv_heads, query_heads // kv_heads, rows, tokens, head_dim)
    return grouped.permute(3, 2, 0, 1, 4).reshape(tokens, rows, query_heads, head_dim)


def _rows_first(tensor: Tensor, repeat: int = 1) -> Tensor:
    """`[tokens, rows, heads, head_dim]` to `[rows, heads * repeat, tokens, head_dim]`."""
    tensor = tensor.permute(1, 2, 0, 3)
    return tensor if repeat == 1 else tensor.repeat_interleave(repeat, dim=1)


def past_attention(folded_query: Tensor, past: tuple[PastPage, ...], scale: float) -> tuple[Tensor, Tensor]:
    """Attend folded queries to every past page, unmasked, and merge.

    Args:
        folded_query: `[1, kv_heads, queries, head_dim]`.
        past: at least one page.
        scale: factor of the scores.

    Returns:
        Output like `folded_query`, in float32 or wider where several pages were merged, and log-sum-exp.
    """
    dtype = folded_query.dtype
    parts = (
        flash_forward(folded_query, page.key[None].to(dtype), page.value[None].to(dtype), causal=False, scale=scale)
        for page in past
    )
    out, log_sum_exp = next(parts)
    for part in parts:
        out, log_sum_exp = merge_partial_attention(out, log_sum_exp, *part)
    return out, log_sum_exp


class FlashSegmentAttention(torch.autograd.Function):
    """Segment attention by flash parts; backward accumulates the past's cotangents in place."""

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
        """Compute the merged output; keep it and its log-sum-exp for backward."""
        kv_heads = key.shape[2]
        repeat = query.shape[2] // kv_heads
        own = flash_forward(
            _rows_first(query), _rows_first(key, repeat), _rows_first(value, repeat), causal=True, scale=scale
        )
        # [rows, heads, tokens, dim] to [tokens, rows, heads, dim], the log-sum-exp likewise.
        out, log_sum_exp = own[0].permute(2, 0, 1, 3), own[1].permute(2, 0, 1)
        if past:
            past_out, past_log_sum_exp = past_attention(fold(query, kv_heads), past, scale)
            past_log_sum_exp = unfold(past_log_sum_exp.unsqueeze(-1), query[..., :1]).squeeze(-1)
            out, log_sum_exp = merge_partial_attention(out, log_sum_exp, unfold(past_out, query), past_log_sum_exp)
        out = out.to(query.dtype).contiguous()
        ctx.save_for_backward(query, key, value, out, log_sum_exp)
        ctx.past, ctx.scale, ctx.own_cotangent = past, scale, own_cotangent
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """Differentiate part by part; add each past page's part to its cotangent pages in place."""
        query, key, value, out, log_sum_exp = ctx.saved_tensors
        tokens, rows, kv_heads, head_dim = key.shape
        repeat = query.shape[2] // kv_heads
        d_query, d_key, d_value = flash_backward(
            _rows_first(d_out),
            _rows_first(query),
            _rows_first(key, repeat),
            _rows_first(value, repeat),
            (_rows_first(out), log_sum_exp.permute(1, 2, 0).contiguous()),
            causal=True,
            scale=ctx.scale,
        )
        d_query = d_query.permute(2, 0, 1, 3)
        # The repeated heads of a query group sum into their key/value head.
        d_key, d_value = (
            grad.reshape(rows, kv_heads, repeat, tokens, head_dim).sum(dim=2).permute(2, 0, 1, 3)
            for grad in (d_key, d_value)
        )
        if ctx.past:
            d_query = d_query + _past_backward(ctx, d_out, query, out, log_sum_exp, kv_heads)
        if ctx.own_cotangent is not None:
            own_key, own_value = ctx.own_cotangent()
            d_key, d_value = d_key + own_key.to(d_key.dtype), d_value + own_value.to(d_value.dtype)
        return d_query, d_key, d_value, None, None, None


def _past_backward(ctx: Any, d_out: Tensor, query: Tensor, out: Tensor, log_sum_exp: Tensor, kv_heads: int) -> Tensor:
    """Accumulate the pages' cotangents in place and return the queries' gradient from all pages."""
    folded_query, folded_d_out = fold(query, kv_heads), fold(d_out.contiguous(), kv_heads)
    merged = fold(out, kv_heads), fold(log_sum_exp.unsqueeze(-1), kv_heads).squeeze(-1)
    d_query: Tensor | None = None
    for page in ctx.past:
        page_key, page_value = page.key[None].to(query.dtype), page.value[None].to(query.dtype)
        part, d_page_key, d_page_value = flash_backward(
            folded_d_out, folded_query, page_key, page_value, merged, causal=False, scale=ctx.scale
        )
        if page.d_key is not None and page.d_value is not None:
            page.d_key.add_(d_page_key[0])
            page.d_value.add_(d_page_value[0])
        if d_query is None:
            d_query = part if len(ctx.past) == 1 else part.to(log_sum_exp.dtype)
        else:
            d_query += part
    assert d_query is not None
    return unfold(d_query.to(query.dtype), query)
