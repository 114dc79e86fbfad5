"""A vocabulary that ranks share: what the kernel must know of the others."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class VocabularyShard:
    """The rows of the vocabulary that a rank holds, and how it adds up with the others.

    Args:
        first_row: number of its first row; there may be no row.
        maximum: element-wise maximum over the ranks, of a tensor of the same shape on each.
        total: element-wise sum.
    """

    first_row: int
    maximum: Callable[[Tensor], Tensor]
    total: Callable[[Tensor], Tensor]
