"""Objectives: a loss per response token, and its derivative with respect to each token's log-prob."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from megatron_longstraw.grpo.aggregate import Aggregation, aggregate, per_token


@dataclass(frozen=True)
class ObjectiveInputs:
    """All response tokens of one or more groups, laid end to end without padding.

    Args:
        logprobs: `[tokens]` under the current policy, float32 or float64.
        old_logprobs: `[tokens]` under the policy before the step's first update.
        advantages: `[responses]`; 0 where a response is unscored.
        loss_mask: `[tokens]` bool, True where the token counts in the loss.
        lengths: tokens of each response; they add up to `tokens`.

    Example:
        Responses of 2 and 1 tokens: `logprobs` is `[a0, a1, b0]`, `advantages` is `[A, B]`, `lengths` is `(2, 1)`.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        tokens, responses = sum(self.lengths), len(self.lengths)
        assert self.logprobs.shape == self.old_logprobs.shape == self.loss_mask.shape == (tokens,)
        assert self.advantages.shape == (responses,)
        assert self.loss_mask.dtype == torch.bool


class TokenWeights(NamedTuple):
    """What the replay needs of an objective, before the update's totals are known.

    Args:
        loss_sum: scalar float64; the loss times its denominator.
        weights: `[tokens]`, d loss_sum / d logprobs, in the dtype of the log-probs.
        denominator: what this group adds to the denominator; the update's loss is `sum(loss_sum) / sum(denominator)`.
    """

    loss_sum: Tensor
    weights: Tensor
    denominator: float


class Objective(Protocol):
    """What `OBJECTIVES` holds."""

    def __call__(self, inputs: ObjectiveInputs, *, clip_low: float, clip_high: float) -> Tensor:
        """Returns a loss per token `[tokens]`, minimised, 0 where masked, differentiable in `inputs.logprobs`."""
        ...


def is_clipped(ratio: Tensor, token_advantages: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Where the clipped surrogate is constant in the ratio: beyond the bound on the side the advantage pushes to.

    Args:
        ratio: `[tokens]`, current over old probability.
        token_advantages: `[tokens]`.
        clip_low: the ratio's lower bound is `1 - clip_low`.
        clip_high: the ratio's upper bound is `1 + clip_high`.

    Returns:
        `[tokens]` bool. At a bound itself the surrogate still has its gradient.
    """
    above = (token_advantages > 0) & (ratio > 1 + clip_high)
    below = (token_advantages < 0) & (ratio < 1 - clip_low)
    return above | below


def grpo_loss(inputs: ObjectiveInputs, *, clip_low: float, clip_high: float) -> Tensor:
    """The clipped surrogate `-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)` of every token.

    Args:
        inputs: the tokens. Old log-probs may be infinite or NaN where a token is masked or its advantage is 0.
        clip_low: the ratio's lower bound is `1 - clip_low`.
        clip_high: the ratio's upper bound is `1 + clip_high`.

    Returns:
        `[tokens]` in the dtype of the log-probs; exactly 0, and with gradient exactly 0, where the token is masked or
        its advantage is 0.
    """
    advantages = per_token(inputs.advantages.to(inputs.logprobs.dtype), inputs.lengths)
    counts = inputs.loss_mask & (advantages != 0)
    with torch.no_grad():
        ratio = torch.exp(inputs.logprobs - inputs.old_logprobs)
        clipped = counts & is_clipped(ratio, advantages, clip_low=clip_low, clip_high=clip_high)
    # Tokens that carry no gradient leave the graph before exp: its backward would turn 0 * inf into NaN.
    log_ratio = torch.where(counts & ~clipped, inputs.logprobs - inputs.old_logprobs, 0.0)
    bound = ratio.clamp(1 - clip_low, 1 + clip_high)
    surrogate = advantages * torch.where(clipped, bound, torch.exp(log_ratio))
    return torch.where(counts, -surrogate, 0.0)


OBJECTIVES: Mapping[str, Objective] = {"grpo": grpo_loss}


def token_weights(
    inputs: ObjectiveInputs,
    *,
    name: str,
    clip_low: float,
    clip_high: float,
    aggregation: Aggregation,
    max_response_tokens: int,
) -> TokenWeights:
    """Differentiates the aggregated objective with respect to the log-probs, on a graph of the response tokens alone.

    Works in float64 whatever the dtype of the log-probs, and also where the caller has switched gradients off.

    Args:
        inputs: the tokens; their log-probs need no graph.
        name: a key of `OBJECTIVES`.
        clip_low: the ratio's lower bound is `1 - clip_low`.
        clip_high: the ratio's upper bound is `1 + clip_high`.
        aggregation: how token losses become one number.
        max_response_tokens: read by the aggregation `constant` only.

    Returns:
        The sum, its derivative and the denominator, none of them normalised.
    """
    with torch.enable_grad():
        logprobs = inputs.logprobs.detach().double().requires_grad_()
        exact = replace(
            inputs,
            logprobs=logprobs,
            old_logprobs=inputs.old_logprobs.detach().double(),
            advantages=inputs.advantages.detach().double(),
        )
        token_losses = OBJECTIVES[name](exact, clip_low=clip_low, clip_high=clip_high)
        loss_sum, denominator = aggregate(
            token_losses,
            inputs.loss_mask,
            inputs.lengths,
            aggregation=aggregation,
            max_response_tokens=max_response_tokens,
        )
        (weights,) = torch.autograd.grad(loss_sum, logprobs)
    return TokenWeights(loss_sum.detach(), weights.to(inputs.logprobs.dtype), denominator)
