"""Rows of the vocabulary that are padding do nothing, whatever stands in them."""

import pytest
import torch
from machine import draw, small_machine

from megatron_longstraw.replay.branch import score
from megatron_longstraw.rollout.decode import StopRules, decode_group
from megatron_longstraw.rollout.sampling import SamplingSettings

VOCABULARY, PADDED = 97, 100
PROMPT, RESPONSES = draw(40), [draw(12, 1), draw(30, 2)]
tied = pytest.mark.parametrize("tie_word_embeddings", [False, True], ids=["untied", "tied"])


@torch.no_grad()
def set_weights(model, padding):
    """The same weights for any number of rows; `padding` in those beyond the vocabulary."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        real = parameter[:VOCABULARY] if len(parameter) == PADDED else parameter
        values = torch.randn(real.shape, generator=generator, dtype=parameter.dtype)
        real.copy_(values * 0.3 + (1.0 if values.dim() == 1 else 0.0))
        parameter[len(real) :] = padding


def outcome(*, multiple, padding=0.0, **sizes):
    """Log-probs, entropies, sampled ids and gradients of a prompt and its responses."""
    with small_machine(vocabulary_multiple=multiple, **sizes) as machine:
        model = machine.engine.model.module
        set_weights(model, padding)
        state = machine.capture(PROMPT)
        logprobs, entropies = score(machine.executor, state, RESPONSES, machine.replay)
        sampled = decode_group(
            machine.executor,
            state,
            rows=4,
            group=0,
            seed=0,
            sampling=SamplingSettings(temperature=5.0),
            stop=StopRules(25, frozenset()),
        )
        machine.engine.zero_grad()
        machine.accumulate(PROMPT, RESPONSES, [torch.ones(len(ids), dtype=torch.float64) for ids in RESPONSES])
        gradients = {name: parameter.main_grad.clone() for name, parameter in model.named_parameters()}
        return logprobs, entropies, [response.ids for response in sampled], gradients


@tied
def test_padding_has_no_probability_no_influence_and_no_gradient(tie_word_embeddings):
    plain = outcome(multiple=None, tie_word_embeddings=tie_word_embeddings)
    padded = outcome(multiple=50, padding=1e4, tie_word_embeddings=tie_word_embeddings)
    for ours, expected in zip(padded[:3], plain[:3], strict=True):
        for tensor, other in zip(ours, expected, strict=True):
            assert torch.equal(tensor, other)
    assert len({*torch.cat(padded[2]).tolist()}) > 30
    rows = [name for name, gradient in padded[3].items() if len(gradient) == PADDED]
    assert len(rows) == (1 if tie_word_embeddings else 2)
    for name in rows:
        assert torch.count_nonzero(padded[3][name][VOCABULARY:]) == 0
    for name, gradient in plain[3].items():
        assert torch.equal(padded[3][name][: len(gradient)], gradient)
        assert torch.count_nonzero(gradient)


@tied
def test_padding_is_zero_from_the_start(tie_word_embeddings):
    with small_machine(vocabulary_multiple=50, tie_word_embeddings=tie_word_embeddings) as machine:
        model = machine.engine.model.module
        weights = [model.embedding.word_embeddings.weight] + (
            [] if tie_word_embeddings else [model.output_layer.weight]
        )
        for weight in weights:
            assert weight.shape[0] == PADDED
            assert not weight[VOCABULARY:].any()
            assert weight[:VOCABULARY].any(dim=1).all()


def test_a_single_tensor_rank_has_no_padding():
    with small_machine() as machine:
        assert machine.engine.model.module.embedding.word_embeddings.weight.shape[0] == VOCABULARY
