"""One run that nothing happened to, for all that compare with it."""

from pathlib import Path

import pytest

from tests.cli.train_runs import run_eventful


@pytest.fixture(scope="package")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run_eventful(run_dir) == (0, "")
    return run_dir
