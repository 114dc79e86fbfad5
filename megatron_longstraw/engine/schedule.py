"""The learning rate of an update: a pure function of its number."""

import math

from megatron_longstraw.config.schema import OptimizerConfig


def learning_rate(update: int, total_updates: int, settings: OptimizerConfig) -> float:
    """Linear warm-up from `lr / (warmup_steps + 1)`, then constant, or cosine or linear down to 0 at the run's end.

    Args:
        update: number of the optimizer step, from 0.
        total_updates: optimizer steps of the whole run.
        settings: the optimizer's section.

    Example:
        >>> [learning_rate(n, 4, OptimizerConfig(lr=1.0, schedule="linear")) for n in range(4)]
        [1.0, 0.75, 0.5, 0.25]
    """
    if update < settings.warmup_steps:
        return settings.lr * (update + 1) / (settings.warmup_steps + 1)
    if settings.schedule == "constant":
        return settings.lr
    done = min(1.0, (update - settings.warmup_steps) / max(1, total_updates - settings.warmup_steps))
    return settings.lr * (0.5 * (1.0 + math.cos(math.pi * done)) if settings.schedule == "cosine" else 1.0 - done)
