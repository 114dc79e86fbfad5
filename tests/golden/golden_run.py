"""The golden run: how it is run, and what of it is stored."""

import json
from pathlib import Path
from typing import Any

from megatron_longstraw.config.load import load_config
from megatron_longstraw.trainer import train
from tests.run_files import metrics, rollouts

FOLDER = Path(__file__).parent
STORED = FOLDER / "run.json"
FIGURES = ("loss", "grad_norm", "reward/mean")

Steps = list[dict[str, Any]]


def golden_run(run_dir: str | Path, *overrides: str) -> Steps:
    """Runs it.

    Args:
        run_dir: where; the working directory is the repository's root.
        overrides: keys that differ from `config.yaml`.

    Returns:
        Of each step the figures and the sampled ids, by group and response.
    """
    train(load_config(FOLDER / "config.yaml", [f"run_dir={run_dir}", *overrides]))
    return [
        {name: line[name] for name in FIGURES}
        | {"ids": [[response["ids"] for response in group["responses"]] for group in groups]}
        for line, groups in zip(metrics(run_dir), rollouts(run_dir), strict=True)
    ]


def stored_steps() -> Steps:
    """Reads what is stored; empty where nothing is."""
    return json.loads(STORED.read_text()) if STORED.is_file() else []


def store(steps: Steps) -> None:
    """Writes what is stored, a group of ids a line."""
    blocks = []
    for step in steps:
        figures = [f"{json.dumps(name)}: {json.dumps(step[name])}" for name in FIGURES]
        ids = ",\n   ".join(json.dumps(group) for group in step["ids"])
        blocks.append(" {" + ",\n  ".join([*figures, f'"ids": [\n   {ids}]']) + "}")
    STORED.write_text("[\n" + ",\n".join(blocks) + "\n]\n")
