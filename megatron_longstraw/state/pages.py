"""Pages: fixed-size pieces of one layer's per-token state, allocated ahead for a planned number of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_longstraw.state.spec import LayerStateSpec


@dataclass(frozen=True)
class PageTable:
    """How a run of tokens is cut into pages; integers only.

    Args:
        capacity: tokens that the run can hold.
        page_tokens: tokens of a full page; the last page is as short as it can be.
        owner: the context-parallel rank that holds the pages.
        cotangent_start: the first token whose cotangent is kept; `capacity` where none is.

    Example:
        >>> table = PageTable(capacity=10, page_tokens=4)
        >>> [table.page_length(page) for page in range(table.num_pages)]
        [4, 4, 2]
        >>> list(table.pieces(3, 9))
        [(0, 3, 4), (1, 0, 4), (2, 0, 1)]
    """

    capacity: int
    page_tokens: int
    owner: int = 0
    cotangent_start: int = 0

    @property
    def num_pages(self) -> int:
        """Pages that hold `capacity` tokens."""
        return -(-self.capacity // self.page_tokens)

    def page_length(self, page: int) -> int:
        """Tokens of one page."""
        return min(self.page_tokens, self.capacity - page * self.page_tokens)

    def has_cotangent(self, page: int) -> bool:
        """Whether any token of the page has a cotangent."""
        return page * self.page_tokens + self.page_length(page) > self.cotangent_start

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield `(page, first, last)` for the tokens `start..stop`, offsets within the page."""
        while start < stop:
            page, first = divmod(start, self.page_tokens)
            last = min(first + stop - start, self.page_tokens)
            yield page, first, last
            start += last - first


class LayerPages:
    """One layer's pages of one run; owns their memory. Each page is `[heads, tokens, dim]`, so a filled part is a view.

    Args:
        spec: what the layer keeps.
        table: how the run is cut.
        device: where the pages live.
    """

    def __init__(self, spec: LayerStateSpec, table: PageTable, device: torch.device) -> None:
        self.spec, self.table = spec, table
        pages = range(table.num_pages)

        def shape(page: int, name: str) -> tuple[int, int, int]:
            heads, dim = spec.per_token[name]
            return heads, table.page_length(page), dim

        self._state = {
            name: [torch.empty(shape(page, name), dtype=spec.state_dtype, device=device) for page in pages]
            for name in spec.per_token
        }
        self._cotangent = {
            name: [
                torch.zeros(shape(page, name), dtype=spec.cotangent_dtype, device=device)
                if table.has_cotangent(page)
                else None
                for page in pages
            ]
            for name in spec.per_token
        }

    def write(self, name: str, start: int, values: Tensor) -> None:
        """Copy the state of tokens from `start` on, `[tokens, heads, dim]`, into the pages."""
        done = 0
        for page, first, last in self.table.pieces(start, start + values.shape[0]):
            piece = values[done : done + last - first]
            self._state[name][page][:, first:last].copy_(piece.transpose(0, 1))
            done += last - first

    def read(self, name: str, stop: int) -> list[tuple[Tensor, Tensor | None]]:
        """Views of the state of tokens `0..stop`, and of where their cotangents accumulate, page by page."""
        views = []
        for page, first, last in self.table.pieces(0, stop):
            cotangent = self._cotangent[name][page]
            views.append(
                (self._state[name][page][:, first:last], None if cotangent is None else cotangent[:, first:last])
            )
        return views

    def cotangent(self, name: str, start: int, stop: int) -> Tensor:
        """The accumulated cotangent of tokens `start..stop`, `[tokens, heads, dim]`, a copy."""
        parts = []
        for page, first, last in self.table.pieces(start, stop):
            cotangent = self._cotangent[name][page]
            assert cotangent is not None, "cotangent of a constant page"
            parts.append(cotangent[:, first:last])
        return torch.cat(parts, dim=1).transpose(0, 1)
