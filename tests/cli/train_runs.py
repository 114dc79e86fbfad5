"""Runs through the real command line, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from tests.cli.reward_functions import EVENTS
from tests.run_files import checkpoint_weights, equal_weights, repeatable_metrics, rollouts

ROOT = Path(__file__).parents[2]
GOLDEN_CONFIG = "tests/golden/config.yaml"
# The golden run, made longer, saved between its steps, and open to events.
EVENTFUL = (
    "reward.function=tests.cli.reward_functions:eventful",
    "train.steps=8",
    "checkpoint.every=3",
    "checkpoint.keep=2",
)


def start(config: str | Path, *overrides: str, events: str = "") -> subprocess.Popen[str]:
    """Starts `longstraw train` in the repository's root."""
    return subprocess.Popen(
        [sys.executable, "-m", "megatron_longstraw", "train", str(config), *overrides],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", EVENTS: events},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(config: str | Path, *overrides: str, events: str = "") -> tuple[int, str]:
    """Runs `longstraw train` to its end; returns its exit status and what it wrote to stderr."""
    process = start(config, *overrides, events=events)
    _, errors = process.communicate()
    return process.returncode, errors


def run_eventful(run_dir: Path, events: str = "") -> tuple[int, str]:
    """Runs, or goes on with, the eventful golden run."""
    return run(GOLDEN_CONFIG, f"run_dir={run_dir}", *EVENTFUL, events=events)


def assert_same_run(run_dir: Path, reference: Path) -> None:
    """Metrics, samples and final weights are the same, bit for bit."""
    assert repeatable_metrics(run_dir) == repeatable_metrics(reference)
    assert rollouts(run_dir) == rollouts(reference)
    assert equal_weights(checkpoint_weights(run_dir, torch.float64), checkpoint_weights(reference, torch.float64))
