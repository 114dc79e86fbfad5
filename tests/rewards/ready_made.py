"""Calls a ready-made reward on texts and, since they must be worth the same, on chats."""

import torch

from megatron_longstraw.config.schema import RewardTermConfig
from megatron_longstraw.rewards.function import RewardFunction
from megatron_longstraw.types import Prompt

NO_ANSWER = object()


def score(
    function: str, answer: object, *completions: str, columns: dict[str, object] | None = None, **kwargs: object
) -> list[float | None]:
    row = dict(columns or {}) | ({} if answer is NO_ANSWER else {"answer": answer})
    reward = RewardFunction(RewardTermConfig(function=function, kwargs=kwargs), "reward")
    ids = [[1]] * len(completions)
    texts = reward.score(Prompt(torch.tensor([1]), text="?", columns=row), completions, ids)
    messages = [{"role": "user", "content": "?"}]
    chats = reward.score(Prompt(torch.tensor([1]), text=messages, columns=row), completions, ids)
    assert chats == texts
    return texts
