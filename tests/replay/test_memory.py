"""The update's memory is set by one segment's budget: flat in the group, linear in the prompt by its state alone."""

import pytest
import torch
from machine import draw, small_machine

from megatron_longstraw.device.memory import LiveBytes
from megatron_longstraw.replay.capture import ReplaySettings

SEGMENT_TOKENS = 64


def peak_bytes(*, prompt_tokens, responses, response_tokens, page_tokens=256, prompt_gradient="full"):
    replay = ReplaySettings(SEGMENT_TOKENS, prompt_gradient)
    # A token's state is then wide beside its ids, log-probs and weights, as in any model that is not a toy.
    with small_machine(
        dtype=torch.float32, page_tokens=page_tokens, replay=replay, head_dim=32, num_key_value_heads=4
    ) as machine:
        ids = [draw(response_tokens, seed) for seed in range(responses)]
        weights = [torch.randn(response_tokens) for _ in ids]
        machine.accumulate(draw(8), ids[:1], weights[:1])
        with LiveBytes() as live:
            machine.accumulate(draw(prompt_tokens), ids, weights)
        return live.peak, machine.state.state_bytes_per_token + machine.state.cotangent_bytes_per_token


@pytest.mark.parametrize("response_tokens", [SEGMENT_TOKENS // 2, SEGMENT_TOKENS, 3 * SEGMENT_TOKENS])
def test_peak_is_flat_in_the_group(response_tokens):
    few, many = (
        peak_bytes(prompt_tokens=1024, responses=responses, response_tokens=response_tokens)[0] for responses in (2, 16)
    )
    assert many <= 1.02 * few


def test_peak_grows_with_the_prompt_by_its_state_and_cotangent():
    (short, per_token), (long, _) = (
        peak_bytes(prompt_tokens=prompt_tokens, responses=2, response_tokens=32) for prompt_tokens in (1025, 4097)
    )
    growth = (long - short) / (4097 - 1025)
    assert per_token <= growth <= 1.05 * per_token


def test_peak_grows_with_the_response_by_its_state_and_cotangent():
    (short, per_token), (long, _) = (
        peak_bytes(prompt_tokens=257, responses=2, response_tokens=tokens)
        for tokens in (4 * SEGMENT_TOKENS, 20 * SEGMENT_TOKENS)
    )
    growth = (long - short) / (16 * SEGMENT_TOKENS)
    assert per_token <= growth <= 1.05 * per_token


def test_a_stopped_gradient_keeps_no_cotangent_of_the_prompt():
    (short, per_token), (long, _) = (
        peak_bytes(prompt_tokens=prompt_tokens, responses=2, response_tokens=32, prompt_gradient="stop")
        for prompt_tokens in (1025, 4097)
    )
    assert (long - short) / (4097 - 1025) <= 1.05 * per_token / 2
