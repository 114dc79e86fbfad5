"""A model's whole way: its folder, a checkpoint, a step of training, and a folder again, as `transformers` sees it."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from megatron_longstraw.cli import main
from tests.oracle.conventional import grpo_gradient, relative_difference, save_folder, tiny_model
from tests.product import write_recorded
from tests.replay.cases import Case, recorded_groups

CASE = Case(((45, (7, 30, 12)), (1, (5, 1))), 16, masked=True, off_policy=True)
# Relative L2 of the whole gradient; the step subtracts it from weights of about 1, which rounds it to some 1e-7.
TOLERANCE = 2e-5


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3_tied", "qwen3_moe", "qwen3_moe_mixed", "mistral"])
def test_converted_trained_and_converted_back_the_weights_have_moved_by_minus_the_oracle_gradient(
    kind: str, tmp_path: Path
) -> None:
    groups = recorded_groups(CASE, kind)
    before = tiny_model(kind, dtype=torch.float32)
    save_folder(before, tmp_path / "hf")
    assert main(["convert", "to-megatron", "--hf", str(tmp_path / "hf"), "--out", str(tmp_path / "start")]) == 0
    write_recorded(tmp_path / "recorded.jsonl", groups)
    config = {
        "run_dir": str(tmp_path / "run"),
        "model": {"checkpoint": str(tmp_path / "start")},
        "rollout": {"source": "recorded", "path": str(tmp_path / "recorded.jsonl")},
        "optimizer": {"name": "sgd", "lr": 1.0, "clip_grad": 0},
        "train": {"steps": 1, "groups_per_step": len(groups)},
        "tracking": {"progress": "off"},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", str(tmp_path / "config.yaml"), *CASE.overrides]) == 0
    arguments = ["--checkpoint", str(tmp_path / "run"), "--out", str(tmp_path / "trained")]
    assert main(["convert", "to-hf", *arguments]) == 0
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    change = {name: tensor.detach() - after.get_parameter(name).detach() for name, tensor in before.named_parameters()}
    # The oracle in float64, whose weights are the same numbers.
    truth = grpo_gradient(tiny_model(kind), groups, **CASE.settings)
    assert relative_difference(change, truth.gradients) <= TOLERANCE


def test_one_iteration_of_a_run_can_be_exported_in_another_dtype(tmp_path: Path, capsys) -> None:
    save_folder(tiny_model("llama", dtype=torch.float32), tmp_path / "hf")
    assert main(["convert", "to-megatron", "--hf", str(tmp_path / "hf"), "--out", str(tmp_path / "start")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'start'}; train with model.checkpoint={tmp_path / 'start'}\n"
    checkpoint = tmp_path / "start" / "iter_0000000"
    options = ["--checkpoint", str(checkpoint), "--out", str(tmp_path / "back"), "--dtype", "bfloat16"]
    assert main(["convert", "to-hf", *options, "--max-shard-gb", "0.00002"]) == 0
    files = sorted((tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 1
    assert all(tensor.dtype is torch.bfloat16 for file in files for tensor in load_file(file).values())
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: WAY"),
        (["to-megatron", "--out", "x"], "the following arguments are required: --hf"),
        (["to-megatron", "--hf", "nowhere", "--out", "x"], "nowhere: --hf: no config.json"),
        (["to-hf", "--checkpoint", "nowhere", "--out", "x"], "nowhere: --checkpoint: holds no checkpoint"),
        (["to-hf", "--checkpoint", ".", "--out", "x", "--max-shard-gb", "0"], "'0' is not a positive number"),
        (["to-hf", "--checkpoint", ".", "--out", "x", "--dtype", "int8"], "invalid choice: 'int8'"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_ranks_of_a_launcher_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    save_folder(tiny_model("llama", dtype=torch.float32), tmp_path / "hf")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["convert", "to-megatron", "--hf", str(tmp_path / "hf"), "--out", str(tmp_path / "x")]) == 2
    assert "single rank" in capsys.readouterr().err
