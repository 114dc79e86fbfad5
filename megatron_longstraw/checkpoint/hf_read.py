"""Reading a Hugging Face folder's weights into the model, one tensor at a time."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from megatron_longstraw.checkpoint.families import DENSE, HeadSizes, expand, fuse
from megatron_longstraw.errors import InputError
from megatron_longstraw.model.build import head_dim
from megatron_longstraw.model.gpt import SegmentModel


def head_sizes(hf_config: Any) -> HeadSizes:
    """Sizes that split a fused query, key and value."""
    return HeadSizes(hf_config.num_key_value_heads, hf_config.num_attention_heads, head_dim(hf_config))


class HfWeights:
    """The tensors of a folder by name, read when asked for.

    Args:
        folder: holds `model.safetensors`, or shards with `model.safetensors.index.json`.

    Raises:
        InputError: no weights, or a file that cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError("is not an index of weights", file=index, allowed='{"weight_map": {...}}') from error
        else:
            files = ["model.safetensors"]
        self._place: dict[str, Path] = {}
        for name in files:
            file = self.folder / name
            if not file.is_file():
                raise InputError("no such file; weights are read from safetensors", file=file, key="model.hf")
            try:
                with safe_open(file, framework="pt") as shard:
                    self._place.update(dict.fromkeys(shard.keys(), file))
            except SafetensorError as error:
                raise InputError(f"is not a whole safetensors file: {error}", file=file) from error

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._place)

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        with safe_open(self._place[name], framework="pt") as shard:
            return shard.get_tensor(name)


@torch.no_grad()
def load_hf_weights(model: SegmentModel, hf_config: Any, folder: str | Path) -> None:
    """Copy a folder's weights into the model's parameters, in place, converted to their dtype.

    Raises:
        InputError: a missing or left-over tensor, or a wrong shape.
    """
    weights = HfWeights(folder)
    maps, sizes = expand(DENSE, hf_config.num_hidden_layers), head_sizes(hf_config)
    left_over = weights.names
    for name, parameter in model.named_parameters():
        entry = maps[name]
        missing = [hf for hf in entry.hf if hf not in weights.names]
        if missing:
            raise InputError(f"tensor {missing[0]} is missing", file=folder)
        fused = fuse([weights.read(hf) for hf in entry.hf], entry.fusion, sizes)
        if fused.shape != parameter.shape:
            raise InputError(
                f"tensor {entry.hf[0]} makes {name} of shape {list(fused.shape)}",
                file=folder,
                allowed=str(list(parameter.shape)),
            )
        parameter.copy_(fused)
        left_over -= set(entry.hf)
    # Tied models may carry a copy of the embedding, and old ones the angles of the rotary embedding.
    left_over = {name for name in left_over if name != "lm_head.weight" and "rotary_emb" not in name}
    if left_over:
        raise InputError(f"tensor {sorted(left_over)[0]} has no place in the model", file=folder)
