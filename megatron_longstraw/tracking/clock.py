"""Seconds spent in each phase of a step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Told the phase, and how many of how many pieces are done.
OnPhase = Callable[[str, int, int], None]


class PhaseClock:
    """Adds up the seconds of each phase; phases do not nest.

    Args:
        on_phase: told of progress within a phase.
    """

    def __init__(self, on_phase: OnPhase = lambda name, done, total: None) -> None:
        self._on_phase = on_phase
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[Callable[[int, int], None]]:
        """Time a phase; yields what to tell of its progress."""
        self._on_phase(phase, 0, 0)
        start = time.perf_counter()
        try:
            yield lambda done, total: self._on_phase(phase, done, total)
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The seconds so far, by phase; starts again from nothing."""
        seconds, self._seconds = self._seconds, {}
        return seconds
