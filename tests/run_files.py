"""What a run leaves behind, read back for comparison."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_longstraw.checkpoint.families import to_hf
from megatron_longstraw.checkpoint.resume import hf_folder_of, load_weights
from megatron_longstraw.device import cpu
from megatron_longstraw.model.build import build_model, read_hf_config
from megatron_longstraw.parallel.layout import process_groups

# Figures that another run of the same machine may not repeat.
MEASURED = ("time/", "memory/", "throughput/")


def metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """Reads the lines of `metrics.jsonl`."""
    return [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def repeatable_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """Reads the lines of `metrics.jsonl` without what is measured: time, memory, throughput."""
    return [{name: value for name, value in line.items() if not name.startswith(MEASURED)} for line in metrics(run_dir)]


def rollouts(run_dir: str | Path) -> list[list[dict[str, Any]]]:
    """Reads the groups of each step, as their lines have them."""
    files = sorted((Path(run_dir) / "rollouts").glob("step_*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def checkpoint_weights(run_dir: str | Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Reads the weights of a run's newest checkpoint, by their Hugging Face names."""
    cpu.install()
    with process_groups() as layout:
        hf_config = read_hf_config(hf_folder_of(run_dir))
        model = build_model(hf_config, dtype, layout)
        load_weights(run_dir, model)
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        named = to_hf(parameters, hf_config)
        return {name: tensor.clone() for name, tensor in named}


def equal_weights(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Tells whether two sets of weights are the same, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
