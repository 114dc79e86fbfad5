"""A limit on the time of code that cannot be trusted to end, such as a search with a user's regular expression."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the code within after some seconds of wall-clock time.

    It works in the main thread, where signals arrive; in another thread there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        # None stands for what was installed from outside Python, and cannot be put back.
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
