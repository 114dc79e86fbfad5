"""Chunked over tokens: the logits of one chunk exist at a time, in forward and in backward."""

from typing import Any

import torch
from torch import Tensor

from megatron_longstraw.kernels.token_logprob.shard import VocabularyShard

# Elements of one chunk's logits: 16 MiB in float32, unless the vocabulary is very large.
CHUNK_ELEMENTS = 1 << 22
# Fewer tokens would read all of a large vocabulary's weights for too little work.
MIN_CHUNK_TOKENS = 128


def _chunk_tokens(weight: Tensor) -> int:
    return max(MIN_CHUNK_TOKENS, CHUNK_ELEMENTS // max(weight.shape[0], 1))


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Scaled logits `[tokens, vocabulary]`, in float32 or wider, safe to overwrite."""
    logits = (hidden @ weight.t()).to(torch.promote_types(hidden.dtype, torch.float32))
    return logits if temperature == 1.0 else logits.div_(temperature)


def _own_rows(targets: Tensor, weight: Tensor, shard: VocabularyShard | None) -> tuple[Tensor, Tensor]:
    """The row of each target among a rank's own, 0 where it is another rank's, and a mask of the own ones."""
    rows = targets if shard is None else targets - shard.first_row
    mine = (rows >= 0) & (rows < weight.shape[0])
    return rows.where(mine, 0), mine


def _merge(log_sum_exp: Tensor, mean_logits: Tensor, shard: VocabularyShard) -> tuple[Tensor, Tensor]:
    """Both over all ranks' rows: the ranks' means weigh as their sums of exponentials."""
    highest = shard.maximum(log_sum_exp)
    share = (log_sum_exp - highest).exp()
    total = shard.total(share)
    # A rank without rows has the share 0 and no mean.
    mean = shard.total(share * mean_logits.nan_to_num()) / total
    return highest + total.log(), mean


class ChunkedTokenLogprob(torch.autograd.Function):
    """Log-probs and entropies; backward recomputes each chunk's logits from the hidden states."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, shard: VocabularyShard | None
    ) -> tuple[Tensor, Tensor]:
        """Compute value and entropy in one pass over the chunks."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        target_logits = hidden.new_zeros(hidden.shape[0], dtype=wide)
        log_sum_exp, mean_logits = torch.empty_like(target_logits), torch.empty_like(target_logits)
        rows, mine = _own_rows(targets, weight, shard)
        size = _chunk_tokens(weight)
        for start in range(0, hidden.shape[0], size):
            chunk = slice(start, start + size)
            logits = _logits(hidden[chunk], weight, temperature)
            log_sum_exp[chunk] = logits.logsumexp(dim=-1)
            if weight.shape[0]:
                target_logits[chunk] = logits.gather(-1, rows[chunk].unsqueeze(-1)).squeeze(-1) * mine[chunk]
            probabilities = (logits - log_sum_exp[chunk].unsqueeze(-1)).exp_()
            mean_logits[chunk] = (probabilities.mul_(logits)).sum(dim=-1)
        if shard is not None:
            log_sum_exp, mean_logits = _merge(log_sum_exp, mean_logits, shard)
            target_logits = shard.total(target_logits)
        entropies = log_sum_exp - mean_logits
        ctx.save_for_backward(hidden, weight, rows, mine, log_sum_exp)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return target_logits - log_sum_exp, entropies

    @staticmethod
    def backward(ctx: Any, d_logprobs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """`d logit_v = d_logprob * ([v is the target] - p_v) / temperature`, chunk by chunk."""
        hidden, weight, rows, mine, log_sum_exp = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight, dtype=log_sum_exp.dtype)
        size = _chunk_tokens(weight)
        for start in range(0, hidden.shape[0], size):
            chunk = slice(start, start + size)
            logits = _logits(hidden[chunk], weight, ctx.temperature)
            d_logits = logits.sub_(log_sum_exp[chunk].unsqueeze(-1)).exp_().neg_()
            if weight.shape[0]:
                d_logits.scatter_add_(-1, rows[chunk].unsqueeze(-1), mine[chunk].to(d_logits.dtype).unsqueeze(-1))
            d_logits.mul_((d_logprobs[chunk] / ctx.temperature).unsqueeze(-1))
            d_logits = d_logits.to(hidden.dtype)
            d_hidden[chunk] = d_logits @ weight
            if hidden.dtype == d_weight.dtype:
                d_weight.addmm_(d_logits.t(), hidden[chunk])
            else:
                d_weight += d_logits.t() @ hidden[chunk]
        return d_hidden, d_weight.to(weight.dtype), None, None, None
