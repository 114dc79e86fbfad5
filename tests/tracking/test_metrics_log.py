"""metrics.jsonl: what a line holds, what survives a crash, what a resume drops."""

import json
import math
from pathlib import Path

import pytest

from megatron_longstraw.errors import InputError
from megatron_longstraw.tracking.metrics import METRIC_NAMES, MetricsLog, StepMetrics

# Typed from the list of names that stay stable.
STABLE_NAMES = [
    "loss",
    "reward/mean",
    "reward/std",
    "advantage/abs_mean",
    "group/zero_spread",
    "policy/ratio_mean",
    "policy/clip_fraction",
    "policy/kl",
    "policy/entropy",
    "policy/logprob_drift",
    "grad_norm",
    "lr",
    "tokens/prompt",
    "tokens/response",
    "response/length_mean",
    "response/truncated",
    "time/capture_s",
    "time/rollout_s",
    "time/score_s",
    "time/replay_s",
    "time/prompt_backward_s",
    "time/finalize_s",
    "time/step_s",
    "throughput/tokens_per_s",
    "throughput/tflops",
    "memory/peak_bytes",
    "memory/state_bytes",
    "memory/cotangent_bytes",
]
LAYOUT = {"tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "data": 1}
CLAIM = {"gradient": "full", "state_age": 0, "layout": LAYOUT}


def line(step: int, **figures: float) -> dict[str, object]:
    return {"step": step, **CLAIM, **figures}


def steps(log: MetricsLog) -> list[object]:
    return [entry["step"] for entry in log.lines()]


def test_names_are_the_stable_ones() -> None:
    assert sorted(METRIC_NAMES) == sorted(STABLE_NAMES)


def test_a_step_averages_figures_sums_times_and_keeps_the_highest_peak() -> None:
    step = StepMetrics()
    for value in (1.0, 2.0, 6.0):
        step.add(dict.fromkeys(STABLE_NAMES, value))
    got = step.figures()
    assert {name: got[name] for name in STABLE_NAMES if name.startswith("time/")} == {
        name: 9.0 for name in STABLE_NAMES if name.startswith("time/")
    }
    assert {got[name] for name in STABLE_NAMES if name.startswith("memory/")} == {6.0}
    assert {got[name] for name in STABLE_NAMES if not name.startswith(("time/", "memory/"))} == {3.0}


def test_a_figure_of_the_whole_step_is_itself() -> None:
    step = StepMetrics()
    step.add({"loss": 1.0})
    step.add({"loss": 2.0})
    step.add({"group/zero_spread": 3.0, "time/step_s": 4.0})
    assert step.figures() == {"loss": 1.5, "group/zero_spread": 3.0, "time/step_s": 4.0}


def test_a_line_carries_every_figure_and_its_claim() -> None:
    step = StepMetrics()
    step.add(dict.fromkeys(STABLE_NAMES, 1.0))
    got = step.line(7, gradient=4096, state_age=0, layout=LAYOUT)
    assert set(got) == {"step", "gradient", "state_age", "layout", *STABLE_NAMES}
    assert (got["step"], got["gradient"], got["state_age"], got["layout"]) == (7, 4096, 0, LAYOUT)


def test_a_line_without_a_figure_or_with_an_unknown_one_is_refused() -> None:
    step = StepMetrics()
    step.add(dict.fromkeys(STABLE_NAMES[1:], 1.0))
    with pytest.raises(AssertionError, match="loss"):
        step.line(1, gradient="full", state_age=0, layout=LAYOUT)
    with pytest.raises(AssertionError, match="reward/median"):
        step.add({"reward/median": 1.0})


def test_a_line_has_the_means_of_single_reward_functions_after_all_other_figures() -> None:
    step = StepMetrics()
    step.add({"reward/exact_match/mean": 0.25, "reward/regex_2/mean": 1.0})
    step.add(dict.fromkeys(STABLE_NAMES, 1.0))
    got = step.line(7, gradient="full", state_age=0, layout=LAYOUT)
    assert list(got.items())[-2:] == [("reward/exact_match/mean", 0.25), ("reward/regex_2/mean", 1.0)]
    for unknown in ("reward/exact_match", "reward/a/b/mean", "rewards/a/mean", "reward//mean"):
        with pytest.raises(AssertionError, match=unknown):
            step.add({unknown: 1.0})


def test_lines_are_appended_one_object_each(tmp_path: Path) -> None:
    MetricsLog(tmp_path).append(line(1, loss=0.25))
    MetricsLog(tmp_path).append(line(2, loss=0.5))
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(row) for row in text.split("\n")[:-1]] == [line(1, loss=0.25), line(2, loss=0.5)]
    assert text.endswith("\n")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_is_not_finite_is_never_written(tmp_path: Path, value: float) -> None:
    log = MetricsLog(tmp_path)
    with pytest.raises(AssertionError, match="loss"):
        log.append(line(1, loss=value))
    assert log.path.read_bytes() == b""


@pytest.mark.parametrize("name", ["step", "gradient", "state_age", "layout"])
def test_a_line_without_its_claim_is_refused(tmp_path: Path, name: str) -> None:
    entry = line(1, loss=1.0)
    del entry[name]
    with pytest.raises(AssertionError, match=name):
        MetricsLog(tmp_path).append(entry)


@pytest.mark.parametrize(
    ("resume_step", "kept"), [(0, []), (2, [1, 2]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4]), (None, [1, 2, 3, 4])]
)
def test_resuming_drops_the_lines_of_steps_that_run_again(
    tmp_path: Path, resume_step: int | None, kept: list[int]
) -> None:
    log = MetricsLog(tmp_path)
    for step in range(1, 5):
        log.append(line(step))
    resumed = MetricsLog(tmp_path, resume_step)
    assert steps(resumed) == kept
    resumed.append(line(len(kept) + 1))
    assert steps(resumed) == [*kept, len(kept) + 1]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_torn_by_a_crash_is_dropped(tmp_path: Path, cut: int) -> None:
    log = MetricsLog(tmp_path)
    log.append(line(1, loss=0.5))
    log.append(line(2, loss=0.5))
    log.path.write_bytes(log.path.read_bytes()[:-cut])
    assert steps(MetricsLog(tmp_path)) == [1]


def test_a_crash_while_dropping_lines_leaves_the_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.append(line(step))

    def crash(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            MetricsLog(tmp_path, 1)
    assert steps(log) == [1, 2, 3]
    assert steps(MetricsLog(tmp_path, 1)) == [1]


@pytest.mark.parametrize("row", ["not json", "[1]", '{"loss": 1}'])
def test_a_spoiled_file_is_an_input_error_that_names_the_line(tmp_path: Path, row: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(line(1))}\n{row}\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: "):
        MetricsLog(tmp_path)
