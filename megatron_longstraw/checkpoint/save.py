"""Saving a checkpoint: written aside, made durable, renamed, and only then named by the tracker file."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_longstraw.checkpoint import torch_dist
from megatron_longstraw.checkpoint.folder import (
    HF,
    PARTIAL,
    REPLACED,
    TRACKER,
    checkpoints_of,
    damage,
    folder_of,
    saved_iterations,
    sync,
    variant,
    write_durably,
    write_manifest,
)
from megatron_longstraw.checkpoint.random_state import save_random_state
from megatron_longstraw.engine.base import Engine

# Of a Hugging Face folder, everything but the weights: what it takes to build the model, to tokenize and to export.
HF_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "spiece.model",
    "chat_template*",
)
EXTRA = "extra.json"


def save_checkpoint(
    run_dir: str | Path, iteration: int, engine: Engine, extra: Mapping[str, Any], *, keep: int, hf_folder: str | Path
) -> Path:
    """Save weights, optimizer, random generators and `extra`; a stop at any moment leaves whole checkpoints only.

    Args:
        run_dir: the run's directory.
        iteration: number of the checkpoint; one that exists is replaced.
        engine: holds the weights and the optimizer.
        extra: whatever else a resumed run needs, as JSON can write it.
        keep: so many of the newest checkpoints stay, this one included; 0 keeps all.
        hf_folder: the Hugging Face folder whose config and tokenizer are stored along.

    Returns:
        The checkpoint's folder.
    """
    checkpoints = checkpoints_of(run_dir)
    checkpoints.mkdir(parents=True, exist_ok=True)
    for left_over in checkpoints.glob(f"iter_*{PARTIAL}"):
        shutil.rmtree(left_over)
    folder = folder_of(checkpoints, iteration)
    partial = variant(folder, PARTIAL)
    partial.mkdir()
    # First, since Megatron warns of anything else in the folder.
    torch_dist.write(engine.sharded_state_dict(is_loading=False), partial)
    copy_hf_files(Path(hf_folder), partial / HF)
    (partial / EXTRA).write_text(json.dumps(dict(extra), indent=1) + "\n")
    save_random_state(partial)
    write_manifest(partial)
    _put_in_place(partial, folder)
    write_durably(checkpoints / TRACKER, f"{iteration}\n")
    _remove_old(checkpoints, iteration, keep)
    return folder


def copy_hf_files(source: Path, target: Path) -> None:
    """Copy a Hugging Face folder without its weights into a new or an existing folder."""
    target.mkdir(exist_ok=True)
    for pattern in HF_FILES:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, target / file.name)


def _put_in_place(partial: Path, folder: Path) -> None:
    """Rename a complete folder to its name; a former one of that name goes aside, and is read until this is done."""
    replaced = variant(folder, REPLACED)
    if folder.exists():
        # After a stop between the two renames of a former save, the replaced one may be the only whole one.
        if replaced.exists() and damage(folder) is None:
            shutil.rmtree(replaced)
        if replaced.exists():
            shutil.rmtree(folder)
        else:
            folder.rename(replaced)
    partial.rename(folder)
    sync(folder.parent)


def _remove_old(checkpoints: Path, iteration: int, keep: int) -> None:
    """Remove what the tracker's new checkpoint makes superfluous."""
    for replaced in checkpoints.glob(f"iter_*{REPLACED}"):
        shutil.rmtree(replaced)
    # Higher numbers are from before the run went back to an older checkpoint; they are replaced when it gets there.
    former = [saved for saved in saved_iterations(checkpoints) if saved <= iteration]
    for old in former[keep:] if keep else []:
        shutil.rmtree(folder_of(checkpoints, old))
