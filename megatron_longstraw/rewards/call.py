"""Calls the configured reward function, once per group, and checks what it returns."""

import importlib
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megatron_longstraw.errors import InputError
from megatron_longstraw.types import Prompt

# What the function gets by these names does not come from a column.
_RESERVED = ("prompts", "completions", "completion_ids")


class Reward:
    """A reward function and what it is called with.

    Args:
        function: `module:function`; the working directory is importable.
        kwargs: handed over by name, before a column of the same name.

    Raises:
        InputError: there is no such function, or its module cannot be imported.
    """

    def __init__(self, function: str, kwargs: Mapping[str, object]) -> None:
        self._name = function
        self._function = _import_function(function)
        self._kwargs = dict(kwargs)

    def score(
        self, prompt: Prompt, completions: Sequence[str], completion_ids: Sequence[Sequence[int]]
    ) -> list[float | None]:
        """Score the responses of one group.

        The function is called as TRL does: `f(prompts, completions, completion_ids, **columns)`, where `prompts` and
        each of the prompt's columns are lists with the same value for every response. For a prompt of chat messages a
        completion is a list with the assistant's message, otherwise a text.

        Args:
            prompt: the prompt; one that has only ids is handed over as ids.
            completions: the responses' texts.
            completion_ids: the responses' token ids.

        Returns:
            A finite number for each response, None where the function returned None or NaN: unscored.

        Raises:
            InputError: the function raised, or returned something else than such numbers.
        """
        count = len(completions)
        shown = prompt.ids.tolist() if prompt.text is None else prompt.text
        # As in TRL, a chat is answered by a chat: a list with the assistant's message.
        answers: list[Any] = list(completions)
        if isinstance(prompt.text, list):
            answers = [[{"role": "assistant", "content": text}] for text in completions]
        columns = {name: [value] * count for name, value in prompt.columns.items() if name not in _RESERVED}
        try:
            returned = self._function(
                prompts=[shown] * count,
                completions=answers,
                completion_ids=[list(ids) for ids in completion_ids],
                **(columns | self._kwargs),
            )
        # The user's function may raise anything.
        except Exception as error:
            raise self._error(f"raised {_described(error)}", prompt) from error
        return self._checked(returned, count, prompt)

    def _checked(self, returned: Any, count: int, prompt: Prompt) -> list[float | None]:
        if isinstance(returned, (str, bytes, Mapping)) or not hasattr(returned, "__iter__"):
            raise self._error(f"returned {returned!r:.80}", prompt, f"a list of {count} numbers")
        rewards = list(returned)
        if len(rewards) != count:
            raise self._error(f"returned {len(rewards)} rewards for {count} responses", prompt, "one for each response")
        return [self._number(reward, prompt) for reward in rewards]

    def _number(self, reward: Any, prompt: Prompt) -> float | None:
        if reward is None:
            return None
        number = math.inf
        if hasattr(reward, "__float__") and not isinstance(reward, str):
            number = float(reward)
        if math.isinf(number):
            raise self._error(f"returned the reward {reward!r:.80}", prompt, "a finite number, or None where unscored")
        return None if math.isnan(number) else number

    def _error(self, problem: str, prompt: Prompt, allowed: str | None = None) -> InputError:
        place = f" for the prompt at {prompt.source}" if prompt.source else ""
        return InputError(f"{self._name} {problem}{place}", key="reward.function", allowed=allowed)


def _import_function(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function: Any = importlib.import_module(module_name)
    # The user's module runs when it is imported, and may raise anything.
    except Exception as error:
        problem = f"{module_name!r} cannot be imported: {_described(error)}"
        raise InputError(problem, key="reward.function", allowed="module:function, importable from here") from error
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        problem = f"{module_name!r} has no function {attribute!r}"
        raise InputError(problem, key="reward.function", allowed="module:function, importable from here")
    return function


def _described(error: Exception) -> str:
    """The error's type, message and place in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    message = " ".join(str(error).split())
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {message}{place}"
