"""The golden run's reward: a pure function of the sampled ids, with a spread in almost any group."""

from collections.abc import Sequence
from typing import Any


def reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """Computes the share of ids below 48, and a little for each id."""
    return [sum(token < 48 for token in ids) / len(ids) + len(ids) / 64 for ids in completion_ids]
