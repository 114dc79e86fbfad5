"""One reward function: how it is found, called in the styles of TRL and verl, and what it may return."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron_longstraw.config.schema import READY_MADE_REWARDS, RewardTermConfig
from megatron_longstraw.errors import InputError
from megatron_longstraw.rewards.builtin import READY_MADE
from megatron_longstraw.rewards.function import RewardFunction
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
def only_completions(completions, **kwargs): return [float(len(text)) for text in completions]
def with_answer(completions, answer, **kwargs): return [1.0 if a == c else 0.0 for a, c in zip(answer, completions)]
def logs(completions, log_extra=None, log_metric=None, **kwargs): return [float(log_extra is None)] * len(completions)
def of_state(completions, trainer_state, **kwargs): return [0.0] * len(completions)
class Callable:
    def __call__(self, completion_ids, **kwargs): return [float(len(ids)) for ids in completion_ids]
an_object = Callable()
async def later(completions, **kwargs):
    import asyncio
    await asyncio.sleep(0)
    return [2.0] * len(completions)
loops = []
async def in_a_loop(completions, **kwargs):
    import asyncio
    loops.append(asyncio.get_running_loop())
    return [0.0] * len(completions)
async def failing(completions, **kwargs): raise OSError("no judge")
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    calls.append((data_source, solution_str, ground_truth, extra_info))
    if extra_info is not None: extra_info["seen"] = True
    return solution_str == ground_truth
def scaled(data_source, solution_str, ground_truth, extra_info, scale=1): return scale * len(solution_str)
def in_a_dict(data_source, solution_str, ground_truth, extra_info): return {"score": 0.25, "acc": True, "pred": "x"}
def no_score(data_source, solution_str, ground_truth, extra_info): return {"acc": 1.0}
def unscored(data_source, solution_str, ground_truth, extra_info):
    return None if solution_str == "c" else float("nan")
def a_pair(data_source, solution_str, ground_truth, extra_info): return (1.0, 2.0)
waiting = []
async def judged(data_source, solution_str, ground_truth, extra_info):
    import asyncio
    waiting.append(solution_str)
    while len(waiting) < 2: await asyncio.sleep(0)
    return 1.0 if solution_str == ground_truth else 0.0
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "their_rewards.py").write_text(MODULE)
    (tmp_path / "broken_rewards.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    sys.modules.pop("their_rewards", None)


def reward_of(function: str, style: Any = "trl", **kwargs: object) -> RewardFunction:
    return RewardFunction(RewardTermConfig(function=function, style=style, kwargs=kwargs), "reward")


def score(function: str, **kwargs: object) -> list[float | None]:
    return reward_of(f"their_rewards:{function}", **kwargs).score(PROMPT, ["c", "d"], [[6], [7, 0]])


def verl_score(function: str, prompt: Prompt, **kwargs: object) -> list[float | None]:
    return reward_of(f"their_rewards:{function}", "verl", **kwargs).score(prompt, ["c", "d"], [[6], [7, 0]])


def test_columns_are_repeated_for_every_response_and_kwargs_are_not() -> None:
    assert score("record", scale=2) == [0.0, 0.0]
    assert sys.modules["their_rewards"].calls == [
        (["a b", "a b"], ["c", "d"], [[6], [7, 0]], {"answer": ["c", "c"], "scale": 2})
    ]


def test_messages_are_handed_over_as_messages_and_ids_as_ids() -> None:
    messages = [{"role": "user", "content": "a"}]
    reward = reward_of("their_rewards:record")
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
        reward_of(name)
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
            reward_of("spying:spy").score(prompt, ["4"], [[4]])
        finally:
            del sys.modules["spying"]
        assert seen == [expected]
        assert reward_of("megatron_longstraw.rewards.builtin:exact_match").score(prompt, ["4"], [[4]]) == [1.0]


@pytest.mark.parametrize(
    ("function", "rewards"),
    [
        ("only_completions", [1.0, 1.0]),
        ("with_answer", [1.0, 0.0]),
        ("logs", [1.0, 1.0]),
        ("an_object", [1.0, 2.0]),
        ("later", [2.0, 2.0]),
    ],
)
def test_functions_in_the_forms_that_trl_documents_work_unchanged(function: str, rewards: list[float]) -> None:
    assert score(function) == rewards


def test_what_only_trls_trainer_has_is_missed_by_name() -> None:
    with pytest.raises(InputError, match=r"raised TypeError: of_state\(\) missing 1 .* 'trainer_state' for the prompt"):
        score("of_state")


def test_async_functions_share_one_event_loop_and_may_fail() -> None:
    reward = reward_of("their_rewards:in_a_loop")
    for _ in range(2):
        reward.score(PROMPT, ["c"], [[6]])
    first, second = sys.modules["their_rewards"].loops
    assert isinstance(first, asyncio.AbstractEventLoop)
    assert first is second
    with pytest.raises(
        InputError, match=r"their_rewards:failing raised OSError: no judge .* for the prompt at p.jsonl:3"
    ):
        score("failing")


VERL = Prompt(
    torch.tensor([4]),
    text=[{"role": "user", "content": "a"}],
    columns={
        "data_source": "lighteval/MATH",
        "reward_model": {"style": "rule", "ground_truth": "c"},
        "extra_info": {"index": 7},
        "ability": "math",
    },
    source="p.parquet:1",
)


def test_verls_functions_get_its_columns_response_by_response() -> None:
    assert verl_score("compute_score", VERL) == [1.0, 0.0]
    calls = sys.modules["their_rewards"].calls
    assert [call[:3] for call in calls] == [("lighteval/MATH", "c", "c"), ("lighteval/MATH", "d", "c")]
    # Each response has an extra_info of its own, so that what a function notes there reaches no other.
    assert [call[3] for call in calls] == [{"index": 7, "seen": True}] * 2
    assert VERL.columns["extra_info"] == {"index": 7}


def test_verls_optional_columns_may_be_missing() -> None:
    prompt = Prompt(torch.tensor([4]), columns={"reward_model": {"ground_truth": None}, "extra_info": None})
    assert verl_score("compute_score", prompt) == [0.0, 0.0]
    assert sys.modules["their_rewards"].calls[0] == (None, "c", None, {"seen": True})


@pytest.mark.parametrize(
    ("function", "kwargs", "rewards"),
    [
        ("scaled", {"scale": 3}, [3.0, 3.0]),
        ("in_a_dict", {}, [0.25, 0.25]),
        ("unscored", {}, [None, None]),
        ("judged", {}, [1.0, 0.0]),
    ],
)
def test_verls_functions_may_return_what_they_do_there(
    function: str, kwargs: dict[str, object], rewards: list[float | None]
) -> None:
    assert verl_score(function, VERL, **kwargs) == rewards


@pytest.mark.parametrize(
    ("function", "columns", "problem"),
    [
        ("compute_score", {"answer": "c"}, "in the style of verl needs a column reward_model"),
        ("compute_score", {"reward_model": {"style": "rule"}}, "needs ground_truth in the column reward_model"),
        ("compute_score", {"reward_model": "rule"}, "needs ground_truth in the column reward_model"),
        ("no_score", VERL.columns, "returned a mapping without score: {'acc': 1.0}"),
        ("a_pair", VERL.columns, "returned the reward (1.0, 2.0)"),
        ("only_completions", VERL.columns, "raised TypeError: only_completions() missing 1 required"),
    ],
)
def test_what_is_missing_in_verls_style_is_named(function: str, columns: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        verl_score(function, Prompt(torch.tensor([4]), columns=columns, source="p.parquet:2"))
    assert str(caught.value).startswith(f"reward.function: their_rewards:{function} ")
    assert problem in str(caught.value)
    assert "for the prompt at p.parquet:2" in str(caught.value)


def test_ready_made_functions_are_known_by_name() -> None:
    assert tuple(READY_MADE) == READY_MADE_REWARDS
    assert reward_of("exact_match").score(PROMPT, ["c", "d"], [[6], [7]]) == [1.0, 0.0]
    assert reward_of("exact_match").name == "exact_match"
    assert reward_of("their_rewards:record").name == "record"


@pytest.mark.parametrize(
    ("function", "kwargs", "message"),
    [
        (
            "exact_match",
            {"ignore_cas": True},
            "exact_match has no option 'ignore_cas' (allowed: answer_key, ignore_case, ",
        ),
        ("megatron_longstraw.rewards.builtin:contains", {"answers": 1}, "contains has no option 'answers'"),
        ("length_penalty", {}, "length_penalty needs target_tokens and max_tokens"),
        ("length_penalty", {"target_tokens": "4", "max_tokens": 8}, "length_penalty cannot use {'target_tokens': '4'"),
        (
            "length_penalty",
            {"target_tokens": 8, "max_tokens": 8},
            "length_penalty needs 0 <= target_tokens < max_tokens",
        ),
        ("regex", {}, "regex needs one of pattern and pattern_key"),
        ("regex", {"pattern": "("}, "regex has the pattern '(', which is no regular expression: missing )"),
        ("regex", {"pattern": 5}, "regex has the pattern 5, which is no regular expression"),
        ("numeric_answer", {"tolerance": -1}, "numeric_answer needs a tolerance >= 0"),
        ("numeric_answer", {"tolerance": float("inf")}, "numeric_answer needs a tolerance >= 0"),
    ],
)
def test_options_of_ready_made_functions_are_checked_before_the_run(
    function: str, kwargs: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        reward_of(function, **kwargs)
    assert str(caught.value).startswith(f"reward.kwargs: {message}")


def test_a_column_named_like_an_option_is_no_option() -> None:
    prompt = Prompt(torch.tensor([1]), text="?", columns={"answer": "C", "ignore_case": True, "max_tokens": "x"})
    assert reward_of("exact_match").score(prompt, ["c"], [[6]]) == [0.0]
    assert reward_of("length_penalty", target_tokens=1, max_tokens=2).score(prompt, ["c"], [[6, 6]]) == [-1.0]


def test_a_row_without_an_answer_is_named() -> None:
    with pytest.raises(InputError) as caught:
        reward_of("exact_match").score(Prompt(torch.tensor([1]), source="p.jsonl:9"), ["c"], [[6]])
    needs = "needs a column 'answer', reward_model.ground_truth or one named by answer_key"
    assert str(caught.value) == f"reward.function: exact_match {needs} for the prompt at p.jsonl:9"


def test_a_reward_works_outside_the_main_thread() -> None:
    rewards: list[list[float | None]] = []
    reward = reward_of("their_rewards:later")
    thread = threading.Thread(target=lambda: rewards.append(reward.score(PROMPT, ["c"], [[6]])))
    thread.start()
    thread.join()
    assert rewards == [[2.0]]
