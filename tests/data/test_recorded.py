"""Recorded rollouts, read and written."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from word_tokenizer import WORDS, word_tokenizer

from megatron_longstraw.data.recorded import RecordedFile, write_rollouts
from megatron_longstraw.data.template import Encoder
from megatron_longstraw.errors import InputError
from megatron_longstraw.types import Group, Prompt, Response

ENCODER = Encoder(word_tokenizer(), len(WORDS))


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path: Path, row: int = 0) -> Group:
    group = RecordedFile(path, ENCODER).read(row)
    assert group is not None
    return group


def facts(group: Group) -> list[object]:
    """A group as plain values, which compare by value."""
    responses = [
        (
            r.ids.tolist(),
            r.reward,
            None if r.loss_mask is None else r.loss_mask.tolist(),
            None if r.old_logprobs is None else r.old_logprobs.tolist(),
            r.truncated,
        )
        for r in group.responses
    ]
    return [group.prompt.ids.tolist(), dict(group.prompt.columns), responses]


def test_groups_of_other_sizes_and_unscored_responses_are_read_as_they_stand(tmp_path: Path) -> None:
    first = {"ids": [0, 4], "reward": 1, "old_logprobs": [-0.5, 0], "loss_mask": [1, 0]}
    path = write(
        tmp_path / "r.jsonl",
        {"prompt_ids": [0], "responses": [first, {"ids": [5], "reward": None}, {"ids": [6], "reward": math.nan}]},
        {"prompt_ids": [4, 5], "responses": [{"ids": [6]}], "answer": "c"},
    )
    assert facts(read(path)) == [
        [0],
        {},
        [
            ([0, 4], 1.0, [True, False], [-0.5, 0.0], False),
            ([5], None, None, None, False),
            ([6], None, None, None, False),
        ],
    ]
    assert facts(read(path, 1)) == [[4, 5], {"answer": "c"}, [([6], None, None, None, False)]]


def test_texts_are_tokenised_with_nothing_added_to_a_response(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {"prompt": "a b", "responses": [{"text": "c d", "reward": 0.5}]})
    assert facts(read(path)) == [[1, 4, 5], {}, [([6, 7], 0.5, None, None, False)]]


def test_ids_win_over_texts(tmp_path: Path) -> None:
    line = {"prompt": "a", "prompt_ids": [7], "responses": [{"text": "a", "ids": [6], "reward": 1.0}]}
    assert facts(read(write(tmp_path / "r.jsonl", line))) == [[7], {}, [([6], 1.0, None, None, False)]]


def test_a_masked_token_may_have_any_old_logprob(tmp_path: Path) -> None:
    response = {"ids": [4, 5], "loss_mask": [0, 1], "old_logprobs": [-math.inf, -1.0]}
    group = read(write(tmp_path / "r.jsonl", {"prompt_ids": [4], "responses": [response]}))
    assert facts(group)[2] == [([4, 5], None, [False, True], [-math.inf, -1.0], False)]


ONE = {"ids": [4, 5], "reward": 1.0}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"responses": [ONE]}, "has neither prompt_ids nor prompt"),
        ({"prompt_ids": [4]}, "responses: is not a list with a response in it"),
        ({"prompt_ids": [4], "responses": []}, "responses: is not a list with a response in it"),
        ({"prompt_ids": [], "responses": [ONE]}, "prompt_ids: is empty"),
        ({"prompt": "", "responses": [ONE]}, "prompt: is empty"),
        ({"prompt_ids": [8], "responses": [ONE]}, "prompt_ids: token id 8 is outside the vocabulary"),
        ({"prompt_ids": [4], "responses": [ONE, {"ids": []}]}, "responses[1].ids: is empty"),
        ({"prompt_ids": [4], "responses": [ONE, {"text": ""}]}, "responses[1].text: is empty"),
        ({"prompt_ids": [4], "responses": [{"ids": [8]}]}, "responses[0].ids: token id 8 is outside the vocabulary"),
        ({"prompt_ids": [4], "responses": [{"reward": 1}]}, "responses[0]: has neither ids nor text"),
        ({"prompt_ids": [4], "responses": [[4]]}, "responses[0]: is not a JSON object"),
        (
            {"prompt_ids": [4], "responses": [ONE | {"loss_mask": [1]}]},
            "responses[0].loss_mask: has 1 entries for 2 tokens",
        ),
        ({"prompt_ids": [4], "responses": [ONE | {"loss_mask": [1, 2]}]}, "responses[0].loss_mask: is not a list of 0"),
        (
            {"prompt_ids": [4], "responses": [ONE | {"old_logprobs": [-1.0, -1.0, -1.0]}]},
            "responses[0].old_logprobs: has 3 entries for 2 tokens",
        ),
        ({"prompt_ids": [4], "responses": [ONE | {"old_logprobs": [None, -1]}]}, "responses[0].old_logprobs: is not a"),
        (
            {"prompt_ids": [4], "responses": [ONE | {"old_logprobs": [math.nan, -1]}]},
            "responses[0].old_logprobs: is not finite for a token that counts",
        ),
        ({"prompt_ids": [4], "responses": [ONE | {"reward": "1"}]}, "responses[0].reward: is '1'"),
        ({"prompt_ids": [4], "responses": [ONE | {"reward": math.inf}]}, "responses[0].reward: is inf"),
    ],
)
def test_a_bad_line_is_named_when_the_file_is_opened(tmp_path: Path, line: Any, problem: str) -> None:
    path = write(tmp_path / "r.jsonl", {"prompt_ids": [4], "responses": [ONE]}, line)
    with pytest.raises(InputError) as caught:
        RecordedFile(path, ENCODER)
    assert str(caught.value).startswith(f"{path}:2: {problem}")


def test_a_mask_of_another_length_than_the_tokenised_text_is_named_when_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {"prompt": "a", "responses": [{"text": "a b", "loss_mask": [1]}]})
    with pytest.raises(InputError, match=r"r.jsonl:1: responses\[0\].loss_mask: has 1 entries for 2 tokens"):
        read(path)


def test_what_is_written_reads_back_equal(tmp_path: Path) -> None:
    # A third in float32 is another number in float64: every bit of a log-prob must survive.
    logprobs = torch.tensor([-1 / 3, -2.0], dtype=torch.float32)
    scored = Response(
        ids=torch.tensor([4, 0]), reward=0.1, old_logprobs=logprobs, loss_mask=torch.tensor([True, False])
    )
    prompt = Prompt(ids=torch.tensor([4, 5, 6]), text="a b c", columns={"answer": "ü", "info": {"x": [1]}})
    group = Group(prompt, (scored, Response(ids=torch.tensor([7]), truncated=True)))
    path = tmp_path / "rollouts" / "step_000001.jsonl"
    write_rollouts(path, [group, group], word_tokenizer())
    assert [facts(read(path, row)) for row in (0, 1)] == [facts(group)] * 2
    assert [response["text"] for response in json.loads(path.read_text().splitlines()[0])["responses"]] == [
        "a <unk>",
        "d",
    ]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_samplers_logprobs_stand_in_until_a_response_is_scored(tmp_path: Path) -> None:
    response = Response(ids=torch.tensor([4]), rollout_logprobs=torch.tensor([-0.25]))
    write_rollouts(tmp_path / "r.jsonl", [Group(Prompt(torch.tensor([4])), (response,))])
    assert json.loads((tmp_path / "r.jsonl").read_text()) == {
        "prompt_ids": [4],
        "responses": [{"ids": [4], "reward": None, "old_logprobs": [-0.25]}],
    }
