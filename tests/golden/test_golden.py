"""The golden run comes out as stored: the same ids, the same figures; and twice the same, bit for bit."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.golden.golden_run import FIGURES, Steps, golden_run, stored_steps
from tests.run_files import checkpoint_weights, equal_weights, repeatable_metrics, rollouts

ROOT = Path(__file__).parents[2]
# Processors differ in the last bits; a change of the maths does not hide below it.
FIGURES_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Run:
    folder: Path
    steps: Steps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        folder = tmp_path_factory.mktemp("golden") / "run"
        yield Run(folder, golden_run(folder))


def test_sampled_ids_are_the_stored_ones(run: Run) -> None:
    assert [step["ids"] for step in run.steps] == [step["ids"] for step in stored_steps()]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_the_stored_ones(run: Run, name: str) -> None:
    expected = [step[name] for step in stored_steps()]
    assert [step[name] for step in run.steps] == pytest.approx(expected, rel=FIGURES_TOLERANCE, abs=0.0)


def test_a_second_run_is_the_same_bit_for_bit(run: Run, tmp_path: Path) -> None:
    golden_run(tmp_path / "run")
    assert repeatable_metrics(tmp_path / "run") == repeatable_metrics(run.folder)
    assert rollouts(tmp_path / "run") == rollouts(run.folder)
    weights = (checkpoint_weights(folder, torch.float64) for folder in (tmp_path / "run", run.folder))
    assert equal_weights(*weights)


def test_how_the_run_is_cut_and_kept_changes_no_id_and_no_figure(run: Run, tmp_path: Path) -> None:
    overrides = ["replay.segment_tokens=40", "replay.page_tokens=64", "replay.keep_graph_segments=3"]
    steps = golden_run(tmp_path / "run", *overrides)
    assert [step["ids"] for step in steps] == [step["ids"] for step in run.steps]
    for name in FIGURES:
        expected = [step[name] for step in run.steps]
        assert [step[name] for step in steps] == pytest.approx(expected, rel=FIGURES_TOLERANCE, abs=0.0)


def test_the_run_shows_what_it_is_for(run: Run) -> None:
    config = (ROOT / "tests/golden/config.yaml").read_text()
    prompts = [
        json.loads(line)["prompt_ids"] for line in (ROOT / "tests/golden/prompts.jsonl").read_text().splitlines()
    ]
    assert "segment_tokens: 16" in config
    assert all(60 <= len(prompt) <= 100 for prompt in prompts)
    lengths = [len(ids) for step in run.steps for group in step["ids"] for ids in group]
    # Some end by an end-of-sequence token, some are cut off, and of both some are longer than a segment.
    assert min(lengths) < 16 < max(length for length in lengths if length < 24)
    assert max(lengths) == 24
    # Every step learns, and its gradient is clipped.
    assert all(step["grad_norm"] > 0.5 for step in run.steps)
