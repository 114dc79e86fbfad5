"""The packaged task and model: prompts of an exact length, one true key in each, and a model that fits them."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

import megatron_longstraw
from megatron_longstraw.data.find_key import MARKERS, find_key_rows, shortest_prompt, words
from megatron_longstraw.rewards.find_key import reward

TINY = Path(megatron_longstraw.__file__).parent / "assets" / "tiny"


@pytest.mark.parametrize("prompt_tokens", [shortest_prompt(), shortest_prompt() + 1, 777, 4096])
def test_a_prompt_has_exactly_the_tokens_asked_for(prompt_tokens):
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    for row in find_key_rows(rows=3, prompt_tokens=prompt_tokens, seed=5):
        ids = tokenizer(row["prompt"])["input_ids"]
        assert len(ids) == prompt_tokens
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == row["prompt"]


def test_the_answer_is_the_confirmed_key_of_the_asked_name():
    for row in find_key_rows(rows=20, prompt_tokens=300, seed=6):
        text = row["prompt"].split()
        asked = ["key", "of", text[-1]]
        notes = [text[i - 1 : i + 6] for i in range(1, len(text) - 5) if text[i : i + 3] == asked]
        keys = {note[0]: " ".join(note[4:]) for note in notes}
        assert sorted(keys) == sorted(MARKERS)
        assert row["answer"] == keys["confirmed"]


def test_rows_are_a_pure_function_of_the_seed():
    rows = list(find_key_rows(rows=4, prompt_tokens=200, seed=1))
    assert rows == list(find_key_rows(rows=6, prompt_tokens=200, seed=1))[:4]
    assert rows != list(find_key_rows(rows=4, prompt_tokens=200, seed=2))


def test_a_prompt_too_short_for_its_notes_is_refused():
    with pytest.raises(ValueError, match="take"):
        next(find_key_rows(rows=1, prompt_tokens=shortest_prompt() - 1, seed=0))


@pytest.mark.parametrize(
    ("completion", "expected"),
    [("47 12 85", 1.0), ("47 12 99", 2 / 3), ("47 12 85 . ", 3 / 4), ("", 0.0), ("12 47", 0.0)],
)
def test_reward_is_the_share_of_the_right_numbers_in_place(completion, expected):
    assert reward([""], [completion], [[]], answer=["47 12 85"]) == [pytest.approx(expected)]


def test_the_packaged_weights_stay_below_two_megabytes():
    assert sum(file.stat().st_size for file in TINY.glob("*.safetensors")) <= 2_000_000


def test_the_packaged_vocabulary_is_that_of_the_task():
    vocabulary = AutoTokenizer.from_pretrained(TINY).get_vocab()
    assert [word for word in words() if word not in vocabulary] == []
