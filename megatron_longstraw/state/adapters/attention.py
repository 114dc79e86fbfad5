"""Full attention's state: rotated keys and values of every token."""

import torch
from torch import Tensor

from megatron_longstraw.kernels.segment_attention.contract import PastPage
from megatron_longstraw.state.pages import LayerPages, PageTable
from megatron_longstraw.state.spec import LayerStateSpec


class AttentionState:
    """Keys and values of one layer for one run of tokens.

    Args:
        spec: the layer's spec, with `key` and `value`.
        table: how the run is cut into pages.
        device: where they live.
    """

    def __init__(self, spec: LayerStateSpec, table: PageTable, device: torch.device) -> None:
        self._pages = LayerPages(spec, table, device)

    def append(self, start: int, key: Tensor, value: Tensor) -> None:
        """Store a segment's keys and values, `[tokens, kv_heads, head_dim]`, from the run's token `start` on."""
        self._pages.write("key", start, key)
        self._pages.write("value", start, value)

    def past(self, stop: int) -> list[PastPage]:
        """Pages of the run's tokens `0..stop`: views, with where their cotangents accumulate."""
        keys, values = self._pages.read("key", stop), self._pages.read("value", stop)
        return [
            PastPage(key, value, d_key, d_value) for (key, d_key), (value, d_value) in zip(keys, values, strict=True)
        ]

    def cotangent(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Accumulated cotangents of key and value of tokens `start..stop`, each `[tokens, kv_heads, head_dim]`."""
        return self._pages.cotangent("key", start, stop), self._pages.cotangent("value", start, stop)


class AttentionRows:
    """Keys and values that decoding rows append one token at a time, `[rows, kv_heads, tokens, head_dim]`.

    Args:
        spec: the layer's spec.
        rows: rows decoded at once.
        capacity: tokens each can hold.
        device: where they live.
    """

    def __init__(self, spec: LayerStateSpec, rows: int, capacity: int, device: torch.device) -> None:
        heads, dim = spec.per_token["key"]
        self._key = torch.empty(rows, heads, capacity, dim, dtype=spec.state_dtype, device=device)
        self._value = torch.empty_like(self._key)

    def append(self, position: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the newest token, `[1, rows, kv_heads, head_dim]`; return views of all own keys and values."""
        self._key[:, :, position] = key[0]
        self._value[:, :, position] = value[0]
        return self._key[:, :, : position + 1], self._value[:, :, : position + 1]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, `[kept]` int64; the others have ended."""
        self._key, self._value = self._key[rows], self._value[rows]
