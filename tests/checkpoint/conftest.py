"""A world of one rank, and model folders, for every test of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_longstraw.device import cpu
from megatron_longstraw.parallel.layout import ParallelLayout, process_groups


@pytest.fixture(scope="module")
def layout() -> Iterator[ParallelLayout]:
    cpu.install()
    with process_groups() as groups:
        yield groups


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"
