"""A table of weights for each family of models; a new family is a file here and a line below."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from megatron_longstraw.checkpoint.families.llama import LLAMA
from megatron_longstraw.checkpoint.families.qwen2 import QWEN2
from megatron_longstraw.checkpoint.families.qwen3 import QWEN3
from megatron_longstraw.checkpoint.families.qwen3_moe import QWEN3_MOE
from megatron_longstraw.checkpoint.mapping import Family, head_sizes, split

# By the model type of a Hugging Face config.
FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
}


def to_hf(tensors: Mapping[str, Tensor], hf_config: Any) -> Iterator[tuple[str, Tensor]]:
    """Name and split whole Megatron tensors (weights or gradients) as Hugging Face does.

    Args:
        tensors: by Megatron's name.
        hf_config: of the model.

    Raises:
        KeyError: a name that the family's table has not.
    """
    family, sizes = FAMILIES[hf_config.model_type], head_sizes(hf_config)
    for name, tensor in tensors.items():
        entry = family.find(name)
        yield from zip(entry.hf, split(tensor, entry.fusion, sizes), strict=True)
