"""What the doctor says."""

import importlib
import io
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from megatron_longstraw import cli, doctor


def report() -> list[str]:
    console = Console(width=240, record=True, file=io.StringIO())
    doctor.show(console)
    return console.export_text().splitlines()


def line(part: str) -> str:
    return next(text for text in report() if part in text)


def test_the_doctor_succeeds_and_names_versions_device_kernels_and_engines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert torch.__version__ in output
    assert all(part in output for part in ("megatron-core", "device", "segment_attention", "engine megatron"))


def test_a_package_that_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    assert "not usable" in line("transformer-engine")


def test_a_package_that_fails_to_import_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apex.py").write_text("raise OSError('libcudart.so is missing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "apex", raising=False)
    importlib.invalidate_caches()
    assert "OSError: libcudart.so is missing" in line("NVIDIA Apex")


def test_another_projects_apex_is_not_taken_for_nvidias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "apex", raising=False)
    assert "is not NVIDIA's Apex" in line("NVIDIA Apex")
    sys.modules.pop("apex")
