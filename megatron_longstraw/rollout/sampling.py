"""Picking the next token of every row: temperature, top-k, top-p, one random stream per row."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_longstraw.errors import Diverged


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn.

    Args:
        temperature: divides the logits.
        top_p: the smallest set of most likely tokens with at least this probability; 1 for all.
        top_k: the number of most likely tokens; 0 for all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


def row_generator(seed: int, group: int, row: int) -> torch.Generator:
    """The random stream of one response: the same whatever runs beside it, on whatever layout.

    Args:
        seed: `rollout.seed`.
        group: number of the group, counted over the whole run.
        row: index of the response in its group.
    """
    digest = hashlib.blake2b(f"{seed} {group} {row}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)


def sample(logits: Tensor, uniforms: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits: `[rows, vocabulary]`, not divided by the temperature.
        uniforms: `[rows]` float64 in `[0, 1)`.
        settings: temperature and filters.

    Returns:
        Tokens `[rows]` int64 and their log-probs `[rows]` under the unfiltered distribution, in the logits' dtype.

    Raises:
        Diverged: a row has no distribution, since its logits are not finite.
    """
    logprobs = (logits / settings.temperature).log_softmax(dim=-1)
    filtered = bool(settings.top_k) or settings.top_p < 1.0
    # Likeliest first, so that top-k and top-p are prefixes; equal ones keep their order.
    ordered, tokens = logprobs.sort(dim=-1, descending=True, stable=True) if filtered else (logprobs, None)
    probabilities = ordered.double().exp()
    if settings.top_k:
        probabilities[:, settings.top_k :] = 0.0
    if settings.top_p < 1.0:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities[before >= settings.top_p * probabilities.sum(dim=-1, keepdim=True)] = 0.0
    cumulative = probabilities.cumsum(dim=-1)
    threshold = uniforms.to(cumulative.device).unsqueeze(-1) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, threshold, right=True)
    possible = probabilities > 0
    if not bool(possible.any(dim=-1).all()):
        raise Diverged("the policy's logits are not finite, so nothing can be sampled from it; a lower lr may help")
    # Rounding must not choose beyond the last token that has a probability.
    last = (possible * torch.arange(possible.shape[-1], device=possible.device)).amax(dim=-1, keepdim=True)
    chosen = torch.minimum(chosen, last)
    token = chosen if tokens is None else tokens.gather(-1, chosen)
    return token.squeeze(-1), ordered.gather(-1, chosen).squeeze(-1)
