"""Merging two partial attentions over disjoint sets of keys."""

import torch
from torch import Tensor


def merge_partial_attention(
    out: Tensor, log_sum_exp: Tensor, other_out: Tensor, other_log_sum_exp: Tensor
) -> tuple[Tensor, Tensor]:
    """Merge two partial attentions of the same queries over disjoint keys.

    With `o_i = softmax(s_i) v_i` and `l_i = log sum exp s_i`, attention over the union is
    `o = sum_i exp(l_i - l) o_i` with `l = log(exp l_1 + exp l_2)`.

    Args:
        out: `[..., dim]`.
        log_sum_exp: `[...]`, at least float32.
        other_out: like `out`.
        other_log_sum_exp: like `log_sum_exp`.

    Returns:
        Merged output in the dtype of `log_sum_exp` (round it once, after the last merge), and merged `log_sum_exp`.
    """
    merged = torch.logaddexp(log_sum_exp, other_log_sum_exp)
    weight = torch.exp(log_sum_exp - merged).unsqueeze(-1)
    other_weight = torch.exp(other_log_sum_exp - merged).unsqueeze(-1)
    return torch.addcmul(out * weight, other_out, other_weight), merged
