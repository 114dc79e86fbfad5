"""A first signal asks a run to stop, a second one stops it, and afterwards signals do what they did before."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatron_longstraw.interrupt import Interrupts

Start = Callable[..., "subprocess.Popen[str]"]
ROOT = Path(__file__).parents[1]
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)

# Says when it is ready for a signal, and what came of it. The timer ends a pause that began just after the signal came.
PROGRAM = """
import signal, sys
from megatron_longstraw.interrupt import Interrupts
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
try:
    with Interrupts() as interrupts:
        print("ready", flush=True)
        while not interrupts.requested:
            signal.pause()
        print("saving", flush=True)
        while "second" in sys.argv:
            signal.pause()
except KeyboardInterrupt:
    print("stopped at once", flush=True)
    sys.exit(130)
print("saved", flush=True)
while "after" in sys.argv:
    signal.pause()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the program, and takes it down if a test did not."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        assert line(program) == "ready"
        return program

    yield run
    for program in started:
        program.kill()
        program.communicate()


def line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


@SIGNALS
def test_first_signal_lets_the_program_save(start: Start, number: signal.Signals) -> None:
    program = start()
    program.send_signal(number)
    output, errors = program.communicate()
    assert output.split() == ["saving", "saved"]
    assert program.returncode == 0
    assert errors == f"{number.name}: stopping after this step and saving; once more stops at once\n"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@SIGNALS
def test_second_signal_stops_at_once(start: Start, number: signal.Signals, second: signal.Signals) -> None:
    program = start("second")
    program.send_signal(number)
    assert line(program) == "saving"
    program.send_signal(second)
    output, errors = program.communicate()
    assert output == "stopped at once\n"
    assert program.returncode == 130
    assert errors.count("\n") == 1


def test_after_the_run_signals_do_what_they_did_before(start: Start) -> None:
    program = start("after")
    program.send_signal(signal.SIGINT)
    assert [line(program), line(program)] == ["saving", "saved"]
    program.send_signal(signal.SIGTERM)
    program.communicate()
    assert program.returncode == -signal.SIGTERM


def test_handlers_are_put_back_after_an_error() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(RuntimeError, match="broken"), Interrupts():
        raise RuntimeError("broken")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_handlers_are_put_back_after_a_second_signal() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_is_requested_without_a_signal() -> None:
    with Interrupts() as interrupts:
        assert not interrupts.requested
