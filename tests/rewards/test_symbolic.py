"""Mathematical expressions, through the package math-verify."""

import logging
import sys
import threading

import pytest
from rewards.ready_made import NO_ANSWER, score

from megatron_longstraw.errors import InputError
from megatron_longstraw.rewards import symbolic


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("1/2", [r"The answer is $\frac{1}{2}$.", "so it is 0.5", r"\boxed{\frac12}"], [r"$\frac{1}{3}$", "", "none"]),
        ("x^2+1", [r"\boxed{1+x^2}", "$x^2 + 1$"], [r"\boxed{x^2-1}"]),
        (r"\boxed{x + 1/2}", [r"\boxed{\frac{1}{2} + x}"], [r"\boxed{\frac{1}{2}}"]),
        ("x + 1/2", [r"\boxed{\frac{2x+1}{2}}"], [r"\boxed{\frac{1}{2}}"]),
        ("$2\\sqrt{3}$", [r"\boxed{\sqrt{12}}"], [r"\boxed{2}"]),
        (-5, ["$-5$", "\u22125"], ["5"]),
        ("1,234", ["1234"], ["1"]),
        (["$3$", "$4$"], ["it is 3", "$4$"], ["$5$"]),
    ],
)
def test_equal_expressions_are_right(answer: object, right: list[str], wrong: list[str]) -> None:
    assert score("math_verify", answer, *right, *wrong) == [1.0] * len(right) + [0.0] * len(wrong)


def test_what_is_not_mathematics_is_unscored() -> None:
    assert score("math_verify", r"\(\)", "5", "") == [None, None]
    assert score("math_verify", None, "5") == [None]
    assert score("math_verify", NO_ANSWER, "5", columns={"reward_model": {"ground_truth": "5"}}) == [1.0]


def test_it_works_outside_the_main_thread() -> None:
    rewards: list[list[float | None]] = []
    thread = threading.Thread(target=lambda: rewards.append(score("math_verify", "1/2", "$0.5$", "$2$")))
    thread.start()
    thread.join()
    assert rewards == [[1.0, 0.0]]


def test_what_takes_too_long_is_wrong_without_a_word_of_the_package(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(symbolic, "SECONDS", 1)
    with caplog.at_level(logging.NOTSET):
        assert score("math_verify", "2", r"\boxed{9^{9^{9^{9}}}}") == [0.0]
    # Its warnings may hold the whole completion.
    assert [record for record in caplog.records if record.name.startswith("math_verify")] == []


def test_only_the_end_of_a_long_completion_is_read() -> None:
    assert score("math_verify", "7", "1 " * 100_000 + "so $7$") == [1.0]


def test_a_missing_package_is_named_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(
        InputError, match=r"^reward.kwargs: math_verify needs the package math-verify, `pip install math-"
    ):
        score("math_verify", "1", "1")
