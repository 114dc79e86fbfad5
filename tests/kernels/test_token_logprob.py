"""Chunked log-probs equal the plain ones, values and gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_longstraw.kernels.token_logprob import chunked, token_logprob


def draw(tokens, vocabulary, dtype=torch.float64):
    generator = torch.Generator().manual_seed(tokens * 1000 + vocabulary)
    hidden = torch.randn(tokens, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return hidden, weight, targets, torch.randn(tokens, generator=generator, dtype=torch.float64)


@given(tokens=st.integers(0, 30), vocabulary=st.integers(1, 40), temperature=st.sampled_from([1.0, 0.7, 2.5]))
def test_chunked_equals_reference_for_any_chunk(tokens, vocabulary, temperature):
    previous = chunked.CHUNK_ELEMENTS, chunked.MIN_CHUNK_TOKENS
    chunked.CHUNK_ELEMENTS, chunked.MIN_CHUNK_TOKENS = 7 * vocabulary, 1
    try:
        results = []
        for implementation in ("chunked", "reference"):
            hidden, weight, targets, d_logprobs = draw(tokens, vocabulary)
            logprobs, entropies = token_logprob(
                hidden, weight, targets, temperature=temperature, implementation=implementation
            )
            grads = torch.autograd.grad(logprobs, (hidden, weight), d_logprobs)
            results.append([logprobs.detach(), entropies, *grads])
    finally:
        chunked.CHUNK_ELEMENTS, chunked.MIN_CHUNK_TOKENS = previous
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)


def test_value_is_the_log_of_the_tempered_probability():
    hidden = torch.tensor([[1.0]], dtype=torch.float64)
    weight = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    logprobs, entropies = token_logprob(hidden, weight, torch.tensor([1]), temperature=2.0)
    p = 2.718281828459045 / 3.718281828459045
    assert logprobs.exp().item() == pytest.approx(p, rel=1e-14)
    assert entropies.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), rel=1e-14)


def test_low_precision_logits_are_reduced_in_float32():
    hidden, weight, targets, _ = draw(20, 30, torch.bfloat16)
    logprobs, entropies = token_logprob(hidden, weight, targets, temperature=1.0)
    assert logprobs.dtype == entropies.dtype == torch.float32
