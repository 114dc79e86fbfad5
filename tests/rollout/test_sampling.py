"""Tokens are drawn from the filtered distribution; log-probs are those of the whole one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_longstraw.rollout.sampling import SamplingSettings, row_generator, sample


def grid(points=20_000):
    """Uniforms that cover [0, 1) evenly, so that frequencies are exact to 1 / points."""
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


def frequencies(logits, settings, points=20_000):
    tokens, _ = sample(logits.expand(points, -1), grid(points), settings)
    return torch.bincount(tokens, minlength=logits.shape[-1]).double() / points


LOGITS = torch.tensor([0.3, 2.0, -1.0, 1.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_frequencies_are_the_tempered_probabilities(temperature):
    expected = (LOGITS / temperature).softmax(-1)
    assert (frequencies(LOGITS, SamplingSettings(temperature)) - expected).abs().max() < 1e-4


def test_top_k_keeps_the_likeliest_in_proportion():
    expected = torch.zeros(5, dtype=torch.float64)
    expected[[1, 3]] = LOGITS[[1, 3]].softmax(-1)
    assert (frequencies(LOGITS, SamplingSettings(top_k=2)) - expected).abs().max() < 1e-4


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    probabilities = LOGITS.softmax(-1)
    for top_p, kept in [(0.1, [1]), (float(probabilities[1]) + 0.01, [1, 3]), (0.9999, [0, 1, 2, 3, 4])]:
        expected = torch.zeros(5, dtype=torch.float64)
        expected[kept] = probabilities[kept] / probabilities[kept].sum()
        assert (frequencies(LOGITS, SamplingSettings(top_p=top_p)) - expected).abs().max() < 1e-4


@given(seed=st.integers(0, 1000), top_k=st.integers(0, 6), top_p=st.floats(0.05, 1), temperature=st.floats(0.2, 3))
def test_logprobs_are_of_the_unfiltered_tempered_distribution(seed, top_k, top_p, temperature):
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    uniforms = torch.rand(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tokens, logprobs = sample(logits, uniforms, SamplingSettings(temperature, top_p, top_k))
    expected = (logits / temperature).softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1).log()
    torch.testing.assert_close(logprobs, expected, rtol=1e-12, atol=1e-12)
    if top_k:
        rank = (logits > logits.gather(-1, tokens.unsqueeze(-1))).sum(-1)
        assert bool((rank < top_k).all())


def test_a_uniform_next_to_one_never_draws_a_filtered_token():
    uniforms = torch.full((1,), 1 - 2**-53, dtype=torch.float64)
    tokens, _ = sample(LOGITS[None], uniforms, SamplingSettings(top_k=3))
    assert tokens.item() in (0, 1, 3)


def test_a_response_has_its_own_random_stream():
    def draws(*key):
        return torch.rand(4, generator=row_generator(*key)).tolist()

    assert draws(1, 2, 3) == draws(1, 2, 3)
    assert (
        len({tuple(draws(*key)) for key in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (12, 3, 4), (1, 23, 4)]}) == 6
    )
