"""Reward functions of runs that something happens to."""

import itertools
import os
import signal
from collections.abc import Sequence
from typing import Any

from tests.golden.reward import reward

# What happens when, as `call:event` with a comma between; a call is that of the process, from 1, one for each group.
EVENTS = "LONGSTRAW_TEST_EVENTS"
RAISE = "RAISE"

_calls = itertools.count(1)


def eventful(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """Rewards as the golden run does; at the calls named in the environment sends its process a signal, or raises."""
    this_call = next(_calls)
    for event in filter(None, os.environ.get(EVENTS, "").split(",")):
        call, name = event.split(":")
        if int(call) == this_call:
            if name == RAISE:
                raise ZeroDivisionError("no reward today")
            os.kill(os.getpid(), signal.Signals[name])
    return reward(completion_ids)


def raising(**_: Any) -> list[float]:
    raise ZeroDivisionError("no reward,\nand a second line")


def one_too_few(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [0.0] * (len(completion_ids) - 1)
