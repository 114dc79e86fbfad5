"""The product driven as a user would: a model folder, a recorded rollout, a config; what comes out is a gradient."""

import json
from pathlib import Path

import yaml

from megatron_longstraw.checkpoint.families import to_hf
from megatron_longstraw.config.load import load_config
from megatron_longstraw.model.build import read_hf_config
from megatron_longstraw.trainer import Position, Trainer, build


def write_recorded(path, groups):
    """Write groups, each `{"prompt_ids": [...], "responses": [{"ids": [...], "reward": ...}, ...]}`, a line each."""
    Path(path).write_text("".join(json.dumps(group) + "\n" for group in groups))


def recorded_config(folder, hf_folder, groups, *, dtype="float64", overrides=()):
    """A checked config of one plain SGD step (lr 1, no clipping) on recorded groups."""
    folder = Path(folder)
    write_recorded(folder / "recorded.jsonl", groups)
    (folder / "config.yaml").write_text(
        yaml.safe_dump(
            {
                "run_dir": str(folder / "run"),
                "model": {"hf": str(hf_folder), "dtype": dtype},
                "rollout": {"source": "recorded", "path": str(folder / "recorded.jsonl")},
                "optimizer": {"name": "sgd", "lr": 1.0, "clip_grad": 0.0},
                "train": {"steps": 1, "groups_per_step": len(groups)},
                "tracking": {"progress": "off"},
            }
        )
    )
    return load_config(folder / "config.yaml", list(overrides))


def hf_weights(trainer: Trainer):
    """A copy of the model's weights under their Hugging Face names."""
    return _by_hf_name(trainer, {name: parameter.detach() for name, parameter in trainer.model.named_parameters()})


def hf_gradients(trainer: Trainer):
    """A copy of the finalized gradients under their Hugging Face names."""
    return _by_hf_name(trainer, {name: parameter.main_grad for name, parameter in trainer.model.named_parameters()})


def product_gradient(folder, hf_folder, groups, *, dtype="float64", overrides=()):
    """Run one step on recorded groups.

    Returns:
        Gradients by Hugging Face name, and the step's line of metrics.
    """
    config = recorded_config(folder, hf_folder, groups, dtype=dtype, overrides=overrides)
    with build(config) as trainer:
        _, line, _ = trainer.step(Position())
        return hf_gradients(trainer), line


def relative_error(actual, expected):
    """Relative L2 of the whole gradient; the names must be the same."""
    assert set(actual) == set(expected)
    difference = sum(float((actual[name].double() - expected[name].double()).norm() ** 2) for name in expected)
    return (difference / sum(float(expected[name].double().norm() ** 2) for name in expected)) ** 0.5


def _by_hf_name(trainer, tensors):
    hf_config = read_hf_config(trainer.hf_folder)
    named = to_hf(tensors, hf_config)
    return {name: tensor.clone() for name, tensor in named}
