"""How names and layouts of weights correspond between Hugging Face and Megatron: tables, and one engine both ways."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor


class Fusion(Enum):
    """How several Hugging Face tensors make one of Megatron's."""

    SINGLE = "single"
    # Rows side by side: `[gate; up]`.
    CONCATENATED = "concatenated"
    # By key/value head: `[queries of the head's group; its key; its value]`, head after head.
    GROUPED_QKV = "grouped_qkv"


@dataclass(frozen=True)
class WeightMap:
    """One Megatron parameter and the Hugging Face tensors it is made of; `{}` stands for the layer's index.

    Args:
        megatron: name in the Megatron model.
        hf: names in the Hugging Face folder.
        fusion: how they are put together.
    """

    megatron: str
    hf: tuple[str, ...]
    fusion: Fusion = Fusion.SINGLE


_HF, _MEGATRON = "model.layers.{}.", "decoder.layers.{}."
_QKV = tuple(f"{_HF}self_attn.{name}_proj" for name in "qkv")

# Llama, Mistral, Qwen2 (with the biases) and Qwen3 (with the q/k norms).
DENSE = (
    WeightMap("embedding.word_embeddings.weight", ("model.embed_tokens.weight",)),
    WeightMap(f"{_MEGATRON}input_layernorm.weight", (f"{_HF}input_layernorm.weight",)),
    WeightMap(
        f"{_MEGATRON}self_attention.linear_qkv.weight", tuple(f"{name}.weight" for name in _QKV), Fusion.GROUPED_QKV
    ),
    WeightMap(f"{_MEGATRON}self_attention.linear_qkv.bias", tuple(f"{name}.bias" for name in _QKV), Fusion.GROUPED_QKV),
    WeightMap(f"{_MEGATRON}self_attention.q_layernorm.weight", (f"{_HF}self_attn.q_norm.weight",)),
    WeightMap(f"{_MEGATRON}self_attention.k_layernorm.weight", (f"{_HF}self_attn.k_norm.weight",)),
    WeightMap(f"{_MEGATRON}self_attention.linear_proj.weight", (f"{_HF}self_attn.o_proj.weight",)),
    WeightMap(f"{_MEGATRON}pre_mlp_layernorm.weight", (f"{_HF}post_attention_layernorm.weight",)),
    WeightMap(
        f"{_MEGATRON}mlp.linear_fc1.weight",
        (f"{_HF}mlp.gate_proj.weight", f"{_HF}mlp.up_proj.weight"),
        Fusion.CONCATENATED,
    ),
    WeightMap(f"{_MEGATRON}mlp.linear_fc2.weight", (f"{_HF}mlp.down_proj.weight",)),
    WeightMap("decoder.final_layernorm.weight", ("model.norm.weight",)),
    WeightMap("output_layer.weight", ("lm_head.weight",)),
)


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


def expand(maps: tuple[WeightMap, ...], layers: int) -> dict[str, WeightMap]:
    """Fill in the layers' indices; keyed by the Megatron name."""
    filled: dict[str, WeightMap] = {}
    for entry in maps:
        for layer in range(layers) if "{}" in entry.megatron else [0]:
            name = entry.megatron.format(layer)
            filled[name] = WeightMap(name, tuple(hf.format(layer) for hf in entry.hf), entry.fusion)
    return filled


def fuse(tensors: list[Tensor], fusion: Fusion, sizes: HeadSizes) -> Tensor:
    """Put Hugging Face tensors together to Megatron's."""
    if fusion is Fusion.SINGLE:
        return tensors[0]
    if fusion is Fusion.CONCATENATED:
        return torch.cat(tensors)
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


def to_hf(tensors: Mapping[str, Tensor], layers: int, sizes: HeadSizes) -> Iterator[tuple[str, Tensor]]:
    """Name and split Megatron tensors (weights or gradients) as Hugging Face does.

    Raises:
        KeyError: a name that no table has.
    """
    maps = expand(DENSE, layers)
    for name, tensor in tensors.items():
        entry = maps[name]
        yield from zip(entry.hf, split(tensor, entry.fusion, sizes), strict=True)
