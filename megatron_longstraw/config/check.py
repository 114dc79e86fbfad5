"""Checks that concern several keys, what is not supported yet, and the files that a configuration names."""

import math
import os
from pathlib import Path

from megatron_longstraw.config.schema import (
    READY_MADE_REWARDS,
    Config,
    DataConfig,
    ModelConfig,
    RewardConfig,
    RolloutConfig,
)
from megatron_longstraw.errors import InputError


def check_config(config: Config) -> None:
    """Refuse keys that do not go together, and what is not supported yet; looks at no file.

    Raises:
        InputError: naming the first key that is wrong.
    """
    _check_supported(config)
    _check_model(config.model)
    _check_sources(config.data, config.rollout)
    _check_reward(config.reward, sampled=config.rollout.source == "sample")
    train = config.train
    if train.groups_per_update is not None and train.groups_per_update > train.groups_per_step:
        allowed = f"at most groups_per_step, {train.groups_per_step}"
        raise InputError(f"is {train.groups_per_update}", key="train.groups_per_update", allowed=allowed)


def check_files(config: Config) -> None:
    """Refuse a configuration whose model, prompts or run directory cannot be used; a quick look before any import.

    Raises:
        InputError: naming the first path that is wrong, or more ranks than are supported.
    """
    _check_ranks()
    for key, directory in (("model.hf", config.model.hf), ("model.checkpoint", config.model.checkpoint)):
        if directory is not None and not Path(directory).is_dir():
            raise InputError(f"{directory!r} is not a directory", key=key, allowed="an existing directory")
    recorded = config.rollout.source == "recorded"
    key, file = ("rollout.path", config.rollout.path) if recorded else ("data.prompts", config.data.prompts)
    if file is not None and not Path(file).is_file():
        raise InputError(f"there is no file {file!r}", key=key, allowed="an existing file")
    _check_run_dir(Path(config.run_dir))


def _check_supported(config: Config) -> None:
    """What the schema names and the program cannot do yet; a line goes when its feature comes."""
    parallel = config.parallel
    refusals = (
        ("objective.name", config.objective.name, "grpo"),
        ("objective.kl_coefficient", config.objective.kl_coefficient, 0.0),
        ("engine.name", config.engine.name, "megatron"),
        ("parallel.tensor", parallel.tensor, 1),
        ("parallel.pipeline", parallel.pipeline, 1),
        ("parallel.context", parallel.context, 1),
        ("parallel.expert", parallel.expert, 1),
        ("parallel.sequence_parallel", parallel.sequence_parallel, False),
        ("replay.tier", config.replay.tier, "device"),
    )
    for key, value, supported in refusals:
        if value != supported:
            raise InputError(f"{_yaml(value)} is not supported yet", key=key, allowed=_yaml(supported))


def _check_ranks() -> None:
    """Refuse a launcher's several ranks, which would all write the same run."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks != "1":
        raise InputError(f"{ranks} ranks were started, which is not supported yet", key="parallel", allowed="1 rank")


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _check_model(model: ModelConfig) -> None:
    if (model.hf is None) == (model.checkpoint is None):
        given = "both are given" if model.hf is not None else "neither is given"
        raise InputError(given, key="model", allowed="one of model.hf and model.checkpoint, a directory")
    if model.checkpoint is not None and model.init.seed is not None:
        raise InputError("draws random weights, but model.checkpoint has trained ones", key="model.init.seed")


def _check_sources(data: DataConfig, rollout: RolloutConfig) -> None:
    if rollout.source == "recorded":
        if rollout.path is None:
            raise InputError("is missing", key="rollout.path", allowed="a file of recorded rollouts")
        return
    if data.prompts is None:
        raise InputError("is missing", key="data.prompts", allowed="a file of prompts, .jsonl or .parquet")
    if rollout.group_size < 2:
        problem = f"is {rollout.group_size}: a response alone in its group has no advantage, so nothing is learnt"
        raise InputError(problem, key="rollout.group_size", allowed="an integer >= 2")
    if data.max_prompt_tokens is None and data.overlong != "error":
        problem = f"is {data.overlong} without a limit"
        raise InputError(problem, key="data.overlong", allowed="set data.max_prompt_tokens")


def _check_reward(reward: RewardConfig, *, sampled: bool) -> None:
    if not reward.functions:
        if reward.function is not None:
            _check_function(reward.function, reward.style, "reward")
        elif sampled:
            allowed = "a reward for sampled responses: module:function, a ready-made one, or reward.functions"
            raise InputError("is missing", key="reward.function", allowed=allowed)
        return
    if reward.function is not None:
        raise InputError("both are given", key="reward", allowed="one of reward.function and reward.functions")
    for name, value, default in (("kwargs", reward.kwargs, {}), ("style", reward.style, "trl")):
        if value != default:
            raise InputError("belongs into each entry of reward.functions", key=f"reward.{name}")
    for index, term in enumerate(reward.functions):
        key = f"reward.functions[{index}]"
        if term.function is None:
            raise InputError("is missing", key=f"{key}.function", allowed="module:function or a ready-made one")
        _check_function(term.function, term.style, key)
        if not math.isfinite(term.weight):
            raise InputError(f"is {term.weight}", key=f"{key}.weight", allowed="a finite number")


def _check_function(function: str, style: str, key: str) -> None:
    module, colon, name = function.partition(":")
    if function in READY_MADE_REWARDS:
        if style != "trl":
            raise InputError(f"is {style}, but {function} is a ready-made function", key=f"{key}.style", allowed="trl")
    elif not (module and colon and name):
        allowed = f"module:function, or one of {', '.join(READY_MADE_REWARDS)}"
        raise InputError(f"is {function!r}", key=f"{key}.function", allowed=allowed)


def _check_run_dir(run_dir: Path) -> None:
    existing = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    if not existing.is_dir():
        raise InputError(f"{str(existing)!r} is not a directory", key="run_dir", allowed="a directory to write to")
    if not os.access(existing, os.W_OK):
        raise InputError(f"{str(existing)!r} is not writable", key="run_dir", allowed="a directory to write to")
