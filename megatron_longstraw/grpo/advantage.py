"""Advantages: a response's reward compared with the other rewards of its group."""

from typing import Literal

import torch
from torch import Tensor

AdvantageScale = Literal["group_std", "none"]


def has_zero_spread(rewards: Tensor) -> bool:
    """Whether a group's rewards cannot tell its responses apart.

    Args:
        rewards: `[responses]`, NaN where a response is unscored.

    Returns:
        True when all scored rewards are equal, or when fewer than two responses are scored.
    """
    scored = rewards[~torch.isnan(rewards)]
    return scored.numel() < 2 or bool(scored.min() == scored.max())


def advantages(rewards: Tensor, *, scale: AdvantageScale, epsilon: float) -> Tensor:
    """Computes the advantages of one group's responses.

    `(r - mean) / (std + epsilon)` with `scale="group_std"` (std with Bessel's correction, as TRL and verl have it),
    `r - mean` with `scale="none"` (Dr. GRPO).

    Args:
        rewards: `[responses]`, float64, finite, or NaN where a response is unscored. Infinite rewards are refused where
            rewards enter the program.
        scale: what the difference to the group's mean is divided by.
        epsilon: added to the std.

    Returns:
        `[responses]`, in the rewards' dtype. Unscored responses get 0 and count in neither mean nor std. A group
        without spread, or with fewer than two scored responses, gets exact zeros.

    Example:
        >>> advantages(torch.tensor([0.0, 2.0, float("nan")], dtype=torch.float64), scale="none", epsilon=0.0)
        tensor([-1.,  1.,  0.], dtype=torch.float64)
    """
    assert not torch.isinf(rewards).any(), "rewards are finite, or NaN where unscored"
    # The spread is judged by equality: the std of equal rewards can round to something above 0.
    if has_zero_spread(rewards):
        return torch.zeros_like(rewards)
    is_scored = ~torch.isnan(rewards)
    scored = rewards[is_scored]
    centred = torch.where(is_scored, rewards - scored.mean(), 0.0)
    return centred / (scored.std(correction=1) + epsilon) if scale == "group_std" else centred
