"""A policy whose numbers are no longer finite ends its run in one line and exit status 1, and is never made worse."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from megatron_longstraw.cli import main
from megatron_longstraw.tracking.metrics import METRIC_NAMES
from megatron_longstraw.trainer import MAX_SKIPPED_UPDATES, _skipped_in_a_row
from tests.oracle.conventional import save_folder, tiny_model
from tests.product import write_recorded
from tests.replay.cases import Case, recorded_groups
from tests.run_files import checkpoint_weights, metrics

ROOT = Path(__file__).parents[2]


def config(folder: Path, model_folder: Path, **sections: dict[str, Any]) -> str:
    """Writes a configuration whose run has more steps than it will come to."""
    keys: dict[str, Any] = {
        "run_dir": str(folder / "run"),
        "model": {"hf": str(model_folder), "dtype": "float32"},
        "train": {"steps": 9, "groups_per_step": 1},
        "tracking": {"progress": "off"},
        **sections,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(keys))
    return str(folder / "config.yaml")


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    _, errors = capsys.readouterr()
    assert errors.count("\n") == 1
    return errors


def recorded(tmp_path: Path) -> dict[str, str]:
    write_recorded(tmp_path / "recorded.jsonl", recorded_groups(Case(((20, (4, 9)),), 8), "llama"))
    return {"source": "recorded", "path": str(tmp_path / "recorded.jsonl")}


def test_gradients_that_are_not_finite_change_nothing_and_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_model("llama", dtype=torch.float32)
    with torch.no_grad():
        # Finite in itself; what comes out of it is not.
        model.get_parameter("model.layers.0.mlp.down_proj.weight").mul_(1e38)
    model_folder = save_folder(model, tmp_path / "model")
    path = config(tmp_path, model_folder, rollout=recorded(tmp_path), checkpoint={"every": 1})
    capsys.readouterr()
    assert main(["train", path]) == 1
    assert "the gradient was not finite in 3 updates in a row" in one_line(capsys)
    lines = metrics(tmp_path / "run")
    assert len(lines) == MAX_SKIPPED_UPDATES
    assert all(math.isfinite(line[name]) for line in lines for name in METRIC_NAMES)
    after = checkpoint_weights(tmp_path / "run", torch.float32)
    assert all(torch.equal(after[name], parameter) for name, parameter in model.named_parameters())


def test_updates_that_change_nothing_are_counted_in_a_row() -> None:
    def results(applied: str) -> list[Any]:
        return [SimpleNamespace(step=SimpleNamespace(applied=mark == "+")) for mark in applied]

    assert [_skipped_in_a_row(1, results(marks)) for marks in ("--", "-+", "+-", "-+--", "")] == [3, 0, 1, 2, 1]


def test_a_gradient_of_zero_is_finite(tmp_path: Path) -> None:
    """Tokens beyond the bound that their advantage pushes to have a loss and no gradient, step after step."""
    rollout = recorded(tmp_path)
    (group,) = (json.loads(line) for line in (tmp_path / "recorded.jsonl").read_text().splitlines())
    for response, reward, old in zip(group["responses"], (1.0, -1.0), (-40.0, 40.0), strict=True):
        response |= {"reward": reward, "old_logprobs": [old] * len(response["ids"])}
    write_recorded(tmp_path / "recorded.jsonl", [group])
    path = config(tmp_path, save_folder(tiny_model("llama"), tmp_path / "model"), rollout=rollout)
    assert main(["train", path]) == 0
    lines = metrics(tmp_path / "run")
    assert len(lines) == 9
    assert all(line["loss"] != 0.0 and line["grad_norm"] == 0.0 for line in lines)


def test_a_policy_that_cannot_be_sampled_from_stops_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "prompts.jsonl").write_text('{"prompt_ids": [5, 6, 7]}\n')
    path = config(
        tmp_path,
        save_folder(tiny_model("llama", dtype=torch.float32), tmp_path / "model"),
        data={"prompts": str(tmp_path / "prompts.jsonl")},
        rollout={"group_size": 4, "max_response_tokens": 4},
        reward={"function": "tests.golden.reward:reward"},
        optimizer={"name": "sgd", "lr": 1e30, "clip_grad": 0},
    )
    capsys.readouterr()
    assert main(["train", path]) == 1
    assert "the policy's logits are not finite" in one_line(capsys)
    assert len(metrics(tmp_path / "run")) >= 1
