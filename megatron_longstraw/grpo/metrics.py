"""Figures about a group, as sums and counts, so that means over groups, updates and ranks can be formed from them."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from megatron_longstraw.grpo.advantage import has_zero_spread
from megatron_longstraw.grpo.aggregate import per_token
from megatron_longstraw.grpo.objective import ObjectiveInputs, is_clipped

# (sum, count) of each figure; the names and their order are the same for every group, so that ranks can add them up.
MetricSums = dict[str, tuple[float, float]]

# Figures that are numbers of things, for which the sum is the answer.
TOTALS = frozenset({"group/zero_spread"})


def policy_metrics(
    inputs: ObjectiveInputs,
    entropies: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    rollout_logprobs: Tensor | None = None,
) -> MetricSums:
    """Compares the current policy with the one that sampled, over unmasked tokens.

    Tokens whose ratio is not finite (old log-probs of unscored responses may be anything) count nowhere.

    Args:
        inputs: the tokens.
        entropies: `[tokens]` of the current policy's distributions, nats.
        clip_low: the ratio's lower bound is `1 - clip_low`.
        clip_high: the ratio's upper bound is `1 + clip_high`.
        rollout_logprobs: `[tokens]` that the sampler saw, None for recorded responses.

    Returns:
        `policy/ratio_mean`; `policy/clip_fraction`, tokens whose gradient the clipping removes; `policy/kl`, of the old
        policy from the current one, by the estimator k3, `ratio - 1 - log(ratio)`, whose mean under the old policy is
        that divergence; `policy/entropy`; `policy/logprob_drift`, the mean of `|rollout_logprobs - old_logprobs|`.
    """
    log_ratio = inputs.logprobs.detach().double() - inputs.old_logprobs.double()
    ratio = log_ratio.exp()
    compared = inputs.loss_mask & torch.isfinite(log_ratio) & torch.isfinite(ratio)
    token_advantages = per_token(inputs.advantages, inputs.lengths)
    clipped = is_clipped(ratio, token_advantages, clip_low=clip_low, clip_high=clip_high)
    if rollout_logprobs is None:
        drift, has_drift = torch.zeros_like(log_ratio), torch.zeros_like(inputs.loss_mask)
    else:
        drift = (rollout_logprobs.double() - inputs.old_logprobs.double()).abs()
        has_drift = inputs.loss_mask & torch.isfinite(drift)
    return {
        "policy/ratio_mean": _sum_and_count(ratio, compared),
        "policy/clip_fraction": _sum_and_count(clipped.double(), compared),
        "policy/kl": _sum_and_count(torch.expm1(log_ratio) - log_ratio, compared),
        "policy/entropy": _sum_and_count(entropies.detach(), inputs.loss_mask & torch.isfinite(entropies)),
        "policy/logprob_drift": _sum_and_count(drift, has_drift),
    }


def group_metrics(
    rewards: Tensor, advantages: Tensor, *, lengths: Sequence[int], truncated: Sequence[bool]
) -> MetricSums:
    """Describes one group's responses and rewards.

    Args:
        rewards: `[responses]`, NaN where unscored.
        advantages: `[responses]`.
        lengths: tokens of each response, masked ones included.
        truncated: whether each response reached `max_response_tokens`.

    Returns:
        `advantage/abs_mean` over responses; `reward/mean` over scored responses; `reward/std`, the std (Bessel) of each
        group with at least two scored responses, averaged over those groups; `group/zero_spread`, a number of groups;
        `response/length_mean`; `response/truncated`, a fraction of the responses.
    """
    scored = rewards[~torch.isnan(rewards)]
    responses = float(len(lengths))
    return {
        "advantage/abs_mean": (float(advantages.abs().sum()), responses),
        "reward/mean": (float(scored.sum()), float(scored.numel())),
        "reward/std": (float(scored.std(correction=1)), 1.0) if scored.numel() > 1 else (0.0, 0.0),
        "group/zero_spread": (float(has_zero_spread(rewards)), 1.0),
        "response/length_mean": (float(sum(lengths)), responses),
        "response/truncated": (float(sum(truncated)), responses),
    }


def reward_part_metrics(parts: Iterable[Mapping[str, float | None]]) -> MetricSums:
    """Describes what each of several reward functions gave: `reward/<function>/mean`, over the responses it scored.

    Args:
        parts: each response's reward by function, without weights; None where the function left it unscored.
    """
    return add_sums(
        {f"reward/{name}/mean": (value or 0.0, float(value is not None)) for name, value in part.items()}
        for part in parts
    )


def add_sums(parts: Iterable[Mapping[str, tuple[float, float]]]) -> MetricSums:
    """Adds the sums and the counts of several groups."""
    total: MetricSums = {}
    for part in parts:
        for name, (part_sum, part_count) in part.items():
            total_sum, total_count = total.get(name, (0.0, 0.0))
            total[name] = (total_sum + part_sum, total_count + part_count)
    return total


def means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Turns sums and counts into figures: the mean, 0 where nothing was counted, the sum for `TOTALS`."""
    return {name: total if name in TOTALS else total / count if count else 0.0 for name, (total, count) in sums.items()}


def _sum_and_count(values: Tensor, counts: Tensor) -> tuple[float, float]:
    return float(torch.where(counts, values.double(), 0.0).sum()), float(counts.sum())
