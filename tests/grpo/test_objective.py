"""The clipped surrogate and its derivative, against loops and finite differences."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged_groups import Ragged, flat, ragged_groups

from megatron_longstraw.grpo.objective import OBJECTIVES, ObjectiveInputs, grpo_loss, token_weights

AGGREGATIONS = ["token", "sequence", "constant"]
CLIP = {"clip_low": 0.2, "clip_high": 0.3}
INF, NAN = math.inf, math.nan


def expected_losses(group: Ragged, clip_low: float, clip_high: float) -> list[float]:
    losses = []
    rows = zip(group.advantages, group.logprobs, group.old_logprobs, group.counts, strict=True)
    for advantage, logprobs, old_logprobs, counts in rows:
        for logprob, old_logprob, count in zip(logprobs, old_logprobs, counts, strict=True):
            ratio = math.exp(logprob - old_logprob)
            clipped_ratio = min(max(ratio, 1 - clip_low), 1 + clip_high)
            losses.append(-min(ratio * advantage, clipped_ratio * advantage) if count else 0.0)
    return losses


def one_token(ratio: float, advantage: float) -> ObjectiveInputs:
    logprobs = torch.tensor([-1.0], dtype=torch.float64)
    return ObjectiveInputs(logprobs, logprobs - math.log(ratio), torch.tensor([advantage]), torch.tensor([True]), (1,))


def weights_of(inputs: ObjectiveInputs, aggregation: str = "token") -> tuple[torch.Tensor, torch.Tensor, float]:
    return token_weights(inputs, name="grpo", **CLIP, aggregation=aggregation, max_response_tokens=8)


@given(ragged_groups(), st.floats(0.05, 0.5), st.floats(0.05, 0.5))
def test_loss_is_the_clipped_surrogate(group: Ragged, clip_low: float, clip_high: float) -> None:
    got = grpo_loss(group.inputs(), clip_low=clip_low, clip_high=clip_high)
    assert got.tolist() == pytest.approx(expected_losses(group, clip_low, clip_high), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "weight"),
    [
        # Within the bounds (0.8, 1.3): loss -ratio * A, and d ratio / d logprob is the ratio.
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 2.0, -2.4, -2.4),
        (0.9, -2.0, 1.8, 1.8),
        # Between the two distances to 1: each side has its own.
        (1.25, 2.0, -2.5, -2.5),
        (0.75, -2.0, 1.6, 0.0),
        # Beyond the bound on the side the advantage pushes to: constant.
        (1.5, 2.0, -2.6, 0.0),
        (0.5, -2.0, 1.6, 0.0),
        # Beyond the bound on the other side: not clipped.
        (0.5, 2.0, -1.0, -1.0),
        (1.5, -2.0, 3.0, 3.0),
    ],
)
def test_clipping_on_both_sides_for_both_signs(ratio: float, advantage: float, loss: float, weight: float) -> None:
    loss_sum, weights, denominator = weights_of(one_token(ratio, advantage))
    assert loss_sum.item() == pytest.approx(loss, rel=1e-12)
    assert weights.tolist() == pytest.approx([weight], rel=1e-12)
    assert denominator == 1


@given(ragged_groups(), st.sampled_from(AGGREGATIONS))
def test_weights_equal_finite_differences(group: Ragged, aggregation: str) -> None:
    step = 1e-5

    def loss(logprobs: list[float]) -> float:
        inputs = replace(group.inputs(), logprobs=torch.tensor(logprobs, dtype=torch.float64))
        return weights_of(inputs, aggregation)[0].item()

    def is_near_a_kink(ratio: float) -> bool:
        return min(abs(ratio - (1 - CLIP["clip_low"])), abs(ratio - (1 + CLIP["clip_high"]))) < 1e-3

    _, weights, _ = weights_of(group.inputs(), aggregation)
    logprobs, old_logprobs = flat(group.logprobs), flat(group.old_logprobs)
    for index, weight in enumerate(weights.tolist()):
        if is_near_a_kink(math.exp(logprobs[index] - old_logprobs[index])):
            continue
        above, below = list(logprobs), list(logprobs)
        above[index] += step
        below[index] -= step
        difference = (loss(above) - loss(below)) / (2 * step)
        # The scheme's own error is step² / 6 of the third derivative, at most 3 e⁴ here.
        assert weight == pytest.approx(difference, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("garbage", [INF, -INF, NAN])
def test_masked_and_unscored_tokens_may_hold_anything(aggregation: str, garbage: float) -> None:
    clean = Ragged(
        advantages=[1.0, 0.0, -1.0],
        logprobs=[[-1.0, -2.0], [-1.0], [-0.5, -0.5]],
        old_logprobs=[[-1.1, -2.0], [-1.0], [-0.5, -0.4]],
        counts=[[True, False], [True], [True, True]],
    )
    poisoned = replace(clean, old_logprobs=[[-1.1, garbage], [garbage], [-0.5, -0.4]])
    expected, got = weights_of(clean.inputs(), aggregation), weights_of(poisoned.inputs(), aggregation)
    assert got.loss_sum.equal(expected.loss_sum)
    assert got.weights.equal(expected.weights)
    assert got.denominator == expected.denominator
    assert got.weights[1:3].tolist() == [0.0, 0.0]
    assert got.weights[[0, 3, 4]].abs().min() > 0


@pytest.mark.parametrize("garbage", [INF, -INF, NAN])
def test_a_masked_current_logprob_may_hold_anything(garbage: float) -> None:
    logprobs = torch.tensor([-1.0, garbage], dtype=torch.float64, requires_grad=True)
    inputs = ObjectiveInputs(
        logprobs, torch.tensor([-1.0, -1.0]).double(), torch.tensor([1.0]), torch.tensor([True, False]), (2,)
    )
    losses = grpo_loss(inputs, **CLIP)
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    assert losses.tolist() == [-1.0, 0.0]
    assert gradient.tolist() == [-1.0, 0.0]


def test_an_overflowing_ratio_on_the_clipped_side_has_no_gradient() -> None:
    inputs = ObjectiveInputs(
        torch.tensor([-1.0], requires_grad=True),
        torch.tensor([-INF]),
        torch.tensor([2.0]),
        torch.tensor([True]),
        (1,),
    )
    loss = grpo_loss(inputs, **CLIP)
    (gradient,) = torch.autograd.grad(loss.sum(), inputs.logprobs)
    assert loss.tolist() == pytest.approx([-2.6])
    assert gradient.tolist() == [0.0]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(
    ("advantages", "counts"), [([0.0, 0.0], [[True], [True, True]]), ([1.0, -1.0], [[False], [False, False]])]
)
def test_nothing_to_learn_gives_exact_zeros(
    aggregation: str, advantages: list[float], counts: list[list[bool]]
) -> None:
    group = Ragged(advantages, [[-1.0], [-2.0, -3.0]], [[-1.5], [-2.5, -1.0]], counts)
    loss_sum, weights, _ = weights_of(group.inputs(), aggregation)
    assert loss_sum.item() == 0
    assert weights.tolist() == [0.0, 0.0, 0.0]


def test_a_group_without_spread_still_counts_in_the_denominators() -> None:
    group = Ragged([0.0, 0.0], [[-1.0], [-2.0, -3.0]], [[-1.0], [-2.0, -3.0]], [[True], [True, False]])
    denominators = [weights_of(group.inputs(), aggregation)[2] for aggregation in AGGREGATIONS]
    assert denominators == [2, 2, 2 * 8]


def test_a_positive_advantage_raises_the_logprob() -> None:
    _, weights, _ = weights_of(one_token(1.0, 0.5))
    # Descent moves against the weight.
    assert weights.item() < 0


def test_weights_come_in_the_dtype_of_the_logprobs_and_without_a_graph() -> None:
    group = Ragged([1.0], [[-1.0, -2.0]], [[-1.0, -2.1]], [[True, True]])
    with torch.no_grad():
        loss_sum, weights, _ = weights_of(group.inputs(torch.float32))
    assert weights.dtype == torch.float32
    assert not weights.requires_grad
    assert not loss_sum.requires_grad
    # Computed in float64 from the float32 log-probs, and rounded once.
    rounded = group.inputs(torch.float32)
    exact = replace(rounded, logprobs=rounded.logprobs.double(), old_logprobs=rounded.old_logprobs.double())
    assert weights.equal(weights_of(exact)[1].float())


def test_objectives_are_found_by_name() -> None:
    assert OBJECTIVES["grpo"] is grpo_loss
