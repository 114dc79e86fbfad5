"""metrics.jsonl: one JSON object a step, durable, without NaN, and cut back on resume."""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

from megatron_longstraw.errors import InputError

PHASES = ("capture", "rollout", "score", "replay", "prompt_backward", "finalize", "step")

# Every figure of a line, in the order in which a line has them.
METRIC_NAMES = (
    "loss",
    "reward/mean",
    "reward/std",
    "advantage/abs_mean",
    "group/zero_spread",
    "policy/ratio_mean",
    "policy/clip_fraction",
    "policy/kl",
    "policy/entropy",
    "policy/logprob_drift",
    "grad_norm",
    "lr",
    "tokens/prompt",
    "tokens/response",
    "response/length_mean",
    "response/truncated",
    *(f"time/{phase}_s" for phase in PHASES),
    "throughput/tokens_per_s",
    "throughput/tflops",
    "memory/peak_bytes",
    "memory/state_bytes",
    "memory/cotangent_bytes",
)

# Besides, where the reward is the sum of several functions: each one's mean, absent where it scored nothing.
_OF_A_REWARD_FUNCTION = re.compile("reward/[^/]+/mean")

# What every line says about how its figures came to be.
CLAIM_NAMES = ("gradient", "state_age", "layout")

MetricsLine = Mapping[str, object]


class StepMetrics:
    """Collects one step's figures over its updates: times are summed, peaks are the highest, all others are averaged.

    Example:
        >>> step = StepMetrics()
        >>> step.add({"loss": 1.0, "time/score_s": 2.0, "memory/peak_bytes": 5})
        >>> step.add({"loss": 3.0, "time/score_s": 2.0, "memory/peak_bytes": 4})
        >>> step.figures()
        {'loss': 2.0, 'time/score_s': 4.0, 'memory/peak_bytes': 5}
    """

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, figures: Mapping[str, float]) -> None:
        """Adds the figures of one update; a figure of the step as a whole is added once.

        Args:
            figures: by name, finite, each one of `METRIC_NAMES` or `reward/<function>/mean`.
        """
        unknown = sorted(name for name in set(figures) - set(METRIC_NAMES) if not _OF_A_REWARD_FUNCTION.fullmatch(name))
        assert not unknown, f"not metric names: {unknown}"
        for name, value in figures.items():
            self._values.setdefault(name, []).append(value)

    def figures(self) -> dict[str, float]:
        """The step's figures so far, in the order of `METRIC_NAMES`, and then those of single reward functions."""
        names = [*METRIC_NAMES, *(name for name in self._values if name not in METRIC_NAMES)]
        return {name: _combine(name, self._values[name]) for name in names if name in self._values}

    def line(self, step: int, *, gradient: str | int, state_age: int, layout: Mapping[str, int]) -> dict[str, object]:
        """The finished step as a line of metrics.jsonl.

        Args:
            step: the step's number, from 1.
            gradient: `full`, `stop`, or the window in tokens.
            state_age: optimizer updates since the prompts were captured.
            layout: sizes by axis: tensor, pipeline, context, expert, data.
        """
        missing = [name for name in METRIC_NAMES if name not in self._values]
        assert not missing, f"a step ends without: {missing}"
        claim = {"gradient": gradient, "state_age": state_age, "layout": dict(layout)}
        return {"step": step, **claim, **self.figures()}


class MetricsLog:
    """Appends a run's lines to `metrics.jsonl`; a line that `append` has returned from survives a crash.

    Args:
        run_dir: the run's directory; it exists.
        resume_step: the last step that the resumed checkpoint holds; later lines are dropped, since their steps run
            again. None keeps every whole line.
    """

    def __init__(self, run_dir: str | Path, resume_step: int | None = None) -> None:
        self.path = Path(run_dir) / "metrics.jsonl"
        before = self.path.read_bytes() if self.path.exists() else None
        kept = _kept_lines(self.path, before or b"", resume_step)
        if kept != before:
            _replace(self.path, kept)

    def append(self, line: MetricsLine) -> None:
        """Writes one step's line.

        Args:
            line: as `StepMetrics.line` returns it; every number in it is finite.
        """
        absent = [name for name in ("step", *CLAIM_NAMES) if name not in line]
        assert not absent, f"a line of metrics.jsonl without {absent}"
        bad = [name for name, value in line.items() if value is None or not _is_finite(value)]
        assert not bad, f"not finite: {bad}"
        with self.path.open("ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, object]]:
        """All lines, oldest first."""
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]


def _combine(name: str, values: list[float]) -> float:
    if name.startswith("time/"):
        return sum(values)
    if name.startswith("memory/"):
        return max(values)
    return sum(values) / len(values)


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _kept_lines(path: Path, content: bytes, resume_step: int | None) -> bytes:
    # What follows the last line end was being written when the run was killed.
    whole = content.splitlines(keepends=True)
    if whole and not whole[-1].endswith(b"\n"):
        whole.pop()
    kept = []
    for number, line in enumerate(whole, start=1):
        try:
            step = json.loads(line)["step"]
        except (ValueError, TypeError, KeyError):
            raise InputError(
                "is not a line of metrics", file=path, line=number, allowed="a JSON object with step"
            ) from None
        if resume_step is None or step <= resume_step:
            kept.append(line)
    return b"".join(kept)


def _replace(path: Path, content: bytes) -> None:
    """Replaces a file so that a crash leaves the old one or the new one, never a part."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
