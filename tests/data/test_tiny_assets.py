"""The packaged tiny model: its size, its tokenizer, and that it starts mediocre."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from megatron_longstraw.data.find_key import find_key_rows, words

ROOT = Path(__file__).parents[2]
TINY = ROOT / "megatron_longstraw" / "assets" / "tiny"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()


def first_numbers_of_asked(row: dict[str, str]) -> list[str]:
    """The first number of each of the three keys of the asked name, in the order of the prompt."""
    tokens = row["prompt"].split(" ")
    return [tokens[i + 1] for i in range(1, len(tokens) - 1) if tokens[i - 1] == "of" and tokens[i] == tokens[-1]]


def test_the_folder_holds_at_most_two_megabytes():
    assert sum(path.stat().st_size for path in TINY.iterdir()) <= 2_000_000


def test_the_vocabulary_is_the_generators_words_and_the_special_tokens(tokenizer, model):
    assert len(tokenizer) == model.config.vocab_size == len(words()) + 4
    assert tokenizer.unk_token_id not in tokenizer.convert_tokens_to_ids(list(words()))


def test_the_end_token_is_the_same_everywhere(tokenizer, model):
    generation = GenerationConfig.from_pretrained(TINY)
    assert tokenizer.eos_token == "<eos>"
    assert tokenizer.eos_token_id == model.config.eos_token_id == generation.eos_token_id


@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_a_prompt_has_exactly_its_length_in_tokens_and_decodes_to_itself(tokenizer, add_special_tokens):
    for row in find_key_rows(rows=3, prompt_tokens=4096, seed=0):
        ids = tokenizer(row["prompt"], add_special_tokens=add_special_tokens)["input_ids"]
        assert len(ids) == 4096
        assert tokenizer.decode(ids) == row["prompt"]


def test_an_answer_decodes_to_itself_without_its_end_token(tokenizer):
    ids = [*tokenizer("47 12 85")["input_ids"], tokenizer.eos_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "47 12 85"


def test_it_begins_a_key_of_the_asked_name_but_rarely_the_confirmed_one(tokenizer, model):
    """Probabilities of the first number, at the length that the tiny config trains on."""
    right = found = 0.0
    rows = list(find_key_rows(rows=6, prompt_tokens=4096, seed=777))
    for row in rows:
        ids = tokenizer(row["prompt"], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            probabilities = model(ids, logits_to_keep=1).logits[0, -1].softmax(-1)
        starts = first_numbers_of_asked(row)
        assert len(starts) == 3
        found += probabilities[tokenizer.convert_tokens_to_ids(starts)].sum().item() / len(rows)
        right += probabilities[tokenizer.convert_tokens_to_ids(row["answer"].split()[0])].item() / len(rows)
    assert found > 0.9
    assert 0.01 < right < 0.4


def test_the_script_makes_these_weights_again(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "tools/make_tiny_model.py", "--out", str(tmp_path), "--seed", "0"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    made, kept = load_file(tmp_path / "model.safetensors"), load_file(TINY / "model.safetensors")
    assert made.keys() == kept.keys()
    for name in kept:
        # Processors differ in the last bits, which the spreading of the codes amplifies.
        torch.testing.assert_close(made[name], kept[name], rtol=1e-2, atol=1e-3, msg=name)
