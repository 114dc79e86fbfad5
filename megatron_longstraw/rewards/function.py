"""One reward function: found by its name, called as TRL or verl do, and what it returns checked."""

import asyncio
import copy
import importlib
import inspect
import math
import os
import sys
import traceback
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from megatron_longstraw.config.schema import RewardTermConfig
from megatron_longstraw.errors import InputError
from megatron_longstraw.rewards.builtin import READY_MADE
from megatron_longstraw.types import Prompt

# What the function gets by these names does not come from a column.
_RESERVED = ("prompts", "completions", "completion_ids")


class RewardFunction:
    """A reward function and what it is called with.

    Args:
        config: `function` is the name of a ready-made one, or `module:function`, importable also from the working
            directory; `kwargs` are handed over by name, before a column of the same name.
        key: the config section of these, for messages.

    Raises:
        InputError: there is no such function, its module cannot be imported, or a ready-made one lacks an option or has
            no such option.
    """

    def __init__(self, config: RewardTermConfig, key: str) -> None:
        self._name = config.function or ""
        self._key = key
        self._verl = config.style == "verl"
        self._kwargs = dict(config.kwargs)
        self._function = READY_MADE.get(self._name) or _import_function(self._name, f"{key}.function")
        # Options of ready-made functions come from the config alone, so a column of that name is not handed over.
        self._not_columns = set(_RESERVED)
        if self._function in READY_MADE.values():
            self._not_columns |= _checked_options(self._function, self._kwargs, f"{key}.kwargs")
        # One event loop for all calls, since clients of judges keep connections in it; it starts with the first call.
        self._runner = asyncio.Runner()
        weakref.finalize(self, self._runner.close)

    @property
    def name(self) -> str:
        """The function's name without its module."""
        return self._name.rpartition(":")[2]

    def score(
        self, prompt: Prompt, completions: Sequence[str], completion_ids: Sequence[Sequence[int]]
    ) -> list[float | None]:
        """Score the responses of one group.

        In TRL's style there is one call, `f(prompts, completions, completion_ids, **columns)`, where `prompts` and each
        of the prompt's columns are lists with the same value for every response. For a prompt of chat messages a
        completion is a list with the assistant's message, otherwise a text. In verl's style there is a call for each
        response, `f(data_source, solution_str, ground_truth, extra_info)`, from the columns `data_source`,
        `reward_model` and `extra_info`. An async function is awaited, in verl's style all responses together.

        Args:
            prompt: the prompt; one that has only ids is handed over as ids.
            completions: the responses' texts.
            completion_ids: the responses' token ids.

        Returns:
            A finite number for each response, None where the function returned None or NaN: unscored.

        Raises:
            InputError: the function raised, returned something else than such numbers, or misses a column.
        """
        try:
            if self._verl:
                calls = self._verl_calls(prompt, completions)
                returned: Any = [_score_of(result) for result in self._awaited(calls)]
            else:
                (returned,) = self._awaited([self._trl_call(prompt, completions, completion_ids)])
        except InputError as error:
            raise self._error(str(error), prompt) from error
        # The user's function may raise anything.
        except Exception as error:
            raise self._error(f"raised {_described(error)}", prompt) from error
        return self._checked(returned, len(completions), prompt)

    def _trl_call(self, prompt: Prompt, completions: Sequence[str], completion_ids: Sequence[Sequence[int]]) -> Any:
        count = len(completions)
        shown = prompt.ids.tolist() if prompt.text is None else prompt.text
        # As in TRL, a chat is answered by a chat: a list with the assistant's message.
        answers: list[Any] = list(completions)
        if isinstance(prompt.text, list):
            answers = [[{"role": "assistant", "content": text}] for text in completions]
        columns = {name: [value] * count for name, value in prompt.columns.items() if name not in self._not_columns}
        return self._function(
            prompts=[shown] * count,
            completions=answers,
            completion_ids=[list(ids) for ids in completion_ids],
            **(columns | self._kwargs),
        )

    def _verl_calls(self, prompt: Prompt, completions: Sequence[str]) -> list[Any]:
        model = prompt.columns.get("reward_model")
        if not isinstance(model, Mapping) or "ground_truth" not in model:
            missing = "a column reward_model" if model is None else "ground_truth in the column reward_model"
            raise InputError(f"in the style of verl needs {missing}")
        return [
            self._function(
                data_source=prompt.columns.get("data_source"),
                solution_str=text,
                ground_truth=model["ground_truth"],
                # Functions written for verl may note something in it.
                extra_info=copy.deepcopy(prompt.columns.get("extra_info") or {}),
                **self._kwargs,
            )
            for text in completions
        ]

    def _awaited(self, results: list[Any]) -> list[Any]:
        if not any(inspect.isawaitable(result) for result in results):
            return results
        return self._runner.run(_gathered(results))

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
        return InputError(f"{self._name} {problem}{place}", key=f"{self._key}.function", allowed=allowed)


async def _gathered(awaitables: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*awaitables)


def _score_of(result: Any) -> Any:
    """What a function in verl's style returned, of a mapping its `score`."""
    if not isinstance(result, Mapping):
        return result
    if "score" not in result:
        raise InputError(f"returned a mapping without score: {dict(result)!r:.80}")
    return result["score"]


def _checked_options(function: Callable[..., Any], kwargs: Mapping[str, object], key: str) -> set[str]:
    """The names of a ready-made function's options, after a look at those that are given."""
    parameters = inspect.signature(function).parameters.values()
    options = {item.name: item.default for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY}
    for name in kwargs:
        if name not in options:
            raise InputError(f"{function.__name__} has no option {name!r}", key=key, allowed=", ".join(options))
    missing = [name for name, default in options.items() if default is inspect.Parameter.empty and name not in kwargs]
    if missing:
        raise InputError(f"{function.__name__} needs {' and '.join(missing)}", key=key)
    try:
        function([], [], [], **kwargs)
    except InputError as error:
        raise InputError(f"{function.__name__} {error}", key=key) from error
    except TypeError as error:
        raise InputError(f"{function.__name__} cannot use {dict(kwargs)!r}: {error}", key=key) from error
    return set(options)


def _import_function(name: str, key: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function: Any = importlib.import_module(module_name)
    # The user's module runs when it is imported, and may raise anything.
    except Exception as error:
        problem = f"{module_name!r} cannot be imported: {_described(error)}"
        raise InputError(problem, key=key, allowed="module:function, importable from here") from error
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        problem = f"{module_name!r} has no function {attribute!r}"
        raise InputError(problem, key=key, allowed="module:function, importable from here")
    return function


def _described(error: Exception) -> str:
    """The error's type, message and place in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    message = " ".join(str(error).split())
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames[-1].filename != __file__ else ""
    return f"{type(error).__name__}: {message}{place}"
