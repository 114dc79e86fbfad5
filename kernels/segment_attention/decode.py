"""One new token of every row: unmasked over the shared past pages and over each row's own keys. Graph-free."""

from torch import Tensor

from megatron_longstraw.kernels.merge import merge_partial_attention
from megatron_longstraw.kernels.segment_attention.contract import PastPage
from megatron_longstraw.kernels.segment_attention.flash import flash_forward, fold, past_attention, unfold


def decode_attention(
    query: Tensor, own_key: Tensor, own_value: Tensor, past: tuple[PastPage, ...], *, scale: float
) -> Tensor:
    """Attend one query per row; the shared pages are read once for all rows.

    Args:
        query: `[1, rows, query_heads, head_dim]`.
        own_key: the row's own keys, its newest token included, `[rows, kv_heads, own_tokens, head_dim]`.
        own_value: like `own_key`.
        past: pages that all rows share.
        scale: factor of the scores.

    Returns:
        `[1, rows, query_heads, head_dim]` in the dtype of `query`.
    """
    _, rows, query_heads, head_dim = query.shape
    kv_heads = own_key.shape[1]
    own_query = query.view(rows, kv_heads, query_heads // kv_heads, head_dim)
    own_out, own_log_sum_exp = flash_forward(
        own_query, own_key.to(query.dtype), own_value.to(query.dtype), causal=False, scale=scale
    )
    out = own_out.reshape(1, rows, query_heads, head_dim)
    if not past:
        return out
    past_out, past_log_sum_exp = past_attention(fold(query, kv_heads), past, scale)
    past_log_sum_exp = unfold(past_log_sum_exp.unsqueeze(-1), query[..., :1]).squeeze(-1)
    log_sum_exp = own_log_sum_exp.reshape(1, rows, query_heads)
    return merge_partial_attention(out, log_sum_exp, unfold(past_out, query), past_log_sum_exp)[0].to(query.dtype)
