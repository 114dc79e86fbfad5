"""Aggregations against loops over responses and tokens."""

import math

import pytest
import torch
from hypothesis import given
from ragged_groups import Ragged, ragged_groups

from megatron_longstraw.grpo.aggregate import aggregate, per_response, per_token

LOSSES = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0, 7.0], dtype=torch.float64)
MASK = torch.tensor([True, False, True, True, True, False])
LENGTHS = (3, 2, 1)


@pytest.mark.parametrize(
    ("aggregation", "expected_sum", "expected_denominator"),
    [
        ("token", 1 + 3 + 10 + 20, 4),
        # Means 2 and 15; the third response is fully masked: it adds 0 to the sum and 1 to the number of responses.
        ("sequence", 2 + 15 + 0, 3),
        ("constant", 1 + 3 + 10 + 20, 3 * 5),
    ],
)
def test_hand_computed_sums_and_denominators(
    aggregation: str, expected_sum: float, expected_denominator: float
) -> None:
    total, denominator = aggregate(LOSSES, MASK, LENGTHS, aggregation=aggregation, max_response_tokens=5)
    assert total.item() == expected_sum
    assert denominator == expected_denominator


@given(ragged_groups())
def test_aggregations_equal_loops(group: Ragged) -> None:
    token_sum, token_count, sequence_sum = 0.0, 0, 0.0
    for losses, counts in zip(group.logprobs, group.counts, strict=True):
        kept = [loss for loss, count in zip(losses, counts, strict=True) if count]
        token_sum += sum(kept)
        token_count += len(kept)
        sequence_sum += sum(kept) / len(kept) if kept else 0.0
    responses = len(group.lengths)
    expected = {
        "token": (token_sum, token_count),
        "sequence": (sequence_sum, responses),
        "constant": (token_sum, responses * 9),
    }
    inputs = group.inputs()
    for aggregation, (total, count) in expected.items():
        got, denominator = aggregate(
            inputs.logprobs, inputs.loss_mask, group.lengths, aggregation=aggregation, max_response_tokens=9
        )
        assert got.item() == pytest.approx(total, rel=1e-12, abs=1e-12)
        assert denominator == count


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_what_is_masked_is_never_read(aggregation: str) -> None:
    poisoned = torch.where(MASK, LOSSES, math.nan).requires_grad_()
    total, _ = aggregate(poisoned, MASK, LENGTHS, aggregation=aggregation, max_response_tokens=5)
    clean, _ = aggregate(LOSSES, MASK, LENGTHS, aggregation=aggregation, max_response_tokens=5)
    (gradient,) = torch.autograd.grad(total, poisoned)
    assert total.equal(clean)
    assert gradient[~MASK].tolist() == [0.0, 0.0]
    assert gradient.isfinite().all()


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_a_group_split_in_two_has_the_same_sum_and_denominator(aggregation: str) -> None:
    def both(tokens: slice, lengths: tuple[int, ...]) -> tuple[float, float]:
        total, count = aggregate(LOSSES[tokens], MASK[tokens], lengths, aggregation=aggregation, max_response_tokens=5)
        return total.item(), count

    first, second, whole = both(slice(0, 3), (3,)), both(slice(3, 6), (2, 1)), both(slice(0, 6), LENGTHS)
    assert (first[0] + second[0], first[1] + second[1]) == whole


def test_values_travel_between_responses_and_tokens() -> None:
    assert per_token(torch.tensor([5.0, 6.0, 7.0]), LENGTHS).tolist() == [5, 5, 5, 6, 6, 7]
    assert per_response(LOSSES, LENGTHS).tolist() == [6, 30, 7]
