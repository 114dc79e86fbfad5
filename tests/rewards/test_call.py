"""The reward of a response as the weighted sum of several functions, and each one's part in it."""

import sys
from types import SimpleNamespace

import pytest
import torch

from megatron_longstraw.config.schema import RewardConfig, RewardTermConfig
from megatron_longstraw.errors import InputError
from megatron_longstraw.rewards.call import Reward, Score
from megatron_longstraw.types import Prompt

PROMPT = Prompt(torch.tensor([1]), text="?", columns={"answer": "ab", "reward_model": {"ground_truth": "ab"}})
COMPLETIONS = ["ab", "abc", "x"]
IDS = [[1], [1, 2], [1, 2, 3]]


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        long_only=lambda completions, **rest: [float(len(text)) if len(text) > 1 else None for text in completions],
        nothing=lambda completions, **rest: [None] * len(completions),
        compute_score=lambda data_source, solution_str, ground_truth, extra_info: len(solution_str),
        single=lambda completions, **rest: 1.0,
    )
    monkeypatch.setitem(sys.modules, "some_rewards", module)


def test_one_function_is_the_reward_without_parts() -> None:
    reward = Reward(RewardConfig(function="contains"))
    assert reward.score(PROMPT, COMPLETIONS, IDS) == [Score(1.0), Score(1.0), Score(0.0)]


def test_several_functions_add_up_with_their_weights() -> None:
    penalty = RewardTermConfig("length_penalty", weight=0.5, kwargs={"target_tokens": 1, "max_tokens": 3})
    terms = (
        RewardTermConfig("exact_match", weight=2.0),
        penalty,
        RewardTermConfig("some_rewards:compute_score", 0.0, {}, "verl"),
    )
    assert Reward(RewardConfig(functions=terms)).score(PROMPT, COMPLETIONS, IDS) == [
        Score(2.0, {"exact_match": 1.0, "length_penalty": 0.0, "compute_score": 2.0}),
        Score(-0.25, {"exact_match": 0.0, "length_penalty": -0.5, "compute_score": 3.0}),
        Score(-0.5, {"exact_match": 0.0, "length_penalty": -1.0, "compute_score": 1.0}),
    ]


def test_a_function_that_leaves_a_response_unscored_is_left_out_of_its_sum() -> None:
    terms = (RewardTermConfig("some_rewards:long_only", weight=10.0), RewardTermConfig("exact_match"))
    scores = Reward(RewardConfig(functions=terms)).score(PROMPT, COMPLETIONS, IDS)
    assert [score.reward for score in scores] == [21.0, 30.0, 0.0]
    assert scores[2].parts == {"long_only": None, "exact_match": 0.0}


def test_a_response_that_no_function_scores_is_unscored() -> None:
    terms = (RewardTermConfig("some_rewards:long_only"), RewardTermConfig("some_rewards:nothing"))
    scores = Reward(RewardConfig(functions=terms)).score(PROMPT, COMPLETIONS, IDS)
    assert [score.reward for score in scores] == [2.0, 3.0, None]


def test_functions_of_the_same_name_are_told_apart() -> None:
    terms = tuple(RewardTermConfig("regex", kwargs={"pattern": pattern}) for pattern in ("a", "b$", "^x"))
    (score,) = Reward(RewardConfig(functions=terms)).score(PROMPT, ["ab"], [[1]])
    assert score == Score(2.0, {"regex": 1.0, "regex_2": 1.0, "regex_3": 0.0})


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (RewardTermConfig("no_module:f"), "reward.functions[1].function: 'no_module' cannot be imported"),
        (RewardTermConfig("regex"), "reward.functions[1].kwargs: regex needs one of pattern and pattern_key"),
    ],
)
def test_the_key_of_a_wrong_function_is_named(term: RewardTermConfig, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Reward(RewardConfig(functions=(RewardTermConfig("exact_match"), term)))
    assert str(caught.value).startswith(message)


def test_the_key_of_a_function_that_returns_nonsense_is_named() -> None:
    reward = Reward(RewardConfig(functions=(RewardTermConfig("exact_match"), RewardTermConfig("some_rewards:single"))))
    with pytest.raises(InputError, match=r"^reward.functions\[1\].function: some_rewards:single returned 1.0"):
        reward.score(PROMPT, COMPLETIONS, IDS)
