"""From a loss per token to one number: a sum and its denominator, kept apart until the update's totals are known."""

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "sequence", "constant"]


def per_token(values: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Repeats each response's value for each of its tokens.

    Args:
        values: `[responses]`.
        lengths: tokens of each response.

    Returns:
        `[tokens]`.
    """
    return torch.repeat_interleave(values, torch.tensor(lengths, dtype=torch.long, device=values.device))


def per_response(values: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Sums the values of each response's tokens.

    Args:
        values: `[tokens]`, a floating dtype.
        lengths: tokens of each response.

    Returns:
        `[responses]`.
    """
    response_index = per_token(torch.arange(len(lengths), device=values.device), lengths)
    return values.new_zeros(len(lengths)).index_add(0, response_index, values)


def aggregate(
    token_losses: Tensor,
    loss_mask: Tensor,
    lengths: tuple[int, ...],
    *,
    aggregation: Aggregation,
    max_response_tokens: int,
) -> tuple[Tensor, float]:
    """Sums the losses of some groups, and counts what that sum will be divided by.

    The update's loss is the total of the sums over its groups, on all ranks, divided by the total of the denominators.
    A group counts in the denominator whether or not it teaches anything: no spread and unscored responses included.

    Args:
        token_losses: `[tokens]`; may be anything, NaN included, where masked.
        loss_mask: `[tokens]` bool, True where the token counts.
        lengths: tokens of each response.
        aggregation: `token`: the sum over unmasked tokens, by their number. `sequence`: the sum over responses of the
            mean over the response's unmasked tokens, by the number of responses; a fully masked response adds 0 to the
            sum and 1 to the number. `constant`: the sum over unmasked tokens, by `max_response_tokens` per response.
        max_response_tokens: the longest response allowed.

    Returns:
        The sum (scalar, differentiable in `token_losses`) and the denominator.
    """
    losses = torch.where(loss_mask, token_losses, 0.0)
    if aggregation == "token":
        return losses.sum(), float(loss_mask.sum())
    if aggregation == "sequence":
        unmasked_tokens = per_response(loss_mask.to(losses.dtype), lengths)
        return (per_response(losses, lengths) / unmasked_tokens.clamp(min=1)).sum(), float(len(lengths))
    assert aggregation == "constant", aggregation
    return losses.sum(), float(len(lengths) * max_response_tokens)
