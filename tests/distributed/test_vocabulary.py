"""Log-probs on a vocabulary that ranks share are those of the whole one, values and gradients."""

import pytest
import torch

from megatron_longstraw.kernels.token_logprob import chunked, token_logprob
from megatron_longstraw.parallel.layout import process_groups
from megatron_longstraw.parallel.vocabulary import gather_rows, own_rows, vocabulary_shard

pytestmark = pytest.mark.distributed

TEMPERATURE = 0.7


def draw(tokens: int, vocabulary: int, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(tokens * 1000 + vocabulary)
    hidden = (3 * torch.randn(tokens, 6, generator=generator, dtype=torch.float64)).to(dtype)
    weight = torch.randn(vocabulary, 6, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return hidden, weight, targets, torch.randn(tokens, generator=generator, dtype=torch.float64)


def on_a_rank(tokens: int, vocabulary: int, rows: int, tensor: int, dtype: torch.dtype = torch.float64):
    chunked.CHUNK_ELEMENTS, chunked.MIN_CHUNK_TOKENS = 7 * vocabulary, 1
    hidden, weight, targets, d_logprobs = draw(tokens, vocabulary, dtype)
    hidden.requires_grad_()
    with process_groups(tensor=tensor) as layout:
        group = layout.groups.tp
        own = own_rows(group, rows, vocabulary)
        # A rank beyond the vocabulary has padding only.
        first = group.rank() * rows
        part = weight[first : first + own.stop].clone().requires_grad_()
        logprobs, entropies = token_logprob(
            hidden, part, targets, temperature=TEMPERATURE, shard=vocabulary_shard(group, rows)
        )
        d_hidden, d_part = torch.autograd.grad(logprobs, (hidden, part), d_logprobs.to(logprobs.dtype))
        logits = gather_rows(group, hidden.detach() @ part.detach().t(), rows, vocabulary)
        results = (logprobs.detach(), entropies, d_hidden, d_part, logits)
        return tuple(result.double().numpy() for result in results)


@pytest.mark.parametrize("tensor", [1, 2, 3])
@pytest.mark.parametrize(("tokens", "vocabulary", "rows"), [(5, 12, 4), (17, 9, 4), (17, 9, 9), (1, 2, 1), (0, 5, 2)])
def test_values_and_gradients_equal_the_reference(ranks, tensor: int, tokens: int, vocabulary: int, rows: int) -> None:
    rows = max(rows, -(-vocabulary // tensor))
    answers = ranks(tensor).run(on_a_rank, tokens, vocabulary, rows, tensor)
    hidden, weight, targets, d_logprobs = draw(tokens, vocabulary)
    hidden.requires_grad_()
    weight.requires_grad_()
    logprobs, entropies = token_logprob(hidden, weight, targets, temperature=TEMPERATURE, implementation="reference")
    d_hidden, d_weight = torch.autograd.grad(logprobs, (hidden, weight), d_logprobs)
    exact = {"rtol": 1e-12, "atol": 1e-12}
    for answer in answers:
        torch.testing.assert_close(torch.from_numpy(answer[0]), logprobs.detach(), **exact)
        torch.testing.assert_close(torch.from_numpy(answer[1]), entropies, **exact)
        torch.testing.assert_close(torch.from_numpy(answer[4]), (hidden @ weight.t()).detach(), **exact)
    torch.testing.assert_close(sum(torch.from_numpy(answer[2]) for answer in answers), d_hidden, **exact)
    torch.testing.assert_close(torch.cat([torch.from_numpy(answer[3]) for answer in answers]), d_weight, **exact)


def test_every_rank_gets_the_same_bits(ranks) -> None:
    first, second = ranks(2).run(on_a_rank, 40, 33, 17, 2, torch.float32)
    for index in (0, 1, 4):
        assert (first[index] == second[index]).all()
