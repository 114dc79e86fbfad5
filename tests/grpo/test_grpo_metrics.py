"""Figures about groups against loops, and what happens where there is nothing to count."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from ragged_groups import Ragged, flat, ragged_groups

from megatron_longstraw.grpo.metrics import add_sums, group_metrics, means, policy_metrics, reward_part_metrics

CLIP = {"clip_low": 0.2, "clip_high": 0.3}
NAN = math.nan


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@given(ragged_groups())
def test_policy_figures_equal_loops_over_unmasked_tokens(group: Ragged) -> None:
    ratios, clipped, kls, entropies, drifts = [], [], [], [], []
    rows = zip(group.advantages, group.logprobs, group.old_logprobs, group.counts, strict=True)
    for advantage, logprobs, old_logprobs, counts in rows:
        for logprob, old_logprob, count in zip(logprobs, old_logprobs, counts, strict=True):
            if count:
                ratio = math.exp(logprob - old_logprob)
                ratios.append(ratio)
                clipped.append(float((advantage > 0 and ratio > 1.3) or (advantage < 0 and ratio < 0.8)))
                kls.append(ratio - 1 - (logprob - old_logprob))
                entropies.append(-3 * logprob)
                drifts.append(abs(0.5 * logprob - old_logprob))
    inputs = group.inputs()
    got = means(policy_metrics(inputs, -3 * inputs.logprobs, **CLIP, rollout_logprobs=0.5 * inputs.logprobs))
    assert got == pytest.approx(
        {
            "policy/ratio_mean": mean(ratios),
            "policy/clip_fraction": mean(clipped),
            "policy/kl": mean(kls),
            "policy/entropy": mean(entropies),
            "policy/logprob_drift": mean(drifts),
        },
        rel=1e-10,
        abs=1e-12,
    )


@pytest.mark.parametrize("garbage", [NAN, math.inf, -math.inf, -1e6])
def test_tokens_without_a_finite_ratio_count_nowhere(garbage: float) -> None:
    group = Ragged([1.0, 0.0], [[-1.0], [-1.0, -1.0]], [[-1.0], [garbage, garbage]], [[True], [True, False]])
    inputs = group.inputs()
    got = means(policy_metrics(inputs, torch.ones(3), **CLIP, rollout_logprobs=inputs.logprobs))
    assert got["policy/ratio_mean"] == 1
    assert got["policy/kl"] == 0
    assert all(math.isfinite(value) for value in got.values())


def test_the_kl_estimate_averages_to_the_divergence_under_the_old_policy() -> None:
    old, current = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    divergence = sum(p * math.log(p / q) for p, q in zip(old, current, strict=True))
    estimates = []
    for p, q in zip(old, current, strict=True):
        group = Ragged([1.0], [[math.log(q)]], [[math.log(p)]], [[True]])
        estimates.append(policy_metrics(group.inputs(), torch.zeros(1), **CLIP)["policy/kl"][0])
    assert sum(p * estimate for p, estimate in zip(old, estimates, strict=True)) == pytest.approx(divergence)


def test_recorded_responses_have_no_drift_to_count() -> None:
    group = Ragged([1.0], [[-1.0]], [[-2.0]], [[True]])
    assert policy_metrics(group.inputs(), torch.zeros(1), **CLIP)["policy/logprob_drift"] == (0, 0)


def test_group_figures_are_those_of_scored_responses() -> None:
    rewards = torch.tensor([1.0, NAN, 4.0], dtype=torch.float64)
    advantages = torch.tensor([-0.5, 0.0, 1.0], dtype=torch.float64)
    got = group_metrics(rewards, advantages, lengths=(2, 3, 7), truncated=(False, False, True))
    assert got == {
        "advantage/abs_mean": (1.5, 3),
        "reward/mean": (5.0, 2),
        "reward/std": (pytest.approx(statistics.stdev([1.0, 4.0])), 1),
        "group/zero_spread": (0, 1),
        "response/length_mean": (12, 3),
        "response/truncated": (1, 3),
    }


def test_every_reward_functions_figure_is_that_of_what_it_scored() -> None:
    parts = [{"exact": 1.0, "length": -0.5}, {"exact": None, "length": -1.0}, {"exact": 0.0, "length": 0.0}, {}]
    got = reward_part_metrics([*parts, {"never": None}])
    assert got == {"reward/exact/mean": (1.0, 2), "reward/length/mean": (-1.5, 3), "reward/never/mean": (0.0, 0)}


def test_several_groups_give_means_over_responses_and_a_number_of_groups_without_spread() -> None:
    def figures(rewards: list[float]) -> dict[str, tuple[float, float]]:
        size = len(rewards)
        values = torch.tensor(rewards, dtype=torch.float64)
        return group_metrics(values, torch.zeros(size), lengths=[4] * size, truncated=[False] * size)

    got = means(add_sums([figures([0.0, 2.0]), figures([1.0, 1.0, 1.0]), figures([NAN, 3.0])]))
    assert got["group/zero_spread"] == 2
    assert got["reward/mean"] == pytest.approx((0 + 2 + 1 + 1 + 1 + 3) / 6)
    # The third group has no std: it is averaged over the first two.
    assert got["reward/std"] == pytest.approx((math.sqrt(2) + 0) / 2)


def test_where_nothing_counts_every_figure_is_zero() -> None:
    group = Ragged([0.0], [[-1.0]], [[-1.0]], [[False]])
    unscored = group_metrics(torch.tensor([NAN]).double(), torch.zeros(1), lengths=(1,), truncated=(False,))
    got = means(add_sums([policy_metrics(group.inputs(), torch.zeros(1), **CLIP), unscored]))
    assert got.pop("group/zero_spread") == 1
    assert got.pop("response/length_mean") == 1
    assert set(got.values()) == {0.0}


def test_figures_have_the_same_names_for_every_group() -> None:
    one = Ragged([0.0], [[-1.0]], [[NAN]], [[False]])
    other = Ragged([1.0, 2.0], [[-1.0], [-2.0]], [[-1.0], [-1.0]], [[True], [True]])
    names = [list(policy_metrics(group.inputs(), group.inputs().logprobs, **CLIP)) for group in (one, other)]
    assert names[0] == names[1]
    assert set(flat(names)) <= {
        f"policy/{name}" for name in ("ratio_mean", "clip_fraction", "kl", "entropy", "logprob_drift")
    }
