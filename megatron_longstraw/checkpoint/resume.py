"""Finding a run's newest whole checkpoint and loading it, and refusing to go on with another run's directory."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies import torch as torch_dist

from megatron_longstraw.checkpoint.folder import (
    HF,
    REPLACED,
    TRACKER,
    checkpoints_of,
    damage,
    folder_of,
    saved_iterations,
    tracked_iteration,
    variant,
)
from megatron_longstraw.checkpoint.random_state import load_random_state
from megatron_longstraw.checkpoint.save import EXTRA
from megatron_longstraw.config.load import differing_keys, flatten, load_config
from megatron_longstraw.config.schema import Config
from megatron_longstraw.engine.base import Engine
from megatron_longstraw.errors import InputError, first_line
from megatron_longstraw.model.gpt import SegmentModel

# What a run is: with another value of one of these its numbers would mean something else.
IDENTITY = (
    "model",
    "data",
    "rollout",
    "reward",
    "objective",
    "replay.prompt_gradient",
    "replay.state_dtype",
    "replay.cotangent_dtype",
    "optimizer",
    "train.seed",
    "train.groups_per_step",
    "train.groups_per_update",
    "train.updates_per_rollout",
)


def check_same_run(run_dir: str | Path, config: Config) -> None:
    """Refuse a run directory that holds another run; more steps, another cadence or other tracking is the same run.

    A directory where no step was ever finished holds no run.

    Raises:
        InputError: it names the keys that differ.
    """
    file, metrics = Path(run_dir) / "config.yaml", Path(run_dir) / "metrics.jsonl"
    started = saved_iterations(checkpoints_of(run_dir)) or (metrics.is_file() and metrics.stat().st_size)
    # A run that failed before its first step was over has left nothing to protect.
    if not file.is_file() or not started:
        return
    former = load_config(file)
    keys = differing_keys(_comparable(former), _comparable(config), IDENTITY)
    if keys:
        values = flatten(former)
        differing = ", ".join(f"{key} (there {values[key]!r})" for key in keys)
        raise InputError(
            f"holds another run, which differs in {differing}", file=run_dir, allowed="the same run, or another run_dir"
        )


def _comparable(config: Config) -> Config:
    """The config with absolute paths, so that a place written in two ways is one; without the place of token ids."""

    def whole(path: str | None) -> str | None:
        return str(Path(path).resolve()) if path else path

    return replace(
        config,
        model=replace(config.model, hf=whole(config.model.hf), checkpoint=whole(config.model.checkpoint)),
        data=replace(config.data, prompts=whole(config.data.prompts), token_cache=None),
        rollout=replace(config.rollout, path=whole(config.rollout.path)),
    )


def latest_checkpoint(run_dir: str | Path) -> tuple[int, Path] | None:
    """Find the checkpoint to continue from.

    Returns:
        Iteration and folder of the one the tracker file names, or with a warning of the newest whole one before it;
        None where nothing was ever saved.

    Raises:
        InputError: there are checkpoints, and none is whole.
    """
    return _newest_whole(checkpoints_of(run_dir))


def load_checkpoint(folder: str | Path, engine: Engine) -> dict[str, Any]:
    """Load weights, optimizer and random generators, bit for bit as they were saved.

    Args:
        folder: from `latest_checkpoint`.
        engine: takes weights and optimizer, in place.

    Returns:
        What was saved as `extra`.
    """
    folder = Path(folder)
    extra = json.loads((folder / EXTRA).read_text())
    with input_errors(folder):
        engine.load_state_dict(dist_checkpointing.load(engine.sharded_state_dict(is_loading=True), str(folder)))
    load_random_state(folder)
    return extra


def load_weights(folder: str | Path, model: SegmentModel) -> None:
    """Load only the weights of another run's checkpoint, converted to the model's dtype.

    Args:
        folder: as in `checkpoint_folder`.
        model: takes them, in place; build it from the config in `hf_folder_of`.
    """
    folder = checkpoint_folder(folder)
    with input_errors(folder):
        state = dist_checkpointing.load({"model": model.sharded_state_dict()}, str(folder))
        model.load_state_dict(state["model"])


def hf_folder_of(folder: str | Path) -> Path:
    """The config and the tokenizer that a checkpoint holds, as a Hugging Face folder without weights.

    Args:
        folder: as in `checkpoint_folder`.
    """
    return checkpoint_folder(folder) / HF


def checkpoint_folder(folder: str | Path, key: str = "model.checkpoint") -> Path:
    """Find the checkpoint that `model.checkpoint` means.

    Args:
        folder: a checkpoint, a folder of checkpoints, or a run directory; of several the newest is taken.
        key: what the user calls it, for messages.

    Raises:
        InputError: there is none, or none that is whole.
    """
    folder = Path(folder)
    if (folder / EXTRA).is_file() or folder.name.startswith("iter_"):
        problem = damage(folder)
        if problem is not None:
            raise InputError(problem, file=folder, key=key, allowed="a whole checkpoint")
        return folder
    nested = checkpoints_of(folder)
    found = _newest_whole(nested if nested.is_dir() else folder)
    if found is None:
        raise InputError("holds no checkpoint", file=folder, key=key, allowed="a run directory, or its checkpoint")
    return found[1]


def _newest_whole(checkpoints: Path) -> tuple[int, Path] | None:
    tracked, saved = tracked_iteration(checkpoints), saved_iterations(checkpoints)
    has_tracker = (checkpoints / TRACKER).is_file()
    if not has_tracker and not saved:
        return None
    problems = [] if tracked is not None else [f"{TRACKER} {'names no iteration' if has_tracker else 'is missing'}"]
    if tracked is not None:
        saved = [tracked, *(iteration for iteration in saved if iteration < tracked)]
    for iteration in saved:
        folder = folder_of(checkpoints, iteration)
        for candidate in (folder, variant(folder, REPLACED)):
            problem = damage(candidate)
            if problem is None:
                if problems:
                    warnings.warn(f"{checkpoints}: {'; '.join(problems)}; going on from {candidate.name}", stacklevel=3)
                return iteration, candidate
            if candidate is folder:
                problems.append(f"{folder.name} {problem}")
    raise InputError(
        f"no checkpoint is whole: {'; '.join(problems)}",
        file=checkpoints,
        allowed="a whole checkpoint, or an empty folder to start over",
    )


@contextmanager
def input_errors(folder: Path) -> Iterator[None]:
    """Report weights of another shape or name, and unreadable files, as the folder's fault."""
    try:
        yield
    except CheckpointingException as error:
        raise InputError(f"does not fit the model: {first_line(error)}", file=folder) from error
    except torch_dist.checkpoint.CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        if not isinstance(cause, Exception):
            raise cause from error
        raise InputError(f"does not fit the model: {first_line(cause)}", file=folder) from error
