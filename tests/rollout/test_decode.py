"""Decoding a group from a captured prompt samples what a full forward would."""

import pytest
import torch
from machine import draw, small_machine

from megatron_longstraw.replay.branch import score
from megatron_longstraw.replay.capture import ReplaySettings
from megatron_longstraw.rollout.decode import StopRules, decode_group
from megatron_longstraw.rollout.sampling import SamplingSettings


@pytest.fixture(scope="module")
def machine():
    with small_machine(page_tokens=7, replay=ReplaySettings(16, temperature=0.7)) as machine:
        yield machine


def decode(machine, prompt_ids, *, rows=5, group=0, seed=3, stop=None, **sampling):
    return decode_group(
        machine.executor,
        machine.capture(prompt_ids),
        rows=rows,
        group=group,
        seed=seed,
        sampling=SamplingSettings(**({"temperature": 0.7} | sampling)),
        stop=stop or StopRules(12, frozenset()),
    )


@pytest.mark.parametrize("prompt_tokens", [1, 2, 30])
def test_rollout_logprobs_are_the_scored_ones(machine, prompt_tokens):
    prompt_ids = draw(prompt_tokens)
    responses = decode(machine, prompt_ids, stop=StopRules(12, frozenset(range(8))))
    assert len({len(response.ids) for response in responses}) > 1
    logprobs, _ = score(machine.executor, machine.capture(prompt_ids), [r.ids for r in responses], machine.replay)
    for response, expected in zip(responses, logprobs, strict=True):
        torch.testing.assert_close(response.rollout_logprobs, expected, rtol=1e-11, atol=1e-11)


def test_greedy_decoding_takes_the_likeliest_token_of_a_full_forward(machine):
    prompt_ids = draw(20)
    (response,) = decode(machine, prompt_ids, rows=1, top_k=1)
    for length in range(len(response.ids)):
        candidates = [torch.cat([response.ids[:length], torch.tensor([token])]) for token in range(97)]
        logprobs, _ = score(machine.executor, machine.capture(prompt_ids), candidates, machine.replay)
        assert int(torch.stack([values[-1] for values in logprobs]).argmax()) == int(response.ids[length])


def test_a_response_does_not_depend_on_what_is_decoded_beside_it(machine):
    few, many = (decode(machine, draw(20), rows=rows) for rows in (2, 6))
    for left, right in zip(few, many, strict=False):
        assert torch.equal(left.ids, right.ids)


def test_seed_and_group_change_the_responses(machine):
    base, seed, group = (
        [response.ids.tolist() for response in decode(machine, draw(20), **change)]
        for change in ({}, {"seed": 4}, {"group": 1})
    )
    assert base != seed
    assert base != group


def test_the_token_that_ends_a_response_is_part_of_it(machine):
    eos_ids = frozenset(range(6))
    responses = decode(machine, draw(20), rows=8, stop=StopRules(12, eos_ids))
    ended = [response for response in responses if not response.truncated]
    assert ended
    assert len(ended) < 8
    for response in responses:
        inside = [token in eos_ids for token in response.ids.tolist()]
        assert not any(inside[:-1])
        assert inside[-1] is not response.truncated
        assert not response.truncated or len(response.ids) == 12


class Letters:
    """A tokenizer whose token n is the letter n."""

    def decode(self, ids):
        return "".join(chr(ord("a") + token % 26) for token in ids)


def test_a_stop_string_ends_a_response_when_its_last_token_completes_it(machine):
    free = decode(machine, draw(20), rows=1)[0].ids.tolist()
    string = Letters().decode(free)[3:6]
    (response,) = decode(machine, draw(20), rows=1, stop=StopRules(12, frozenset(), (string,), Letters()))
    assert response.ids.tolist() == free[: Letters().decode(free).index(string) + 3]
    assert not response.truncated
