"""Log-probabilities of given tokens from hidden states, without ever holding all logits.

Log-probs are those of `softmax(hidden @ weight.T / temperature)` over all rows of `weight`.
"""

from torch import Tensor

from megatron_longstraw.kernels.token_logprob import chunked, reference
from megatron_longstraw.kernels.token_logprob.shard import VocabularyShard


def token_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    shard: VocabularyShard | None = None,
    implementation: str = "chunked",
) -> tuple[Tensor, Tensor]:
    """Compute the log-prob of each target and the entropy of its distribution.

    Args:
        hidden: `[tokens, hidden_size]`.
        weight: `[vocabulary, hidden_size]`, without padded rows.
        targets: `[tokens]` int64.
        temperature: divides the logits.
        shard: which rows of the vocabulary `weight` has, where ranks share it; None where it has all. `hidden` and
            `targets` are the same on all ranks then, and so is the result; the gradient of `hidden` is the rank's own
            part, to be summed by the caller.
        implementation: `chunked`, or `reference` in tests.

    Returns:
        Log-probs `[tokens]`, differentiable in `hidden` and `weight`, and entropies `[tokens]` in nats, constants;
        both in float32, or float64 where `hidden` is.
    """
    if implementation == "reference":
        assert shard is None, "the reference holds all logits"
        return reference.token_logprob(hidden, weight, targets, temperature)
    logprobs, entropies = chunked.ChunkedTokenLogprob.apply(hidden, weight, targets, temperature, shard)
    return logprobs, entropies
