"""Chunked over tokens: the logits of one chunk exist at a time, in forward and in backward."""

from typing import Any

import torch
from torch import Tensor

# Elements of one chunk's logits: 16 MiB in float32, unless the vocabulary is very large.
CHUNK_ELEMENTS = 1 << 22
# Fewer tokens would read all of a large vocabulary's weights for too little work.
MIN_CHUNK_TOKENS = 128


def _chunk_tokens(weight: Tensor) -> int:
    return max(MIN_CHUNK_TOKENS, CHUNK_ELEMENTS // weight.shape[0])


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Scaled logits `[tokens, vocabulary]`, in float32 or wider, safe to overwrite."""
    logits = (hidden @ weight.t()).to(torch.promote_types(hidden.dtype, torch.float32))
    return logits if temperature == 1.0 else logits.div_(temperature)


class ChunkedTokenLogprob(torch.autograd.Function):
    """Log-probs and entropies; backward recomputes each chunk's logits from the hidden states."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Compute value and entropy in one pass over the chunks."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = hidden.new_empty(hidden.shape[0], dtype=wide)
        log_sum_exp, entropies = torch.empty_like(logprobs), torch.empty_like(logprobs)
        size = _chunk_tokens(weight)
        for start in range(0, hidden.shape[0], size):
            chunk = slice(start, start + size)
            logits = _logits(hidden[chunk], weight, temperature)
            log_sum_exp[chunk] = logits.logsumexp(dim=-1)
            logprobs[chunk] = logits.gather(-1, targets[chunk].unsqueeze(-1)).squeeze(-1) - log_sum_exp[chunk]
            probabilities = (logits - log_sum_exp[chunk].unsqueeze(-1)).exp_()
            entropies[chunk] = log_sum_exp[chunk] - (probabilities.mul_(logits)).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, targets, log_sum_exp)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, d_logprobs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """`d logit_v = d_logprob * ([v is the target] - p_v) / temperature`, chunk by chunk."""
        hidden, weight, targets, log_sum_exp = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight, dtype=log_sum_exp.dtype)
        size = _chunk_tokens(weight)
        for start in range(0, hidden.shape[0], size):
            chunk = slice(start, start + size)
            logits = _logits(hidden[chunk], weight, ctx.temperature)
            d_logits = logits.sub_(log_sum_exp[chunk].unsqueeze(-1)).exp_().neg_()
            ones = d_logits.new_ones(d_logits.shape[0], 1)
            d_logits.scatter_add_(-1, targets[chunk].unsqueeze(-1), ones)
            d_logits.mul_((d_logprobs[chunk] / ctx.temperature).unsqueeze(-1))
            d_logits = d_logits.to(hidden.dtype)
            d_hidden[chunk] = d_logits @ weight
            if hidden.dtype == d_weight.dtype:
                d_weight.addmm_(d_logits.t(), hidden[chunk])
            else:
                d_weight += d_logits.t() @ hidden[chunk]
        return d_hidden, d_weight.to(weight.dtype), None, None
