"""Which piece of which whole weight each tensor of a rank's model is, under any layout."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from torch import Size, Tensor

from megatron_longstraw.model.gpt import SegmentModel

# Weights with a row for each token, which may be padded.
VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")


@dataclass(frozen=True)
class Piece:
    """A part of one whole weight, as Megatron's checkpoints store it.

    Args:
        name: the whole weight's name, with the layer and the expert counted over all ranks.
        shape: the whole weight's, without padded rows of a vocabulary.
        region: the part, in the whole weight; it ends before any padding.
        sharded: key, global offset and dtype in checkpoints; its `data` is the rank's own tensor.
    """

    name: str
    shape: Size
    region: tuple[slice, ...]
    sharded: ShardedTensor

    @property
    def target(self) -> Tensor:
        """The rank's own tensor without padding, a view."""
        return self.sharded.data[tuple(slice(0, part.stop - part.start) for part in self.region)]

    def alone(self, dtype: torch.dtype) -> ShardedTensor:
        """The piece with memory of its own, to be loaded without the layers and experts it is stored with.

        Its data have Megatron's prepended axes, of size 1.
        """
        data = torch.empty(*(1,) * self.sharded.prepend_axis_num, *self.sharded.local_shape, dtype=dtype)
        return replace(self.sharded, data=data, dtype=dtype, local_shape=tuple(data.shape), prepend_axis_num=0)


def weight_pieces(model: SegmentModel) -> Iterator[Piece]:
    """All pieces that this rank holds; a weight that Megatron stores in parts, as gate and up, has several."""
    for name, item in model.sharded_state_dict().items():
        for sharded in built(item):
            yield _piece(model, _whole_name(model, name), sharded)


def built(item: Any) -> list[ShardedTensor]:
    """An entry of a sharded state dict as sharded tensors; none for an entry that is no tensor."""
    if isinstance(item, ShardedTensorFactory):
        return item.build()
    return [item] if isinstance(item, ShardedTensor) else []


def _piece(model: SegmentModel, name: str, sharded: ShardedTensor) -> Piece:
    axes = sharded.prepend_axis_num
    shape, offsets = list(sharded.global_shape[axes:]), sharded.global_offset[axes:]
    if name in VOCABULARY:
        shape[0] = model.real_vocabulary
    ends = [
        max(offset, min(offset + size, whole))
        for offset, size, whole in zip(offsets, sharded.local_shape, shape, strict=True)
    ]
    return Piece(name, Size(shape), tuple(map(slice, offsets, ends)), sharded)


def _whole_name(model: SegmentModel, name: str) -> str:
    """Count layers and experts over all ranks."""
    layer = re.search(r"\.layers\.(\d+)\.", name)
    if layer is not None:
        number = model.decoder.layers[int(layer[1])].layer_number - 1
        name = name.replace(layer[0], f".layers.{number}.", 1)
    expert = re.search(r"\.local_experts\.(\d+)\.", name)
    if expert is not None:
        config = model.config
        first = model.pg_collection.ep.rank() * (config.num_moe_experts // config.expert_model_parallel_size)
        name = name.replace(expert[0], f".local_experts.{first + int(expert[1])}.", 1)
    return name
