"""What `longstraw train` computes and leaves behind, from a model folder to a checkpoint."""

import json
import math
from pathlib import Path

import pytest
import torch
import yaml

from megatron_longstraw.cli import main
from megatron_longstraw.tracking.metrics import CLAIM_NAMES, METRIC_NAMES
from tests.cli.train_runs import EVENTFUL, GOLDEN_CONFIG, ROOT, run
from tests.oracle.conventional import grpo_gradient, relative_difference, save_folder, tiny_model
from tests.product import write_recorded
from tests.replay.cases import Case, recorded_groups
from tests.run_files import checkpoint_weights, equal_weights, metrics, rollouts

# Relative L2 of the whole gradient; weights of about 1 round the difference of float32 ones to some 1e-7 of them.
TOLERANCES = {"float64": 1e-12, "float32": 2e-5}
CASE = Case(((45, (7, 30, 12)), (1, (5, 1))), 16, masked=True, off_policy=True)


def recorded_run(folder: Path, model_folder: Path, groups: list, *overrides: str) -> list[str]:
    """Arguments of one plain SGD step on recorded groups, after the command `train`."""
    write_recorded(folder / "recorded.jsonl", groups)
    config = {
        "run_dir": str(folder / "run"),
        "model": {"hf": str(model_folder)},
        "rollout": {"source": "recorded", "path": str(folder / "recorded.jsonl")},
        "optimizer": {"name": "sgd", "lr": 1.0, "clip_grad": 0},
        "train": {"steps": 1, "groups_per_step": len(groups)},
        "tracking": {"progress": "off"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return [str(folder / "config.yaml"), *overrides]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["llama", "qwen3_tied"])
def test_one_plain_step_changes_the_weights_by_minus_the_oracle_gradient(kind: str, dtype: str, tmp_path: Path) -> None:
    groups = recorded_groups(CASE, kind)
    before = tiny_model(kind)
    arguments = recorded_run(tmp_path, save_folder(before, tmp_path / "model"), groups, *CASE.overrides)
    assert run(*arguments, f"model.dtype={dtype}") == (0, "")
    truth = grpo_gradient(before, groups, **CASE.settings)
    after = checkpoint_weights(tmp_path / "run", getattr(torch, dtype))
    change = {name: before.get_parameter(name).detach() - after[name] for name in after}
    assert relative_difference(change, truth.gradients) <= TOLERANCES[dtype]
    (line,) = metrics(tmp_path / "run")
    assert line["loss"] == pytest.approx(truth.loss, rel=TOLERANCES[dtype])


def test_the_run_directory_holds_what_it_promises(undisturbed: Path) -> None:
    config = yaml.safe_load((undisturbed / "config.yaml").read_text())
    assert (config["train"]["steps"], config["rollout"]["top_k"]) == (8, 60)
    lines = metrics(undisturbed)
    assert [line["step"] for line in lines] == list(range(1, 9))
    for line in lines:
        assert set(line) == {"step", *CLAIM_NAMES, *METRIC_NAMES}
        assert all(math.isfinite(line[name]) for name in METRIC_NAMES)
        assert (line["gradient"], line["state_age"]) == ("full", 0)
        assert line["layout"] == {"tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "data": 1}
    assert sorted(path.name for path in (undisturbed / "rollouts").iterdir()) == [
        f"step_{step:06d}.jsonl" for step in range(1, 9)
    ]
    assert (undisturbed / "checkpoints" / "latest_checkpointed_iteration.txt").read_text().strip() == "8"
    assert (undisturbed / "checkpoints" / "iter_0000008").is_dir()


def test_figures_are_those_of_the_rollouts(undisturbed: Path) -> None:
    for line, groups in zip(metrics(undisturbed), rollouts(undisturbed), strict=True):
        responses = [response for group in groups for response in group["responses"]]
        lengths = [len(response["ids"]) for response in responses]
        assert line["reward/mean"] == pytest.approx(sum(r["reward"] for r in responses) / len(responses))
        assert line["tokens/prompt"] == sum(len(group["prompt_ids"]) for group in groups)
        assert line["tokens/response"] == sum(lengths)
        assert line["response/length_mean"] == pytest.approx(sum(lengths) / len(lengths))
        assert line["policy/logprob_drift"] < 1e-9


def test_rollouts_of_a_sampled_run_train_to_the_same_numbers_when_they_are_fed_back(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text("".join(file.read_text() for file in sorted((undisturbed / "rollouts").iterdir())))
    source = [f"run_dir={tmp_path / 'run'}", "rollout.source=recorded", f"rollout.path={recorded}"]
    assert main(["train", GOLDEN_CONFIG, *EVENTFUL, *source]) == 0
    for again, line in zip(metrics(tmp_path / "run"), metrics(undisturbed), strict=True):
        for name in ("loss", "grad_norm", "reward/mean", "policy/ratio_mean", "policy/entropy", "response/truncated"):
            assert again[name] == line[name], name
    assert equal_weights(
        checkpoint_weights(tmp_path / "run", torch.float64), checkpoint_weights(undisturbed, torch.float64)
    )


def change_groups(groups: list, what: str) -> list:
    """Takes away what a group could teach."""
    for group in groups:
        for response in group["responses"]:
            if what == "rewards equal":
                response["reward"] = 0.7
            elif what == "all masked":
                response["loss_mask"] = [0] * len(response["ids"])
            elif what == "all unscored":
                response["reward"] = None
    return groups


@pytest.mark.parametrize("what", ["rewards equal", "all masked", "all unscored"])
@pytest.mark.filterwarnings("ignore:.*scored")
def test_a_step_with_nothing_to_learn_from_changes_nothing(what: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    groups = change_groups(recorded_groups(Case(((20, (4, 9)), (7, (3, 3, 5))), 8), "llama"), what)
    arguments = recorded_run(tmp_path, save_folder(model, tmp_path / "model"), groups, "model.dtype=float64")
    assert main(["train", *arguments]) == 0
    (line,) = metrics(tmp_path / "run")
    assert (line["loss"], line["grad_norm"]) == (0.0, 0.0)
    assert all(math.isfinite(line[name]) for name in METRIC_NAMES)
    before = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert equal_weights(checkpoint_weights(tmp_path / "run", torch.float64), before)


def test_a_second_pass_over_a_rollout_is_off_policy(tmp_path: Path) -> None:
    model_folder = save_folder(tiny_model("llama"), tmp_path / "model")
    groups = recorded_groups(Case(((20, (4, 9)),), 8), "llama")
    ratios = {}
    for passes in (1, 2):
        folder = tmp_path / str(passes)
        folder.mkdir()
        overrides = ["model.dtype=float64", f"train.updates_per_rollout={passes}", "optimizer.lr=0.1"]
        assert main(["train", *recorded_run(folder, model_folder, groups, *overrides)]) == 0
        (line,) = metrics(folder / "run")
        ratios[passes] = line["policy/ratio_mean"]
        # What the second pass is compared with is stored, so that it can be fed back.
        (group,) = json.loads(f"[{(folder / 'run' / 'rollouts' / 'step_000001.jsonl').read_text()}]")
        assert all(len(response["old_logprobs"]) == len(response["ids"]) for response in group["responses"])
    assert ratios[1] == 1.0
    # The mean over both passes, of which the first has the ratio 1.
    assert abs(2 * ratios[2] - 1 - 1.0) > 1e-4
