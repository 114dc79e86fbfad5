"""What the "find the key" prompts must not give away, their tool, and the edges of their reward."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_longstraw.data.find_key import FILLERS, KEY_NUMBERS, MARKERS, find_key_rows, words
from megatron_longstraw.rewards.find_key import reward

ROOT = Path(__file__).parents[2]


def notes_of(prompt: str) -> dict[str, dict[str, str]]:
    """Read a prompt's notes: name, marker, key."""
    tokens = prompt.split(" ")
    notes: dict[str, dict[str, str]] = {}
    for index, token in enumerate(tokens):
        if token in MARKERS:
            assert tokens[index + 1 : index + 3] == ["key", "of"]
            assert tokens[index + 4 + KEY_NUMBERS] == "."
            key = " ".join(tokens[index + 4 : index + 4 + KEY_NUMBERS])
            notes.setdefault(tokens[index + 3], {})[token] = key
    return notes


def score(answer: str, *completions: str) -> list[float]:
    count = len(completions)
    return reward([""] * count, completions, [[0]] * count, answer=[answer] * count, other=[None] * count)


def test_every_name_has_one_note_per_marker_and_no_number_is_in_two_notes():
    for row in find_key_rows(rows=20, prompt_tokens=600, seed=1):
        notes = notes_of(row["prompt"])
        assert len(notes) == 4
        assert all(set(keys) == set(MARKERS) for keys in notes.values())
        numbers = " ".join(key for keys in notes.values() for key in keys.values()).split()
        assert len(numbers) == len(set(numbers)) == 4 * len(MARKERS) * KEY_NUMBERS


def test_neither_the_markers_order_nor_the_depth_gives_the_answer_away():
    places = dict.fromkeys(MARKERS, 0)
    depths = []
    for row in find_key_rows(rows=300, prompt_tokens=400, seed=2):
        tokens = row["prompt"].split(" ")
        places[next(token for token in tokens if token in MARKERS)] += 1
        depths.append(tokens.index(row["answer"].split()[0]) / len(tokens))
    assert min(places.values()) > 70
    assert 0.4 < sum(depths) / len(depths) < 0.6
    assert min(depths) < 0.1
    assert max(depths) > 0.9


def test_every_word_of_a_prompt_is_listed_once():
    assert len(words()) == len(set(words()))
    assert set(FILLERS) <= set(words())
    for row in find_key_rows(rows=5, prompt_tokens=2000, seed=4):
        assert set(row["prompt"].split(" ")) | set(row["answer"].split(" ")) <= set(words())


def test_the_generator_imports_nothing_heavy():
    code = (
        "import sys, megatron_longstraw.data.find_key; print({'torch', 'transformers', 'megatron'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_the_tool_writes_the_same_rows_as_json_lines(tmp_path):
    out = tmp_path / "sub" / "rows.jsonl"
    arguments = ["--out", str(out), "--rows", "3", "--prompt-tokens", "256", "--seed", "8"]
    command = [sys.executable, "tools/make_find_key_prompts.py", *arguments]
    subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    written = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert written == list(find_key_rows(rows=3, prompt_tokens=256, seed=8))


def test_reward_falls_when_the_completion_is_too_long_or_too_short():
    assert score("47 12 85", "47 12 85 85", "47 12", "47", "") == [3 / 4, 2 / 3, 1 / 3, 0.0]


def test_reward_ignores_what_follows_the_end_mark():
    assert score("47 12 85", "47 12 85 <eos>", "47 12 85<eos> 99", "<eos> 47 12 85") == [1.0, 1.0, 0.0]


def test_reward_refuses_another_number_of_answers():
    with pytest.raises(ValueError, match="shorter"):
        reward([""] * 2, ["47", "47"], [[0]] * 2, answer=["47"])
