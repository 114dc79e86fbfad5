"""GRPO alone takes the packaged model from mediocre to good; without the gradient through the prompt it does not."""

import json
from pathlib import Path

import pytest

from megatron_longstraw.config.load import load_config
from megatron_longstraw.data.find_key import find_key_rows
from megatron_longstraw.trainer import train

ROOT = Path(__file__).parent.parent


def reward_means(folder, prompt_gradient):
    rows = find_key_rows(rows=64, prompt_tokens=400, seed=11)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = [
        f"run_dir={folder / 'run'}",
        f"model.hf={ROOT / 'megatron_longstraw' / 'assets' / 'tiny'}",
        f"data.prompts={folder / 'prompts.jsonl'}",
        f"replay.prompt_gradient={prompt_gradient}",
        "replay.segment_tokens=128",
        "optimizer.lr=1.0e-4",
        "train.steps=10",
        "checkpoint.every=0",
        "tracking.progress=off",
    ]
    train(load_config(ROOT / "configs" / "tiny_cpu.yaml", overrides))
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["reward/mean"] for line in lines]


@pytest.mark.parametrize(("prompt_gradient", "learns"), [("full", True), ("stop", False)])
def test_reward_rises_with_the_gradient_through_the_prompt(tmp_path, prompt_gradient, learns):
    rewards = reward_means(tmp_path, prompt_gradient)
    assert rewards[0] < 0.5
    assert (sum(rewards[-3:]) / 3 > 0.9) is learns
