"""W&B offline for real: a process logs without a network, and its log file holds what was logged."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_longstraw.errors import InputError
from megatron_longstraw.tracking.wandb import WandbRun

ROOT = Path(__file__).parents[2]
RUN = """
import json, sys
from megatron_longstraw.tracking.wandb import WandbRun
run = WandbRun(sys.argv[1], mode="offline", project="straw", name="first", config={"optimizer": {"lr": 0.125}})
for line in json.loads(sys.argv[2]):
    run.append(line)
run.close()
"""
LINES = [
    {"step": 1, "gradient": "full", "state_age": 0, "layout": {"tensor": 2}, "loss": 0.0625, "reward/mean": 0.5},
    {"step": 2, "gradient": "full", "state_age": 0, "layout": {"tensor": 2}, "loss": 0.03125, "reward/mean": 0.75},
]
BLOCK, FILE_HEADER, RECORD_HEADER = 32768, 7, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def without_network() -> list[str]:
    """A prefix that takes the network away from a command, where this machine lets us."""
    prefix = ["unshare", "--map-root-user", "--net"]
    try:
        allowed = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    return prefix if allowed else []


def log_offline(run_dir: Path, home: Path, lines: list[dict[str, object]]) -> str:
    command = [*without_network(), sys.executable, "-c", RUN, str(run_dir), json.dumps(lines)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def log_records(path: Path) -> list[Any]:
    """Reads W&B's file: a LevelDB log of protobuf messages behind a file header."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    content = path.read_bytes()
    records, parts, position = [], b"", FILE_HEADER
    while position + RECORD_HEADER <= len(content):
        left_in_block = BLOCK - position % BLOCK
        if left_in_block < RECORD_HEADER:
            position += left_in_block
            continue
        length = int.from_bytes(content[position + 4 : position + 6], "little")
        kind = content[position + 6]
        assert kind in (FULL, FIRST, MIDDLE, LAST)
        part = content[position + RECORD_HEADER :][:length]
        parts = part if kind in (FULL, FIRST) else parts + part
        if kind in (FULL, LAST):
            records.append(messages.Record.FromString(parts))
        position += RECORD_HEADER + length
    return records


def history(records: list[Any]) -> list[dict[str, Any]]:
    rows = [record.history.item for record in records if record.WhichOneof("record_type") == "history"]
    return [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]


def only_log(run_dir: Path) -> Path:
    (path,) = (run_dir / "wandb").glob("offline-run-*/run-*.wandb")
    return path


def test_offline_keeps_every_line_without_account_or_network(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    output = log_offline(run_dir, tmp_path, LINES)
    records = log_records(only_log(run_dir))
    got = history(records)
    assert len(got) == len(LINES)
    for row, line in zip(got, LINES, strict=True):
        for name, value in line.items():
            assert row.get(name, row.get(f"{name}.tensor")) == (value["tensor"] if name == "layout" else value)
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name) == ("straw", "first")
    assert {item.key: json.loads(item.value_json) for item in run.config.update}["optimizer"] == {"lr": 0.125}
    assert output == ""


def test_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    log_offline(tmp_path, tmp_path, LINES[:1])
    first = only_log(tmp_path)
    log_offline(tmp_path, tmp_path, LINES[1:])
    paths = set((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    (second,) = paths - {first}
    assert second.name == first.name
    assert [row["step"] for path in (first, second) for row in history(log_records(path))] == [1, 2]


def test_disabled_needs_no_package_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = WandbRun(tmp_path, mode="disabled", project="straw", name=None, config={})
    run.append(LINES[0])
    run.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_missing_package_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=rf"^tracking\.wandb\.mode: {mode} needs .*\(allowed: disabled, or .*\)$"):
        WandbRun(tmp_path, mode=mode, project="straw", name=None, config={})
