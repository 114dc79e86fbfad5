"""Rewards that come along."""

import torch

from megatron_longstraw.rewards.call import Reward
from megatron_longstraw.types import Prompt


def score(function: str, answer: object, *completions: str) -> list[float | None]:
    prompt = Prompt(torch.tensor([1]), text="?", columns={"answer": answer, "other": 1})
    reward = Reward(f"megatron_longstraw.rewards.builtin:{function}", {})
    return reward.score(prompt, completions, [[1]] * len(completions))


def test_an_exact_match_is_the_whole_completion() -> None:
    assert score("exact_match", "4 2", "4 2", " 4 2\n", "4 2 0", "42", "") == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_an_answer_may_be_contained() -> None:
    assert score("contains", 42, "it is 42.", "4 2", "42") == [1.0, 0.0, 1.0]
