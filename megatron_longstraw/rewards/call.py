"""The reward of a response: one function's, or the weighted sum of several."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megatron_longstraw.config.schema import RewardConfig, RewardTermConfig
from megatron_longstraw.rewards.function import RewardFunction
from megatron_longstraw.types import Prompt


@dataclass(frozen=True)
class Score:
    """What a response is worth.

    Args:
        reward: a finite number; None where the response is unscored.
        parts: the reward by function where there are several, without their weights; None where one left it unscored.
    """

    reward: float | None
    parts: Mapping[str, float | None] = field(default_factory=dict)


class Reward:
    """The configured reward.

    Args:
        config: `reward` of a checked configuration.

    Raises:
        InputError: a function of it cannot be used, and the message names its key.

    Example:
        With the functions `exact_match`, weight 1, and `length_penalty`, weight 0.5, a right response that is too long
        gets `Score(0.5, {"exact_match": 1.0, "length_penalty": -1.0})`.
    """

    def __init__(self, config: RewardConfig) -> None:
        only = RewardTermConfig(function=config.function, kwargs=config.kwargs, style=config.style)
        keyed = {f"reward.functions[{index}]": term for index, term in enumerate(config.functions)} or {"reward": only}
        self._functions = [RewardFunction(term, key) for key, term in keyed.items()]
        self._weights = [term.weight for term in keyed.values()]
        self._names = _distinct([function.name for function in self._functions]) if config.functions else []

    def score(self, prompt: Prompt, completions: Sequence[str], completion_ids: Sequence[Sequence[int]]) -> list[Score]:
        """Score the responses of one group.

        A function that leaves a response unscored is left out of its sum, as in TRL; where all do, it is unscored.

        Args:
            prompt: the prompt.
            completions: the responses' texts.
            completion_ids: the responses' token ids.

        Raises:
            InputError: a function raised, or returned something else than a number for each response.
        """
        by_function = [function.score(prompt, completions, completion_ids) for function in self._functions]
        return [
            Score(_weighted_sum(self._weights, rewards), dict(zip(self._names, rewards, strict=False)))
            for rewards in zip(*by_function, strict=True)
        ]


def _weighted_sum(weights: Sequence[float], rewards: Sequence[float | None]) -> float | None:
    scored = [weight * reward for weight, reward in zip(weights, rewards, strict=True) if reward is not None]
    return sum(scored) if scored else None


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, of which a second `regex` becomes `regex_2`."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return distinct
