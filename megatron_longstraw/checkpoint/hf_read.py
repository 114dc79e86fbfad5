"""Reading a Hugging Face folder's weights, one tensor at a time."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Size, Tensor

from megatron_longstraw.checkpoint.families import FAMILIES
from megatron_longstraw.checkpoint.mapping import Stacked, fuse, head_sizes, split
from megatron_longstraw.checkpoint.pieces import Piece, weight_pieces
from megatron_longstraw.errors import InputError, first_line
from megatron_longstraw.model.gpt import SegmentModel

INDEX = "model.safetensors.index.json"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies: a whole tensor of a file, or an expert's rows of a stacked one."""

    file: Path
    stored: str
    shape: Size
    dtype: str
    expert: int | None = None
    first_row: int = 0

    def read(self) -> Tensor:
        with safe_open(self.file, framework="pt") as shard:
            if self.expert is None:
                return shard.get_tensor(self.stored)
            rows = slice(self.first_row, self.first_row + self.shape[0])
            return shard.get_slice(self.stored)[self.expert : self.expert + 1, rows][0]


class HfWeights:
    """The weights of a folder under Megatron's names, each read when asked for.

    Args:
        folder: holds `model.safetensors`, or shards with `model.safetensors.index.json`.
        hf_config: of the folder.

    Raises:
        InputError: no weights, or a file that cannot be read.
    """

    def __init__(self, folder: str | Path, hf_config: Any) -> None:
        self.folder = Path(folder)
        self._family = FAMILIES[hf_config.model_type]
        self._sizes = head_sizes(hf_config)
        self._entries = _entries(self.folder)
        self._last: dict[str, Tensor] = {}
        for stacked in self._family.stacked:
            self._unstack(stacked, hf_config.num_hidden_layers)

    def check(self, pieces: Iterable[Piece]) -> None:
        """Check names, shapes and dtypes of everything before anything is read.

        Args:
            pieces: all that a model needs.

        Raises:
            InputError: a missing or left-over tensor, or one of a wrong shape or dtype.
        """
        shapes = {piece.name: piece.shape for piece in pieces}
        left_over = set(self._entries)
        for name, shape in shapes.items():
            self._check_one(name, shape)
            left_over -= set(self._family.find(name).hf)
        # Tied models may carry a copy of the embedding, and old ones the angles of the rotary embedding.
        tied = "output_layer.weight" not in shapes
        if tied and "lm_head.weight" in self._entries:
            self._check_copy("lm_head.weight", "model.embed_tokens.weight")
        left_over = {
            name for name in left_over if not (tied and name == "lm_head.weight") and "rotary_emb.inv_freq" not in name
        }
        if left_over:
            raise InputError(f"tensor {min(left_over)} has no place in the model", file=self.folder)

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that `read` will return."""
        dtype, *others = [_DTYPES[self._entries[hf].dtype] for hf in self._family.find(name).hf]
        for other in others:
            dtype = torch.promote_types(dtype, other)
        return dtype

    def read(self, name: str) -> Tensor:
        """Read one whole weight by Megatron's name, in the dtype of the file.

        The last one is kept, since gate and up are asked for one after the other; do not write to it.
        """
        if name not in self._last:
            # Before the next is read, so that there is one at a time.
            self._last.clear()
            entry = self._family.find(name)
            self._last[name] = fuse([self._entries[hf].read() for hf in entry.hf], entry.fusion, self._sizes)
        return self._last[name]

    def _check_copy(self, copy: str, original: str) -> None:
        if not torch.equal(self._entries[copy].read(), self._entries[original].read()):
            raise InputError(
                f"tensor {copy} is not {original}, though the config ties them",
                file=self.folder,
                allowed="tie_word_embeddings false in config.json",
            )

    def _check_one(self, name: str, shape: Size) -> None:
        entry = self._family.find(name)
        expected = split(torch.empty(shape, device="meta"), entry.fusion, self._sizes)
        for hf, part in zip(entry.hf, expected, strict=True):
            found = self._entries.get(hf)
            if found is None:
                raise InputError(f"tensor {hf} is missing", file=self.folder)
            if found.shape != part.shape:
                problem = f"tensor {hf} has the shape {list(found.shape)}"
                raise InputError(problem, file=found.file, allowed=str(list(part.shape)))
            if found.dtype not in _DTYPES:
                raise InputError(
                    f"tensor {hf} has the dtype {found.dtype}", file=found.file, allowed=", ".join(_DTYPES)
                )

    def _unstack(self, stacked: Stacked, layers: int) -> None:
        for layer in range(layers):
            whole = self._entries.pop(stacked.stacked.format(layer=layer), None)
            if whole is None:
                continue
            if len(whole.shape) != 3 or whole.shape[1] % len(stacked.hf):
                raise InputError(
                    f"tensor {whole.stored} has the shape {list(whole.shape)}",
                    file=whole.file,
                    allowed="[experts, rows, columns]",
                )
            rows = whole.shape[1] // len(stacked.hf)
            for expert in range(whole.shape[0]):
                for index, hf in enumerate(stacked.hf):
                    self._entries[hf.format(layer=layer, expert=expert)] = _Entry(
                        whole.file, whole.stored, Size((rows, whole.shape[2])), whole.dtype, expert, index * rows
                    )


@torch.no_grad()
def load_hf_weights(model: SegmentModel, hf_config: Any, folder: str | Path) -> None:
    """Copy a folder's weights into a rank's part of the model, in place, converted to its dtype.

    Padded rows of the vocabulary become 0.

    Raises:
        InputError: a missing or left-over tensor, or a wrong shape or dtype; nothing was copied then.
    """
    weights = HfWeights(folder, hf_config)
    pieces = list(weight_pieces(model))
    if model.config.pipeline_model_parallel_size == model.config.expert_model_parallel_size == 1:
        # Others see only some of the names, and cannot know what is left over.
        weights.check(pieces)
    for piece in pieces:
        piece.sharded.data.zero_()
        piece.target.copy_(weights.read(piece.name)[piece.region])


def _entries(folder: Path) -> dict[str, _Entry]:
    """All tensors of a folder by name, from the headers of its files."""
    index = folder / INDEX
    # Of both, transformers reads the single file; the index is left over from a former save.
    is_sharded = index.is_file() and not (folder / "model.safetensors").is_file()
    weight_map = _read_index(index) if is_sharded else None
    files = ["model.safetensors"] if weight_map is None else sorted(set(weight_map.values()))
    entries: dict[str, _Entry] = {}
    for name in files:
        entries |= _file_entries(folder / name)
    for tensor, name in (weight_map or {}).items():
        if tensor not in entries or entries[tensor].file.name != name:
            raise InputError(f"tensor {tensor} is not in {name}, where the index has it", file=index)
    return entries


def _read_index(index: Path) -> Mapping[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        if all(isinstance(name, str) and Path(name).name == name for name in weight_map.values()):
            return weight_map
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InputError("is not an index of weights", file=index, allowed='{"weight_map": {tensor: file}}')


def _file_entries(file: Path) -> dict[str, _Entry]:
    if not file.is_file():
        raise InputError("no such file; weights are read from safetensors", file=file)
    entries = {}
    try:
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - not a dict
                part = shard.get_slice(name)
                entries[name] = _Entry(file, name, Size(part.get_shape()), part.get_dtype())
    except SafetensorError as error:
        cut = _first_cut_tensor(file)
        problem = f"tensor {cut} is cut off" if cut else first_line(error)
        raise InputError(f"is not a whole safetensors file: {problem}", file=file) from error
    return entries


def _first_cut_tensor(file: Path) -> str | None:
    """The first tensor that reaches beyond the end of a file; None where its header cannot be read either.

    The format: 8 bytes with the header's length, the header in JSON, the data (github.com/huggingface/safetensors).
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 + length:
            return None
        try:
            header = json.loads(stream.read(length))
            ends = {name: part["data_offsets"][1] for name, part in header.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return None
    cut = [name for name, end in ends.items() if 8 + length + end > size]
    return min(cut, key=ends.__getitem__, default=None)
