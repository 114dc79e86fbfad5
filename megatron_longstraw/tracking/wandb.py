"""Weights & Biases through its own package, which is met only here and only when it is asked for."""

import importlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from megatron_longstraw.errors import InputError
from megatron_longstraw.tracking.metrics import MetricsLine

WandbMode = Literal["disabled", "offline", "online"]


class WandbRun:
    """One W&B run for the whole life of a run directory; a resumed run continues under the same id.

    `offline` needs neither an account nor a network; `wandb sync RUN_DIR/wandb/offline-run-*` uploads it later.

    Args:
        run_dir: the run's directory; W&B's files go into its `wandb/`.
        mode: `disabled` makes every method do nothing.
        project: W&B's project.
        name: the run's name shown there; None lets W&B choose.
        config: the resolved config, shown beside the run.

    Raises:
        InputError: the package is missing, or W&B refuses the account.
    """

    def __init__(
        self, run_dir: str | Path, *, mode: WandbMode, project: str, name: str | None, config: Mapping[str, object]
    ) -> None:
        self._run: Any = None
        if mode == "disabled":
            return
        wandb = _import_wandb(mode)
        directory = Path(run_dir) / "wandb"
        directory.mkdir(parents=True, exist_ok=True)
        # Standard output and error stay ours: W&B's capture of them would fight the progress display.
        settings = wandb.Settings(console="off", silent=True)
        try:
            self._run = wandb.init(
                # W&B appends `wandb/` itself.
                dir=str(run_dir),
                mode=mode,
                project=project,
                name=name,
                id=_run_id(directory / "run_id"),
                resume="allow" if mode == "online" else None,
                config=dict(config),
                settings=settings,
            )
        except wandb.errors.UsageError as error:
            raise InputError(
                f"W&B refused the run: {' '.join(str(error).split())}",
                key="tracking.wandb",
                allowed="mode disabled or offline, or a W&B account set up by `wandb login`",
            ) from error
        # Steps that run again after a resume have a number that W&B has seen; as an axis, that number may repeat.
        self._run.define_metric("*", step_metric="step")

    def append(self, line: MetricsLine) -> None:
        """Logs a step's line of metrics.jsonl."""
        if self._run is not None:
            self._run.log(dict(line))

    def close(self, *, failed: bool = False) -> None:
        """Writes out what is pending and ends the run; afterwards `append` does nothing."""
        if self._run is not None:
            self._run.finish(exit_code=int(failed))
            self._run = None


def _import_wandb(mode: WandbMode) -> ModuleType:
    # Read when the package is imported; without them it asks the network about itself even offline.
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    os.environ["WANDB_DISABLE_SENTRY"] = "1"
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise InputError(
            f"{mode} needs the package wandb, which cannot be imported ({error})",
            key="tracking.wandb.mode",
            allowed="disabled, or `pip install wandb`",
        ) from error


def _run_id(path: Path) -> str:
    if not path.exists():
        path.write_text(secrets.token_hex(4))
    return path.read_text().strip()
