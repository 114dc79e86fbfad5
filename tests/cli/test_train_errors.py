"""Whatever a user can get wrong is one line and exit status 2, and nothing already written is lost."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_longstraw.cli import main
from tests.cli.train_runs import ROOT, run

MODEL = ROOT / "tests" / "golden" / "model"
REWARDS = "tests.cli.reward_functions"
SAMPLED: dict[str, Any] = {
    "run_dir": "run",
    "model": {"hf": str(MODEL)},
    "data": {"prompts": "prompts.jsonl"},
    "rollout": {"group_size": 2, "max_response_tokens": 4},
    "reward": {"function": f"{REWARDS}:eventful"},
    "train": {"steps": 1, "groups_per_step": 1},
    "tracking": {"progress": "off"},
}
RECORDED = ["rollout.source=recorded", "rollout.path=recorded.jsonl"]
PROMPT = {"prompt_ids": [5, 6, 7]}


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(yaml.safe_dump(SAMPLED))
    Path("prompts.jsonl").write_text(json.dumps(PROMPT) + "\n")


def refusal(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """Runs in this process; returns the one line on stderr."""
    capsys.readouterr()
    assert main(["train", "config.yaml", *overrides]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("longstraw: ")
    assert errors.count("\n") == 1
    return errors.removeprefix("longstraw: ").rstrip("\n")


def write_group(**response: Any) -> None:
    """Writes one good group, and one on line 2 whose second response is the given one."""
    good = {"ids": [1, 2], "reward": 1.0}
    groups = [PROMPT | {"responses": [good, good]}, PROMPT | {"responses": [good, {"reward": 0.0} | response]}]
    Path("recorded.jsonl").write_text("".join(json.dumps(group) + "\n" for group in groups))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.step=1", "train.step: is not a key; the nearest is train.steps"),
        ("train.steps=many", "train.steps: .*'many'"),
        ("rollout.group_size=1", "rollout.group_size: .*1.*allowed: .*2"),
        ("model.hf=nowhere", "model.hf: 'nowhere' is not a directory"),
        ("model.hf=.", r"model.hf: no config.json"),
        ("data.prompts=nowhere.jsonl", "data.prompts: there is no file 'nowhere.jsonl'"),
        ("data.max_prompt_tokens=2", r"prompts.jsonl:1: prompt_ids: has 3 tokens \(allowed: at most 2"),
        ("reward.function=nowhere:f", "reward.function: 'nowhere' cannot be imported: ModuleNotFoundError"),
        (f"reward.function={REWARDS}:nothing", f"reward.function: '{REWARDS}' has no function 'nothing'"),
        (f"reward.function={REWARDS}:raising", "raised ZeroDivisionError: no reward, and a second line"),
        (f"reward.function={REWARDS}:one_too_few", "returned 1 rewards for 2 responses .*prompts.jsonl:1"),
        ("rollout.stop=[x]", "rollout.stop: needs a tokenizer"),
    ],
)
def test_a_wrong_key_or_file_or_reward_function(
    override: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(expected, refusal(capsys, override))
    assert not Path("run/metrics.jsonl").exists() or Path("run/metrics.jsonl").read_text() == ""
    assert not Path("run/checkpoints").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "prompts.jsonl:2: is not JSON"),
        ("[1]", "prompts.jsonl:2: is not a JSON object"),
        ('{"prompt_ids": []}', "prompts.jsonl:2: prompt_ids: is empty"),
        ('{"prompt": ""}', "prompts.jsonl:2: prompt: is empty"),
        (
            '{"prompt_ids": [97]}',
            r"prompts.jsonl:2: prompt_ids: token id 97 is outside the vocabulary \(allowed: 0 to 96",
        ),
        ('{"prompt_ids": [-1]}', "prompts.jsonl:2: prompt_ids: token id -1 is outside"),
        ('{"question": "?"}', "prompts.jsonl:2: has no prompt"),
    ],
)
def test_a_wrong_line_of_prompts(line: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("prompts.jsonl").write_text(json.dumps(PROMPT) + "\n" + line + "\n")
    assert re.match(expected, refusal(capsys))


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"ids": []}, r"responses\[1\].ids: is empty"),
        ({"ids": [3, 200]}, r"responses\[1\].ids: token id 200 is outside the vocabulary"),
        ({"ids": [3, 4], "loss_mask": [1]}, r"responses\[1\].loss_mask: has 1 entries for 2 tokens"),
        ({"ids": [3, 4], "loss_mask": [1, 2]}, r"responses\[1\].loss_mask: is not a list of 0 and 1"),
        ({"ids": [3], "old_logprobs": [-1.0, -2.0]}, r"responses\[1\].old_logprobs: has 2 entries for 1 tokens"),
        ({"ids": [3], "reward": "good"}, r"responses\[1\].reward: is 'good'"),
        ({}, r"responses\[1\]: has neither ids nor text"),
    ],
)
def test_a_wrong_line_of_recorded_rollouts(
    response: dict[str, Any], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_group(**response)
    assert re.match(f"recorded.jsonl:2: {expected}", refusal(capsys, *RECORDED))


def test_a_run_directory_is_left_as_it_is_by_whatever_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "config.yaml"]) == 0
    files = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert any(path.name == "metrics.jsonl" for path in files)
    shutil.copytree(MODEL, "another_model")
    assert re.match("run: holds another run, which differs in model.hf ", refusal(capsys, "model.hf=another_model"))
    assert "model.dtype" in refusal(capsys, "model.dtype=float64")
    assert "objective.clip_low" in refusal(capsys, "objective.clip_low=0.3")
    refusal(capsys, "train.stps=2")
    Path("prompts.jsonl").write_text("{}\n")
    refusal(capsys, "train.steps=2")
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == files


def test_a_process_says_it_in_one_line_too(tmp_path: Path) -> None:
    overrides = [f"run_dir={tmp_path / 'run'}", f"data.prompts={tmp_path / 'prompts.jsonl'}"]
    Path("prompts.jsonl").write_text('{"prompt_ids": [500]}\n')
    status, errors = run(tmp_path / "config.yaml", *overrides)
    assert status == 2
    assert errors == (
        f"longstraw: {tmp_path / 'prompts.jsonl'}:1: prompt_ids: token id 500 is outside the vocabulary "
        "(allowed: 0 to 96)\n"
    )
