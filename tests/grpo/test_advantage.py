"""Advantages against the formula typed out in plain Python."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_longstraw.grpo.advantage import advantages, has_zero_spread

NAN = float("nan")
REWARDS = st.lists(st.one_of(st.just(NAN), st.floats(-1e3, 1e3)), min_size=1, max_size=9)


def as_rewards(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(REWARDS, st.floats(1e-6, 1.0), st.sampled_from(["group_std", "none"]))
def test_advantages_follow_the_formula_over_scored_responses(values: list[float], epsilon: float, scale: str) -> None:
    scored = [value for value in values if not math.isnan(value)]
    if len(scored) < 2 or len(set(scored)) == 1:
        expected = [0.0] * len(values)
    else:
        divisor = statistics.stdev(scored) + epsilon if scale == "group_std" else 1.0
        mean = statistics.fmean(scored)
        expected = [0.0 if math.isnan(value) else (value - mean) / divisor for value in values]
    got = advantages(as_rewards(values), scale=scale, epsilon=epsilon)
    assert got.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_std_has_bessels_correction() -> None:
    # Rewards 0 and 2: mean 1, variance (1 + 1) / (2 - 1) = 2.
    got = advantages(as_rewards([0.0, 2.0]), scale="group_std", epsilon=0.0)
    assert got.tolist() == pytest.approx([-1 / math.sqrt(2), 1 / math.sqrt(2)], rel=1e-15)


def test_an_unscored_response_changes_nothing_for_the_others() -> None:
    without = advantages(as_rewards([0.0, 1.0, 5.0]), scale="group_std", epsilon=1e-4)
    with_unscored = advantages(as_rewards([0.0, NAN, 1.0, 5.0]), scale="group_std", epsilon=1e-4)
    assert with_unscored[[0, 2, 3]].equal(without)
    assert with_unscored[1] == 0


@pytest.mark.parametrize("values", [[0.1] * 3, [0.1] * 7, [NAN, 3.0], [NAN, NAN], [2.0], [NAN, 0.1, 0.1, 0.1]])
@pytest.mark.parametrize("scale", ["group_std", "none"])
def test_a_group_without_spread_gets_exact_zeros(values: list[float], scale: str) -> None:
    rewards = as_rewards(values)
    assert has_zero_spread(rewards)
    assert advantages(rewards, scale=scale, epsilon=0.0).tolist() == [0.0] * len(values)


def test_two_different_rewards_are_a_spread() -> None:
    assert not has_zero_spread(as_rewards([NAN, 1.0, 1.0 + 1e-12]))


def test_infinite_rewards_are_refused() -> None:
    with pytest.raises(AssertionError, match="finite"):
        advantages(as_rewards([0.0, math.inf]), scale="none", epsilon=0.0)
