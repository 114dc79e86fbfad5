"""Logits of a converted model are those of `transformers`, after a captured prompt and after every decoded token."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from megatron_longstraw.checkpoint.convert import to_megatron
from megatron_longstraw.replay.capture import capture
from megatron_longstraw.replay.segment import Segment
from megatron_longstraw.state.context import SegmentContext
from megatron_longstraw.state.runs import DecodeState
from megatron_longstraw.trainer import Trainer, build
from megatron_longstraw.types import Phase, Prompt
from tests.oracle.conventional import KINDS, save_folder, tiny_model
from tests.product import recorded_config

TOKENS = 48
# Absolute, on logits of size 1 to 10.
TOLERANCE = 1e-5


def logits_after(trainer: Trainer, prompt_ids: Tensor, following: Tensor) -> Tensor:
    """Captures a prompt and feeds it the following tokens; logits after each of them, the last prompt token first."""
    machine = trainer.machine
    state = capture(machine.executor, Prompt(prompt_ids), machine.state, machine.replay)
    decoding = DecodeState(state.run, rows=1, capacity=len(following) + 1)
    logits = []
    for token in torch.cat([prompt_ids[-1:], following]):
        context = SegmentContext(phase=Phase.DECODE, run=decoding, start=decoding.position)
        logits += machine.executor.forward([lambda token=token, context=context: Segment(token.view(1, 1), context)])
        decoding.advance()
    return torch.cat(logits)


@pytest.mark.parametrize("prompt_tokens", [1, 30])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers(kind: str, prompt_tokens: int, tmp_path: Path) -> None:
    oracle = tiny_model(kind, dtype=torch.float32)
    to_megatron(save_folder(oracle, tmp_path / "hf"), tmp_path / "checkpoint")
    groups = [{"prompt_ids": [1], "responses": [{"ids": [2], "reward": 0.0}]}]
    overrides = ["model.hf=null", f"model.checkpoint={tmp_path / 'checkpoint'}", "replay.segment_tokens=8"]
    config = recorded_config(tmp_path, "", groups, dtype="float32", overrides=overrides)
    ids = torch.randint(97, (TOKENS,), generator=torch.Generator().manual_seed(0))
    with build(config) as trainer:
        ours = logits_after(trainer, ids[:prompt_tokens], ids[prompt_tokens:])
    with torch.no_grad():
        truth = oracle(ids[None]).logits[0, prompt_tokens - 1 :]
    assert ours.shape == truth.shape
    assert float(truth.abs().max()) > 1
    assert float((ours - truth).abs().max()) <= TOLERANCE
