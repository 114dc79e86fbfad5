"""The one progress display of a run: live on a terminal, otherwise a plain line a step."""

import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from megatron_longstraw.tracking.metrics import MetricsLine

ProgressMode = Literal["auto", "off"]

_SPARKS = "▁▂▃▄▅▆▇█"
_BAR_WIDTH = 20
# Steps over which the time left is estimated, and which the sparkline shows.
_RECENT_STEPS = 24
# Where lines are shown, tokenizing a long document says this often how far it is.
_TOKENIZE_LINE_S = 10.0


class Progress:
    """Shows step, phase, speed, reward and the time left; a context manager, and one to a run.

    Args:
        mode: `off` shows nothing; `auto` is live when the stream is a terminal, and prints one line a step otherwise.
        total_steps: the run's last step.
        done_steps: steps done before this process, when resuming.
        stream: where to; standard error by default.
        clock: seconds; replaced in tests.

    Example:
        with Progress("auto", total_steps=10) as progress:
            progress.phase("capture", 3, 8)
            progress.step(line)
    """

    def __init__(
        self,
        mode: ProgressMode,
        *,
        total_steps: int,
        done_steps: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_steps = total_steps
        self._done_steps = done_steps
        self._clock = clock
        self._phase: tuple[str, int, int] = ("starting", 0, 0)
        self._line: MetricsLine = {}
        self._rewards: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._step_times: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._step_started = clock()
        self._tokenize_line = self._step_started
        self._console = Console(file=stream or sys.stderr)
        self._shows_lines = mode == "auto"
        self._live: Live | None = None
        if mode == "auto" and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._step_started = self._clock()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, name: str, done: int, total: int) -> None:
        """Says how far the current phase is; only stores it, so call it as often as you like.

        Args:
            name: the phase.
            done: pieces of it that are done, such as segments or tokens.
            total: pieces it has.
        """
        self._phase = (name, done, total)
        if name == "tokenize" and self._live is None and self._shows_lines:
            self._tokenized(done, total)

    def step(self, line: MetricsLine) -> None:
        """Says that a step is finished.

        Args:
            line: the step's line of metrics.jsonl.
        """
        now = self._clock()
        self._step_times.append(now - self._step_started)
        self._step_started = now
        self._done_steps += 1
        self._line = line
        self._rewards.append(_number(line, "reward/mean"))
        if self._live is None and self._shows_lines:
            loss = f"loss {_number(line, 'loss'):.4g}"
            self._console.print("  ".join([self._steps(), loss, *self._figures()]), highlight=False, soft_wrap=True)

    def _tokenized(self, done: int, total: int) -> None:
        now = self._clock()
        if done == 0:
            self._tokenize_line = now
        elif now - self._tokenize_line >= _TOKENIZE_LINE_S:
            self._tokenize_line = now
            self._console.print(f"tokenized {done:,} of {total:,} characters", highlight=False, soft_wrap=True)

    def _steps(self) -> str:
        return f"step {self._done_steps}/{self._total_steps}"

    def _figures(self) -> list[str]:
        if not self._line:
            return []
        figures = [
            f"reward {_number(self._line, 'reward/mean'):.3f}",
            f"{_number(self._line, 'throughput/tokens_per_s'):,.0f} tokens/s",
        ]
        left = self._seconds_left()
        return figures if left is None else [*figures, f"ETA {timedelta(seconds=round(left))}"]

    def _seconds_left(self) -> float | None:
        if not self._step_times:
            return None
        mean = sum(self._step_times) / len(self._step_times)
        return max(0.0, mean * (self._total_steps - self._done_steps) - (self._clock() - self._step_started))

    def _render(self) -> Text:
        name, done, total = self._phase
        filled = _BAR_WIDTH * self._done_steps // max(self._total_steps, 1)
        bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
        phase = f"{name} {done}/{total}" if total else name
        parts = [self._steps(), bar, f"{phase:<24}", *self._figures(), _sparkline(self._rewards)]
        return Text("  ".join(parts).rstrip(), no_wrap=True, overflow="ellipsis")


def _number(line: MetricsLine, name: str) -> float:
    value = line.get(name, 0.0)
    assert isinstance(value, (int, float)), f"{name}: {value!r}"
    return value


def _sparkline(values: deque[float]) -> str:
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] for value in tuple(values))
