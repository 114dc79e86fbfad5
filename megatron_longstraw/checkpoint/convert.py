"""Conversion between a Hugging Face folder and a checkpoint, both ways, a few weights in memory at a time."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from safetensors.torch import save_file
from torch import Tensor

from megatron_longstraw.checkpoint import families, torch_dist
from megatron_longstraw.checkpoint.folder import HF, TRACKER, folder_of, write_manifest
from megatron_longstraw.checkpoint.hf_read import INDEX, HfWeights
from megatron_longstraw.checkpoint.new_folder import new_folder
from megatron_longstraw.checkpoint.pieces import Piece, built, weight_pieces
from megatron_longstraw.checkpoint.resume import checkpoint_folder, input_errors
from megatron_longstraw.checkpoint.save import copy_hf_files
from megatron_longstraw.device import cpu
from megatron_longstraw.errors import InputError
from megatron_longstraw.model.build import build_shapes, read_hf_config
from megatron_longstraw.model.gpt import SegmentModel
from megatron_longstraw.parallel.layout import process_groups

# Told of bytes done, of how many.
OnProgress = Callable[[int, int], None]
DtypeName = Literal["float32", "bfloat16", "float16", "float64"]

# A file of weights in an exported folder is about so large at most.
SHARD_BYTES = 4 * 10**9
# So many bytes of a checkpoint are read at once.
_READ_BYTES = 32 * 2**20


def to_megatron(hf: str | Path, out: str | Path, *, on_progress: OnProgress = lambda done, total: None) -> Path:
    """Make a checkpoint of a Hugging Face folder: the weights in their own dtypes, the config and the tokenizer.

    Args:
        hf: the folder.
        out: a new or an empty folder; `model.checkpoint` takes it.
        on_progress: told of bytes.

    Returns:
        `out`.

    Raises:
        InputError: the folder is not a whole model of a supported family, or `out` cannot be written. There is no
            `out` then.
    """
    hf, out = Path(hf), Path(out)
    hf_config = read_hf_config(hf, "--hf")
    with new_folder(out, "--out") as partial, _shapes(hf_config) as model:
        weights = HfWeights(hf, hf_config)
        pieces = list(weight_pieces(model))
        weights.check(pieces)
        places = {(piece.sharded.key, piece.sharded.global_offset): piece for piece in pieces}
        total = sum(piece.sharded.data.numel() * weights.dtype(piece.name).itemsize for piece in pieces)
        done = 0

        def read_piece(key: str, offset: tuple[int, ...]) -> Tensor:
            nonlocal done
            piece = places[key, offset]
            part = weights.read(piece.name)[piece.region].contiguous()
            done += part.nbytes
            on_progress(done, total)
            return part.view(*(1,) * piece.sharded.prepend_axis_num, *part.shape)

        folder = folder_of(partial, 0)
        folder.mkdir()
        state = {
            name: _with_dtype(item, weights.dtype(name)) if built(item) else item
            for name, item in model.sharded_state_dict().items()
        }
        torch_dist.write({"model": state}, folder, read_piece)
        copy_hf_files(hf, folder / HF)
        write_manifest(folder)
        (partial / TRACKER).write_text("0\n")
    return out


def to_hf(
    checkpoint: str | Path,
    out: str | Path,
    *,
    dtype: DtypeName | None = None,
    shard_bytes: int = SHARD_BYTES,
    on_progress: OnProgress = lambda done, total: None,
) -> Path:
    """Make a Hugging Face folder of a checkpoint; `transformers` loads it as it does the folder the run began with.

    Args:
        checkpoint: a checkpoint, a folder of checkpoints, or a run directory; of several the newest is taken.
        out: a new or an empty folder.
        dtype: of the weights; None keeps the checkpoint's.
        shard_bytes: the size of a file of weights, at most, unless a single tensor is larger.
        on_progress: told of bytes.

    Returns:
        `out`.

    Raises:
        InputError: there is no whole checkpoint, or `out` cannot be written. There is no `out` then.
    """
    folder, out = checkpoint_folder(checkpoint, key="--checkpoint"), Path(out)
    hf_config = read_hf_config(folder / HF)
    with new_folder(out, "--out") as partial, _shapes(hf_config) as model, input_errors(folder):
        pieces: dict[str, list[Piece]] = {}
        for piece in weight_pieces(model):
            pieces.setdefault(piece.name, []).append(piece)
        stored = _stored_dtypes(folder, pieces)
        target = None if dtype is None else getattr(torch, dtype)
        sizes = {name: parts[0].shape.numel() * (target or stored[name]).itemsize for name, parts in pieces.items()}
        shards = _batches(sizes, shard_bytes)
        names = _file_names(len(shards))
        weight_map: dict[str, str] = {}
        done = 0
        for file, shard in zip(names, shards, strict=True):
            tensors: dict[str, Tensor] = {}
            for batch in _batches({name: sizes[name] for name in shard}, _READ_BYTES):
                for name, whole in _load(folder, {name: pieces[name] for name in batch}, stored):
                    for hf, part in families.to_hf({name: whole}, hf_config):
                        # Each part has memory of its own, as safetensors wants it.
                        tensors[hf] = part.to(target or part.dtype, copy=True, memory_format=torch.contiguous_format)
                    done += sizes[name]
                on_progress(done, sum(sizes.values()))
            save_file(tensors, partial / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(tensors, file)
        if len(names) > 1:
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(weight_map.items()))}
            (partial / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        copy_hf_files(folder / HF, partial)
        _state_dtype(partial / "config.json", {target or stored[name] for name in pieces})
    return out


@contextmanager
def _shapes(hf_config: Any) -> Iterator[SegmentModel]:
    """The whole model without memory, on a single rank."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("conversion runs on a single rank", allowed="longstraw convert without a launcher")
    cpu.install()
    with process_groups() as layout:
        yield build_shapes(hf_config, layout)


def _with_dtype(item: ShardedTensor | ShardedTensorFactory, dtype: torch.dtype) -> ShardedTensor | ShardedTensorFactory:
    """An entry of a sharded state dict that has no data, with another dtype."""
    data = item.data.to(dtype)
    return replace(item, data=data, dtype=dtype) if isinstance(item, ShardedTensor) else replace(item, data=data)


def _stored_dtypes(folder: Path, names: Mapping[str, Sequence[Piece]]) -> dict[str, torch.dtype]:
    """The dtype in which a checkpoint holds each weight."""
    stored = dist_checkpointing.load_tensors_metadata(str(folder))
    for name, pieces in names.items():
        if pieces[0].sharded.key not in stored:
            raise InputError(f"tensor {name} is missing", file=folder)
    return {name: stored[pieces[0].sharded.key].dtype for name, pieces in names.items()}


def _load(
    folder: Path, names: Mapping[str, Sequence[Piece]], dtypes: Mapping[str, torch.dtype]
) -> Iterator[tuple[str, Tensor]]:
    """Read some whole weights of a checkpoint."""
    wanted = {
        f"{name} {index}": piece.alone(dtypes[name])
        for name, pieces in names.items()
        for index, piece in enumerate(pieces)
    }
    # Only a part of the checkpoint is wanted at once, which Megatron would take for a mistake.
    loaded = dist_checkpointing.load(wanted, str(folder), validate_access_integrity=False)
    for name, pieces in names.items():
        parts = [
            loaded.pop(f"{name} {index}").flatten(0, piece.sharded.prepend_axis_num)
            for index, piece in enumerate(pieces)
        ]
        # Parts of one weight are rows of it, in order.
        yield name, parts[0] if len(parts) == 1 else torch.cat(parts)


def _batches(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Cut names, in their order, into batches of at most `limit` bytes, each of one name or more."""
    batches: list[list[str]] = []
    filled = 0
    for name, size in sizes.items():
        if not batches or filled + size > limit:
            batches.append([])
            filled = 0
        batches[-1].append(name)
        filled += size
    return batches


def _file_names(count: int) -> Sequence[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _state_dtype(file: Path, dtypes: set[torch.dtype]) -> None:
    """Write the weights' dtype into a config that states another, since transformers loads them in what it states."""
    config = json.loads(file.read_text())
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else torch.float32
    name = str(dtype).removeprefix("torch.")
    stated = [key for key in ("dtype", "torch_dtype") if key in config]
    if any(config[key] != name for key in stated) or not stated:
        config |= dict.fromkeys(stated or ["dtype"], name)
        file.write_text(json.dumps(config, indent=2) + "\n")
