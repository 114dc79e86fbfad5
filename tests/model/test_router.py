"""The router weighs experts as transformers does, in values and in gradients, and keeps the dtype of its logits."""

import pytest
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from megatron_longstraw.model.router import choose_experts

TOKENS, HIDDEN, EXPERTS, TAKEN = 50, 24, 8, 3


def draw(*shape, dtype, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("renormalise", [True, False])
def test_weights_and_gradients_are_those_of_transformers(renormalise):
    theirs = Qwen3MoeTopKRouter(
        Qwen3MoeConfig(hidden_size=HIDDEN, num_experts=EXPERTS, num_experts_per_tok=TAKEN, norm_topk_prob=renormalise)
    )
    theirs.weight.data = draw(EXPERTS, HIDDEN, dtype=torch.float32, seed=0) / HIDDEN**0.5
    hidden = draw(TOKENS, HIDDEN, dtype=torch.float32, seed=1).requires_grad_()
    _, their_weights, experts = theirs(hidden)
    cotangent = draw(TOKENS, EXPERTS, dtype=torch.float32, seed=2)
    weights, taken = choose_experts(hidden @ theirs.weight.t(), TAKEN, renormalise=renormalise)
    assert torch.equal(taken, torch.zeros(TOKENS, EXPERTS).scatter(1, experts, 1.0).bool())
    torch.testing.assert_close(weights.gather(1, experts), their_weights)
    assert not weights[~taken].any()
    inputs = [hidden, theirs.weight]
    ours = torch.autograd.grad((weights * cotangent).sum(), inputs, retain_graph=True)
    truth = torch.autograd.grad((their_weights * cotangent.gather(1, experts)).sum(), inputs)
    for gradient, expected in zip(ours, truth, strict=True):
        assert expected.abs().max() > 0.01
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("renormalise", [True, False])
def test_float64_is_not_rounded(renormalise):
    logits = draw(TOKENS, EXPERTS, dtype=torch.float64, seed=3)
    weights, taken = choose_experts(logits, TAKEN, renormalise=renormalise)
    parts = logits.exp()
    expected = parts * taken / (parts * taken if renormalise else parts).sum(-1, keepdim=True)
    torch.testing.assert_close(weights, expected, rtol=1e-14, atol=0)
