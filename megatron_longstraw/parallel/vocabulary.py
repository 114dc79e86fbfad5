"""The vocabulary that tensor-parallel ranks share: whose rows are whose, and sums over the ranks."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from megatron_longstraw.kernels.token_logprob.shard import VocabularyShard


def own_rows(group: ProcessGroup, rows: int, real_vocabulary: int) -> slice:
    """The real rows among a rank's rows, counted from its own first; the rest is padding.

    Args:
        group: the tensor-parallel ranks, each with equally many rows.
        rows: rows of one rank.
        real_vocabulary: real rows of all ranks.
    """
    return slice(0, max(0, min(rows, real_vocabulary - group.rank() * rows)))


def vocabulary_shard(group: ProcessGroup, rows: int) -> VocabularyShard | None:
    """What the log-prob kernel needs of a rank's place; None where one rank has the whole vocabulary.

    Args:
        group: as in `own_rows`.
        rows: as in `own_rows`.
    """
    if group.size() == 1:
        return None

    def reduce(operation: dist.ReduceOp.RedOpType, tensor: Tensor) -> Tensor:
        result = tensor.clone()
        dist.all_reduce(result, op=operation, group=group)
        return result

    return VocabularyShard(
        first_row=group.rank() * rows,
        maximum=lambda tensor: reduce(dist.ReduceOp.MAX, tensor),
        total=lambda tensor: reduce(dist.ReduceOp.SUM, tensor),
    )


def gather_rows(group: ProcessGroup, logits: Tensor, rows: int, real_vocabulary: int) -> Tensor:
    """Put the ranks' logits side by side, without padding.

    Args:
        group: as in `own_rows`.
        logits: `[tokens, own real rows]`.
        rows: as in `own_rows`.
        real_vocabulary: as in `own_rows`.

    Returns:
        `[tokens, real_vocabulary]`, the same bits on every rank.
    """
    if group.size() == 1:
        return logits
    padded = logits.new_zeros(logits.shape[0], rows)
    padded[:, : logits.shape[1]] = logits
    parts = [torch.empty_like(padded) for _ in range(group.size())]
    dist.all_gather(parts, padded, group=group)
    return torch.cat(parts, dim=-1)[:, :real_vocabulary]
