"""The evaluation tool: the mean it prints, and that likeliest answers have nothing random."""

import json
import re
import sys

import pytest

from megatron_longstraw.data.find_key import find_key_rows
from tools import evaluate

CONFIG = "configs/tiny_cpu.yaml"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    prompts = tmp_path / "prompts.jsonl"
    rows = find_key_rows(rows=12, prompt_tokens=200, seed=3)
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def evaluated(*arguments):
        keys = (f"data.prompts={prompts}", f"run_dir={tmp_path / 'run'}")
        monkeypatch.setattr(sys, "argv", ["evaluate.py", CONFIG, *keys, *arguments])
        evaluate.main()
        return re.sub(r"\d+ s$", "", capsys.readouterr().out, flags=re.MULTILINE)

    return evaluated


def test_the_mean_is_that_of_the_answers_shown(run):
    shown = run("--samples", "12")
    rewards = [float(value) for value in re.findall(r"reward ([\d.]+)$", shown, flags=re.MULTILINE)]
    assert len(rewards) == 12
    assert len(set(rewards)) > 1
    assert f"mean reward {sum(rewards) / 12:.4f} of 12" in shown


def test_likeliest_answers_have_nothing_random_and_sampled_ones_do(run):
    assert run("rollout.seed=1") == run("rollout.seed=2")
    assert run("rollout.seed=1", "--sampled") != run("rollout.seed=2", "--sampled")


def test_a_limit_answers_the_first_prompts_only(run):
    shown = run("--limit", "2")
    assert "2 prompts of 200 to 200 tokens" in shown
    assert "prompts.jsonl:3" not in shown


def test_a_wrong_key_is_one_line(run):
    with pytest.raises(SystemExit, match=r"evaluate\.py: .*rollout\.sed"):
        run("rollout.sed=1")
