"""Asks a run to stop when the user does: the first signal after saving, the second at once."""

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STDERR = 2


class Interrupts:
    """Takes SIGINT and SIGTERM while it is entered, and puts their former treatment back afterwards.

    Enter it in the main thread. The first signal sets `requested`, which the loop reads; the second raises
    KeyboardInterrupt where the program is, and a third one does what it would have done without this class.

    Example:
        >>> with Interrupts() as interrupts:
        ...     os.kill(os.getpid(), signal.SIGTERM)
        ...     interrupts.requested
        True
    """

    def __init__(self) -> None:
        self.requested = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self._restore()
            raise KeyboardInterrupt
        self.requested = True
        line = f"{signal.Signals(number).name}: stopping after this step and saving; once more stops at once\n"
        # The signal may come while sys.stderr is being written to, which allows no second writer; the pipe may be gone.
        with contextlib.suppress(OSError):
            os.write(_STDERR, line.encode())

    def _restore(self) -> None:
        for number, former in self._former.items():
            # None stands for what was installed from outside Python, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if former is None else former)
        self._former = {}
