"""Runs of tokens with a parent: the prompt is the root, a response its child; each keeps its own tokens' state."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_longstraw.kernels.segment_attention.contract import PastPage
from megatron_longstraw.state.adapters import ADAPTERS
from megatron_longstraw.state.adapters.attention import AttentionRows, AttentionState
from megatron_longstraw.state.pages import PageTable
from megatron_longstraw.state.spec import LayerStateSpec


@dataclass(frozen=True)
class StateSettings:
    """How state is kept on this rank.

    Args:
        specs: one for every layer of this pipeline stage.
        page_tokens: tokens of a full page.
        device: where pages live.
        owner: this rank's place on the context axis, which owns what it computes.
    """

    specs: tuple[LayerStateSpec, ...]
    page_tokens: int
    device: torch.device
    owner: int = 0

    @property
    def state_bytes_per_token(self) -> int:
        """Bytes of state that one token takes over all layers of this rank."""
        return sum(spec.state_bytes_per_token for spec in self.specs)

    @property
    def cotangent_bytes_per_token(self) -> int:
        """Bytes of cotangent that one token takes over all layers of this rank."""
        return sum(spec.cotangent_bytes_per_token for spec in self.specs)


class RunState:
    """The state of one run of tokens, on top of its parent's.

    Owns its pages; they are freed with it. The parent's are only read, except that its cotangents accumulate.

    Args:
        settings: how state is kept.
        start: absolute position of the run's first token; the parent is visible up to it.
        capacity: tokens whose state the run keeps; 0 for a branch that is one segment.
        cotangent_start: the first own token whose cotangent is kept; `capacity` for none.
        parent: the run this one continues; None for a prompt.
    """

    def __init__(
        self,
        settings: StateSettings,
        *,
        start: int,
        capacity: int,
        cotangent_start: int = 0,
        parent: "RunState | None" = None,
    ) -> None:
        self.settings, self.start, self.capacity, self.parent = settings, start, capacity, parent
        self.cotangent_start = min(cotangent_start, capacity)
        table = PageTable(capacity, settings.page_tokens, settings.owner, self.cotangent_start)
        self._layers: dict[int, AttentionState] = {
            spec.layer_number: ADAPTERS[spec.kind](spec, table, settings.device) for spec in settings.specs
        }

    def layer(self, layer_number: int) -> AttentionState:
        """The run's own state of one layer."""
        return self._layers[layer_number]

    def past(self, layer_number: int, position: int) -> list[PastPage]:
        """All pages before an absolute position, the ancestors' first."""
        inherited = [] if self.parent is None else self.parent.past(layer_number, min(position, self.start))
        return inherited + self._layers[layer_number].past(max(0, position - self.start))

    @property
    def state_bytes(self) -> int:
        """Bytes of the run's own state pages on this rank."""
        return self.capacity * self.settings.state_bytes_per_token

    @property
    def cotangent_bytes(self) -> int:
        """Bytes of the run's own cotangent pages on this rank; the page in which a window starts is a whole one."""
        page_start = self.cotangent_start - self.cotangent_start % self.settings.page_tokens
        kept = 0 if self.cotangent_start == self.capacity else self.capacity - page_start
        return kept * self.settings.cotangent_bytes_per_token


class DecodeState:
    """Rows that decode together from one parent run: its pages are shared, own tokens are kept per row.

    Args:
        parent: the run all rows continue; only read.
        rows: rows at the start.
        capacity: tokens each row can append.
    """

    def __init__(self, parent: RunState, *, rows: int, capacity: int) -> None:
        self.parent = parent
        self.tokens = 0
        settings = parent.settings
        self.device = settings.device
        self._layers = {
            spec.layer_number: AttentionRows(spec, rows, capacity, settings.device) for spec in settings.specs
        }

    @property
    def position(self) -> int:
        """Absolute position of the next token."""
        return self.parent.start + self.parent.capacity + self.tokens

    def layer(self, layer_number: int) -> AttentionRows:
        """The rows' own keys and values of one layer."""
        return self._layers[layer_number]

    def past(self, layer_number: int) -> list[PastPage]:
        """The shared pages."""
        return self.parent.past(layer_number, self.parent.start + self.parent.capacity)

    def advance(self) -> None:
        """Count the token that every layer has appended."""
        self.tokens += 1

    def keep(self, rows: Tensor | Sequence[int]) -> None:
        """Keep only these rows, `[kept]`; the others have ended."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.device)
        for layer in self._layers.values():
            layer.keep(index)
