"""How weights correspond between Hugging Face and Megatron: the form of the tables, and one engine for both ways."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor

from megatron_longstraw.model.build import head_dim


class Fusion(Enum):
    """How several Hugging Face tensors make one of Megatron's."""

    SINGLE = "single"
    # Rows below each other: `[gate; up]`.
    CONCATENATED = "concatenated"
    # By key/value head: `[queries of the head's group; its key; its value]`, head after head.
    GROUPED_QKV = "grouped_qkv"


@dataclass(frozen=True)
class WeightMap:
    """One of Megatron's parameters and the Hugging Face tensors it is made of.

    Args:
        megatron: name in the Megatron model; `{layer}` and `{expert}` stand for indices from 0.
        hf: names in the Hugging Face folder, with the same indices.
        fusion: how they are put together.
    """

    megatron: str
    hf: tuple[str, ...]
    fusion: Fusion = Fusion.SINGLE


@dataclass(frozen=True)
class Stacked:
    """A tensor that some folders hold in place of every expert's own, `[experts, rows, columns]`; only read.

    Args:
        stacked: its name.
        hf: names that stand for an expert's rows of it, which are divided among them evenly and in order.
    """

    stacked: str
    hf: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """A family of models.

    Args:
        weights: a map for each parameter that a model of the family may have.
        stacked: other forms in which a folder may hold them.
    """

    weights: tuple[WeightMap, ...]
    stacked: tuple[Stacked, ...] = ()

    def find(self, name: str) -> WeightMap:
        """The map of one parameter, its indices filled in.

        Args:
            name: name in the Megatron model, such as `decoder.layers.3.mlp.linear_fc1.weight`.

        Raises:
            KeyError: a name that the table has not.
        """
        indices, pattern = {}, name
        for kind, parent in (("layer", "layers"), ("expert", "local_experts")):
            found = re.search(rf"\.{parent}\.(\d+)\.", pattern)
            if found is not None:
                indices[kind] = found[1]
                pattern = pattern.replace(found[0], f".{parent}.{{{kind}}}.", 1)
        entry = self._by_name[pattern]
        return WeightMap(name, tuple(hf.format(**indices) for hf in entry.hf), entry.fusion)

    @cached_property
    def _by_name(self) -> dict[str, WeightMap]:
        return {entry.megatron: entry for entry in self.weights}


@dataclass(frozen=True)
class HeadSizes:
    """What the fused query, key and value rows are split by.

    Args:
        kv_heads: key/value heads.
        query_heads: query heads, a multiple.
        head_dim: rows of one head.
    """

    kv_heads: int
    query_heads: int
    head_dim: int


def head_sizes(hf_config: object) -> HeadSizes:
    """Sizes that split a fused query, key and value, from a Hugging Face config."""
    kv_heads, query_heads = (getattr(hf_config, f"num_{kind}_heads") for kind in ("key_value", "attention"))
    return HeadSizes(kv_heads, query_heads, head_dim(hf_config))


def fuse(tensors: Sequence[Tensor], fusion: Fusion, sizes: HeadSizes) -> Tensor:
    """Put Hugging Face tensors together to Megatron's; of several dtypes the widest wins."""
    if fusion is Fusion.SINGLE:
        return tensors[0]
    if fusion is Fusion.CONCATENATED:
        return torch.cat(list(tensors))
    by_head = [tensor.reshape(sizes.kv_heads, -1, *tensor.shape[1:]) for tensor in tensors]
    return torch.cat(by_head, dim=1).flatten(0, 1)


def split(tensor: Tensor, fusion: Fusion, sizes: HeadSizes) -> list[Tensor]:
    """Undo `fuse`."""
    if fusion is Fusion.SINGLE:
        return [tensor]
    if fusion is Fusion.CONCATENATED:
        return list(tensor.chunk(2))
    by_head = tensor.reshape(sizes.kv_heads, -1, *tensor.shape[1:])
    group = sizes.query_heads // sizes.kv_heads
    rows = [group * sizes.head_dim, sizes.head_dim, sizes.head_dim]
    return [part.flatten(0, 1) for part in by_head.split(rows, dim=1)]
