"""A run that is killed, interrupted or fails ends, when started again, with the numbers of one that never stopped."""

import time
from pathlib import Path

import pytest

from tests.cli.train_runs import EVENTFUL, GOLDEN_CONFIG, assert_same_run, run_eventful, start
from tests.run_files import metrics

KILLED, INTERRUPTED, BAD_INPUT = -9, 130, 2


def saved_step(run_dir: Path) -> int:
    return int((run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())


def kill_when_lines_reach(run_dir: Path, lines: int) -> int:
    """Starts the run and kills it once `metrics.jsonl` has so many lines; returns its exit status."""
    process = start(GOLDEN_CONFIG, f"run_dir={run_dir}", *EVENTFUL)
    file = run_dir / "metrics.jsonl"
    while process.poll() is None and not (file.is_file() and file.read_bytes().count(b"\n") >= lines):
        time.sleep(0.005)
    process.kill()
    process.communicate()
    return process.returncode


@pytest.mark.slow
def test_killed_between_and_within_steps_it_goes_on_to_the_same_numbers(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    # Before anything is saved, within the second step: it starts over.
    assert run_eventful(run_dir, "4:SIGKILL") == (KILLED, "")
    assert len(metrics(run_dir)) == 1
    # After the line of a step that no checkpoint holds.
    assert kill_when_lines_reach(run_dir, 5) == KILLED
    assert saved_step(run_dir) in (3, 6)
    assert run_eventful(run_dir, "4:SIGKILL") == (KILLED, "")
    assert run_eventful(run_dir) == (0, "")
    assert_same_run(run_dir, undisturbed)


@pytest.mark.slow
def test_signals_finish_the_step_and_save_and_a_second_one_stops_at_once(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for step, (calls, name) in enumerate([(3, "SIGINT"), (1, "SIGTERM")], start=2):
        status, errors = run_eventful(run_dir, f"{calls}:{name}")
        assert status == INTERRUPTED
        assert errors.splitlines() == [
            f"{name}: stopping after this step and saving; once more stops at once",
            f"longstraw: stopped after step {step}, saved in {run_dir}; the same command goes on",
        ]
        assert (len(metrics(run_dir)), saved_step(run_dir)) == (step, step)
    status, errors = run_eventful(run_dir, "3:SIGTERM,4:SIGINT")
    assert status == INTERRUPTED
    assert errors.splitlines()[1:] == ["longstraw: interrupted"]
    assert (len(metrics(run_dir)), saved_step(run_dir)) == (4, 3)
    assert run_eventful(run_dir) == (0, "")
    assert_same_run(run_dir, undisturbed)


@pytest.mark.slow
def test_a_reward_function_that_raises_costs_no_step_before_it(undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    status, errors = run_eventful(run_dir, "10:RAISE")
    assert status == BAD_INPUT
    assert errors.count("\n") == 1
    assert "tests.cli.reward_functions:eventful raised ZeroDivisionError: no reward today" in errors
    # Within step 5; the cadence had saved step 3.
    assert (len(metrics(run_dir)), saved_step(run_dir)) == (4, 4)
    assert run_eventful(run_dir) == (0, "")
    assert_same_run(run_dir, undisturbed)


def test_the_newest_checkpoints_are_kept(undisturbed: Path) -> None:
    assert "checkpoint.keep=2" in EVENTFUL
    folders = sorted(path.name for path in (undisturbed / "checkpoints").glob("iter_*"))
    assert folders == ["iter_0000006", "iter_0000008"]
