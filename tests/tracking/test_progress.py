"""The progress display, on a stream that is a terminal and on one that is not."""

import io
from itertools import pairwise

import pytest

from megatron_longstraw.tracking.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def line(reward: float) -> dict[str, object]:
    return {"step": 1, "loss": 0.0125, "reward/mean": reward, "throughput/tokens_per_s": 12345.6}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")


def test_without_a_terminal_each_step_is_one_plain_line() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("auto", total_steps=4, stream=stream, clock=clock) as progress:
        progress.phase("capture", 1, 8)
        clock.now += 10
        progress.step(line(0.25))
        clock.now += 30
        progress.step(line(0.5))
    assert stream.getvalue().splitlines() == [
        "step 1/4  loss 0.0125  reward 0.250  12,346 tokens/s  ETA 0:00:30",
        # Two steps took 20 s on average, and two are left.
        "step 2/4  loss 0.0125  reward 0.500  12,346 tokens/s  ETA 0:00:40",
    ]


def test_without_a_terminal_long_tokenizing_is_a_line_every_ten_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("auto", total_steps=4, stream=stream, clock=clock) as progress:
        # A short document says nothing, however long ago the last one was.
        for seconds, done in ((0, 0), (1, 500), (30, 0), (6, 300), (6, 600), (6, 900), (6, 1200)):
            clock.now += seconds
            progress.phase("tokenize", done, 2000)
    assert stream.getvalue().splitlines() == [
        "tokenized 600 of 2,000 characters",
        "tokenized 1,200 of 2,000 characters",
    ]


def test_off_shows_nothing() -> None:
    clock = Clock()
    for stream in (io.StringIO(), Terminal()):
        with Progress("off", total_steps=2, stream=stream, clock=clock) as progress:
            progress.phase("capture", 1, 8)
            progress.phase("tokenize", 0, 2000)
            clock.now += 30
            progress.phase("tokenize", 1000, 2000)
            progress.step(line(0.25))
        assert stream.getvalue() == ""


def test_on_a_terminal_the_display_shows_phase_and_figures() -> None:
    stream, clock = Terminal(), Clock()
    with Progress("auto", total_steps=4, stream=stream, clock=clock) as progress:
        for reward in (0.0, 1.0):
            clock.now += 10
            progress.step(line(reward))
        progress.phase("prompt backward", 3, 8)
        clock.now += 5
    shown = stream.getvalue()
    assert "\x1b[" in shown
    for part in ("step 2/4", "prompt backward 3/8", "reward 1.000", "12,346 tokens/s", "ETA 0:00:15", "▁█"):
        assert part in shown


def test_a_resumed_run_counts_on_and_times_only_its_own_steps() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress("auto", total_steps=100, done_steps=97, stream=stream, clock=clock) as progress:
        clock.now += 7
        progress.step(line(0.5))
    assert stream.getvalue().startswith("step 98/100 ")
    assert "ETA 0:00:14" in stream.getvalue()


def test_the_display_is_closed_when_the_run_fails() -> None:
    stream = Terminal()
    with pytest.raises(RuntimeError), Progress("auto", total_steps=4, stream=stream):
        raise RuntimeError
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert stream.getvalue().rindex(show) > stream.getvalue().rindex(hide)


def test_saying_the_phase_writes_nothing() -> None:
    stream = io.StringIO()
    with Progress("auto", total_steps=4, stream=stream) as progress:
        for before, after in pairwise(range(1000)):
            progress.phase("replay", before, after)
    assert stream.getvalue() == ""
