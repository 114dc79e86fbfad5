"""The call of a reward function, TRL's way, and what it may return."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from megatron_longstraw.errors import InputError
from megatron_longstraw.rewards.call import Reward
from megatron_longstraw.types import Prompt

PROMPT = Prompt(torch.tensor([4, 5]), text="a b", columns={"answer": "c", "prompts": "x"}, source="p.jsonl:3")

MODULE = """
import numpy, torch
calls = []
def record(prompts, completions, completion_ids, **columns):
    calls.append((prompts, completions, completion_ids, columns))
    return [0.0] * len(completions)
def none_and_nan(completions, **rest): return [None, float("nan")]
def numbers(completions, **rest): return (True, numpy.float32(0.5))
def tensor(completions, **rest): return torch.tensor([1.0, 0.25], dtype=torch.float64)
def too_few(completions, **rest): return [1.0]
def single(completions, **rest): return 1.0
def text(completions, **rest): return "ab"
def texts(completions, **rest): return ["1", "2"]
def infinite(completions, **rest): return [1.0, float("inf")]
def broken(completions, answers, **rest): return answers
def raising(completions, **rest):
    raise KeyError("two\\nlines")
constant = 3
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "their_rewards.py").write_text(MODULE)
    (tmp_path / "broken_rewards.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    sys.modules.pop("their_rewards", None)


def score(function: str, **kwargs: object) -> list[float | None]:
    return Reward(f"their_rewards:{function}", kwargs).score(PROMPT, ["c", "d"], [[6], [7, 0]])


def test_columns_are_repeated_for_every_response_and_kwargs_are_not() -> None:
    assert score("record", scale=2) == [0.0, 0.0]
    assert sys.modules["their_rewards"].calls == [
        (["a b", "a b"], ["c", "d"], [[6], [7, 0]], {"answer": ["c", "c"], "scale": 2})
    ]


def test_messages_are_handed_over_as_messages_and_ids_as_ids() -> None:
    messages = [{"role": "user", "content": "a"}]
    reward = Reward("their_rewards:record", {})
    reward.score(Prompt(torch.tensor([4]), text=messages), ["c"], [[6]])
    reward.score(Prompt(torch.tensor([4])), ["c"], [[6]])
    assert [call[0] for call in sys.modules["their_rewards"].calls] == [[messages], [[4]]]


@pytest.mark.parametrize(
    ("function", "rewards"), [("none_and_nan", [None, None]), ("numbers", [1.0, 0.5]), ("tensor", [1.0, 0.25])]
)
def test_any_kind_of_number_is_accepted_and_none_means_unscored(function: str, rewards: list[float | None]) -> None:
    scored = score(function)
    assert scored == rewards
    assert {type(reward) for reward in scored} <= {float, type(None)}


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("too_few", "returned 1 rewards for 2 responses for the prompt at p.jsonl:3 (allowed: one for each response)"),
        ("single", "returned 1.0 for the prompt at p.jsonl:3 (allowed: a list of 2 numbers)"),
        ("text", "returned 'ab' for the prompt"),
        ("texts", "returned the reward '1' for the prompt"),
        ("infinite", "returned the reward inf for the prompt"),
        ("broken", "raised TypeError: broken() missing 1 required positional argument: 'answers'"),
        ("raising", "raised KeyError: 'two\\nlines' ("),
    ],
)
def test_a_wrong_function_is_named_with_the_prompt(function: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        score(function)
    assert str(caught.value).startswith(f"reward.function: their_rewards:{function} {problem}")
    assert "p.jsonl:3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_says_where_it_was_raised(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"\({tmp_path}/their_rewards.py:17\)"):
        score("raising")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_module:f", "'no_such_module' cannot be imported: ModuleNotFoundError"),
        ("broken_rewards:f", "'broken_rewards' cannot be imported: ZeroDivisionError"),
        ("their_rewards:nothing", "'their_rewards' has no function 'nothing'"),
        ("their_rewards:constant", "'their_rewards' has no function 'constant'"),
    ],
)
def test_a_function_that_cannot_be_imported_is_named(name: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        Reward(name, {})
    assert str(caught.value).startswith(f"reward.function: {problem}")


def test_a_chat_is_answered_by_a_chat_and_a_text_by_a_text():
    messages = [{"role": "user", "content": "4 ?"}]
    for text, expected in [(messages, [{"role": "assistant", "content": "4"}]), ("4 ?", "4")]:
        prompt = Prompt(ids=torch.tensor([1]), text=text, columns={"answer": "4"})
        seen = []

        def spy(prompts, completions, seen=seen, **columns):
            seen.extend(completions)
            return [0.0] * len(completions)

        sys.modules["spying"] = SimpleNamespace(spy=spy)
        try:
            Reward("spying:spy", {}).score(prompt, ["4"], [[4]])
        finally:
            del sys.modules["spying"]
        assert seen == [expected]
        assert Reward("megatron_longstraw.rewards.builtin:exact_match", {}).score(prompt, ["4"], [[4]]) == [1.0]
