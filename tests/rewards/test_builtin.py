"""Rewards that come along: whole answers, contained ones, patterns, shared words, lengths."""

import signal
import string
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rewards.ready_made import NO_ANSWER, score

from megatron_longstraw.config.schema import RewardTermConfig
from megatron_longstraw.errors import InputError
from megatron_longstraw.rewards import builtin
from megatron_longstraw.rewards.builtin import exact_match, regex
from megatron_longstraw.rewards.function import RewardFunction
from megatron_longstraw.types import Prompt


def test_an_exact_match_is_the_whole_completion() -> None:
    assert score("exact_match", "4 2", "4 2", " 4 2\n", "4 2 0", "42", "") == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_an_answer_may_be_contained() -> None:
    assert score("contains", 42, "it is 42.", "4 2", "42", "1425") == [1.0, 0.0, 1.0, 1.0]
    assert score("contains", "", "", "a") == [0.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "columns"),
    [
        (["b", "a"], {}),
        (("b", "a"), {}),
        (NO_ANSWER, {"reward_model": {"style": "rule", "ground_truth": "a"}}),
        (NO_ANSWER, {"reward_model": {"ground_truth": ["a"]}}),
        # The column of its own wins.
        ("a", {"reward_model": {"ground_truth": "c"}}),
    ],
)
def test_the_answer_is_a_column_or_verls_and_may_be_several(answer: object, columns: dict[str, object]) -> None:
    assert score("exact_match", answer, "a", "c", columns=columns) == [1.0, 0.0]


def test_answer_key_names_another_column_of_answers() -> None:
    columns: dict[str, object] = {"solution": 3, "reward_model": {"ground_truth": "4"}}
    assert score("contains", "5", "3 4", "5", columns=columns, answer_key="solution") == [1.0, 0.0]
    with pytest.raises(InputError, match=r"exact_match needs a column 'right'$"):
        score("exact_match", "5", "5", columns=columns, answer_key="right")


@pytest.mark.parametrize("answer", [None, []])
@pytest.mark.parametrize("function", ["exact_match", "contains", "word_f1", "numeric_answer"])
def test_a_row_whose_answer_is_null_is_unscored(function: str, answer: object) -> None:
    assert score(function, answer, "a", "") == [None, None]


@pytest.mark.parametrize("answer", [{"text": ["a"]}, [["a"]], [None]])
def test_an_answer_of_another_kind_is_refused(answer: object) -> None:
    with pytest.raises(InputError, match="needs a text, a number or a list of them in 'answer', which is "):
        score("word_f1", answer, "a")


@pytest.mark.parametrize(
    ("kwargs", "rewards"),
    [
        ({}, [0.0, 0.0, 0.0]),
        ({"ignore_case": True}, [1.0, 0.0, 0.0]),
        ({"normalize": True}, [1.0, 1.0, 0.0]),
    ],
)
def test_case_and_more_may_not_count(kwargs: dict[str, object], rewards: list[float]) -> None:
    completions = ("the eiffel tower", " “Eiffel  Tower”!\n", "Eiffeltower")
    assert score("exact_match", "The Eiffel Tower", *completions, **kwargs) == rewards
    around = [f"It is {completion} in Paris" for completion in completions]
    assert score("contains", "The Eiffel Tower", *around, **kwargs) == rewards


def test_whole_words_may_be_asked_for() -> None:
    completions = ("17", "7", "x=7.", "7th", "(7)")
    assert score("contains", 7, *completions) == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert score("contains", 7, *completions, whole_words=True) == [0.0, 1.0, 1.0, 0.0, 1.0]
    assert score("contains", "a+b", "so a+b", "a+bc", whole_words=True) == [1.0, 0.0]
    assert score("contains", "Ja", "ja!", whole_words=True, ignore_case=True) == [1.0]
    assert score("contains", "", "a", whole_words=True) == [0.0]


@pytest.mark.parametrize(
    ("answer", "completion", "f1"),
    [
        ("The Eiffel Tower", "eiffel tower!", 1.0),
        ("The Eiffel Tower", "a tower in Paris", 2 / 5),
        ("The Eiffel Tower", "Rome", 0.0),
        ("red red blue", "red green", 2 / 5),
        ("red", "red red red", 2 / 4),
        ("it's", "its", 1.0),
        ("an", "the", 1.0),
        ("", "", 1.0),
        ("", "a word", 0.0),
        (["Rome", "the city of Rome"], "city of Rome", 1.0),
        (["x y", "x"], "x z", 2 / 3),
        (1889, "in 1889", 2 / 3),
    ],
)
def test_word_f1_is_squads(answer: object, completion: str, f1: float) -> None:
    assert score("word_f1", answer, completion) == [pytest.approx(f1)]


texts = st.text(alphabet="ab THE the.!\n", max_size=20)


@given(first=texts, second=texts)
def test_word_f1_is_symmetric_and_a_share(first: str, second: str) -> None:
    (forth,) = score("word_f1", first, second)
    assert score("word_f1", second, first) == [forth]
    assert forth is not None
    assert 0 <= forth <= 1
    assert (forth == 1.0) == (sorted(builtin._words(first)) == sorted(builtin._words(second)))


@given(words=st.lists(st.text(string.ascii_letters, min_size=1), max_size=6))
def test_order_case_and_punctuation_cost_no_word_f1(words: list[str]) -> None:
    assert score("word_f1", " ".join(words), ", ".join(reversed(words)).upper() + ".") == [1.0]


def test_a_pattern_may_be_found_anywhere() -> None:
    pattern = r"<think>.*</think>"
    assert score("regex", NO_ANSWER, "<think>a</think> b", "<think>\n</think>", "", pattern=pattern) == [1.0, 0.0, 0.0]
    assert score("regex", NO_ANSWER, "a\nB", pattern=r"\A(?s:a.b)\Z", ignore_case=True) == [1.0]
    assert score("regex", NO_ANSWER, "xa", "a", pattern="^(a|b)$") == [0.0, 1.0]


def test_a_group_named_answer_is_compared_with_the_answer() -> None:
    pattern = r"Answer:\s*(?P<answer>\w+)"
    completions = ("Answer: no. Answer: Yes", "Answer: yes. Answer: no", "yes", "")
    assert score("regex", ["yes", "Yes"], *completions, pattern=pattern) == [1.0, 0.0, 0.0, 0.0]
    assert score("regex", "YES", "answer: yes", pattern=pattern, ignore_case=True) == [1.0]
    assert score("regex", 7, "7 or not", pattern=r"(?P<answer>\d+) or|not") == [0.0]
    assert score("regex", None, "Answer: yes", pattern=pattern) == [None]
    assert score("regex", "", "yes", pattern=pattern) == [0.0]


def test_a_row_may_have_its_own_pattern() -> None:
    columns: dict[str, object] = {"must": "a+b"}
    assert score("regex", NO_ANSWER, "aab", "a", columns=columns, pattern_key="must") == [1.0, 0.0]
    with pytest.raises(InputError, match="regex needs a column 'musts'"):
        score("regex", NO_ANSWER, "aab", columns=columns, pattern_key="musts")
    with pytest.raises(InputError, match=r"regex has the pattern '\(', which is no regular expression"):
        score("regex", NO_ANSWER, "aab", columns={"must": "("}, pattern_key="must")
    with pytest.raises(InputError, match="regex needs one of pattern and pattern_key"):
        score("regex", NO_ANSWER, "aab", columns=columns, pattern_key="must", pattern="a")


def test_a_search_that_takes_too_long_is_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "SEARCH_SECONDS", 0.05)
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.warns(
        UserWarning, match=r"the pattern '\(a\+\)\+\$' took over 0.05 s on a completion of 61 characters"
    ):
        assert regex([], ["a" * 60 + "b", "aa"], [], pattern="(a+)+$") == [0.0, 1.0]
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_pattern_works_outside_the_main_thread() -> None:
    rewards: list[list[float | None]] = []
    thread = threading.Thread(target=lambda: rewards.append(regex([], ["ab"], [], pattern="b")))
    thread.start()
    thread.join()
    assert rewards == [[1.0]]


def test_a_length_penalty_falls_in_a_straight_line() -> None:
    term = RewardTermConfig(function="length_penalty", kwargs={"target_tokens": 4, "max_tokens": 8})
    reward = RewardFunction(term, "reward")
    lengths = (1, 4, 5, 7, 8, 100)
    rewards = reward.score(Prompt(torch.tensor([1])), [""] * 6, [[0] * length for length in lengths])
    assert rewards == [0.0, 0.0, -0.25, -0.75, -1.0, -1.0]


def test_ready_made_functions_are_trls_functions() -> None:
    completions = [[{"role": "assistant", "content": "4"}], [{"role": "assistant", "content": "5"}]]
    rewards = exact_match(
        prompts=["?"] * 2, completions=completions, completion_ids=[[1], [2]], answer=["4", "4"], step=[1]
    )
    assert rewards == [1.0, 0.0]
