"""In which order rows are visited: a pure function of a position, so that resuming needs nothing but that number."""

import random
from collections.abc import Callable
from typing import TypeVar

from megatron_longstraw.errors import InputError

Item = TypeVar("Item")


class RowOrder:
    """Visits every row once an epoch.

    Args:
        rows: the number of rows.
        shuffle: another random order each epoch; False keeps the file's.
        seed: of the random orders.
    """

    def __init__(self, rows: int, *, shuffle: bool, seed: int) -> None:
        self._rows = rows
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def __len__(self) -> int:
        return self._rows

    def row(self, position: int) -> int:
        """Tell the row at a position; positions count on from 0 over all epochs."""
        epoch, index = divmod(position, self._rows)
        if not self._shuffle:
            return index
        if epoch != self._epoch:
            # Of all of Python's generators, only `random()` promises the same numbers in later versions.
            generator = random.Random(f"{self._seed} {epoch}")
            keys = [generator.random() for _ in range(self._rows)]
            self._order = sorted(range(self._rows), key=keys.__getitem__)
            self._epoch = epoch
        return self._order[index]


def take(read: Callable[[int], Item | None], order: RowOrder, *, position: int, count: int) -> tuple[list[Item], int]:
    """Read the next rows, passing over the dropped ones.

    Args:
        read: gives a row's content, None where the row is dropped.
        order: the order of rows.
        position: where to go on.
        count: how many rows.

    Returns:
        The contents, and the position to go on from next time.

    Raises:
        InputError: every row is dropped.
    """
    items: list[Item] = []
    dropped = 0
    while len(items) < count:
        item = read(order.row(position))
        position += 1
        if item is None:
            dropped += 1
            # Between a row that comes first in one epoch and last in the next lie one fewer.
            if dropped >= 2 * len(order) - 1:
                allowed = "a larger data.max_prompt_tokens, or data.overlong truncate_left"
                raise InputError("drops every row: all prompts are too long", key="data.overlong", allowed=allowed)
        else:
            items.append(item)
            dropped = 0
    return items, position
