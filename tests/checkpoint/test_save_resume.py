"""A run continues from a checkpoint as if it had never stopped, whenever it was stopped."""

import json
import logging
import multiprocessing
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatron_longstraw.checkpoint import folder as folder_module
from megatron_longstraw.checkpoint import save as save_module
from megatron_longstraw.checkpoint.resume import (
    check_same_run,
    hf_folder_of,
    latest_checkpoint,
    load_checkpoint,
    load_weights,
)
from megatron_longstraw.checkpoint.save import save_checkpoint
from megatron_longstraw.config.load import dump_config, load_config
from megatron_longstraw.config.schema import Config
from megatron_longstraw.engine.megatron import MegatronEngine
from megatron_longstraw.errors import InputError
from megatron_longstraw.model.build import build_model, read_hf_config
from megatron_longstraw.parallel.layout import ParallelLayout
from tests.checkpoint.engines import engine_with, step, weights
from tests.oracle.conventional import save_folder, tiny_model
from tests.run_files import equal_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
TRACKER = "latest_checkpointed_iteration.txt"
Build = Callable[..., MegatronEngine]


class Killed(BaseException):
    """Stands for the end of the process: nothing in the program may catch it and clean up."""


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_folder(tiny_model("qwen3_tied", dtype=torch.float32), tmp_path_factory.mktemp("hf"))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def build(layout: ParallelLayout, hf_folder: Path) -> Build:
    """Builds an engine whose weights are those of a seed."""

    def make(dtype: torch.dtype = torch.float32, optimizer: str = "adam", seed: int = 0) -> MegatronEngine:
        return engine_with(hf_folder, layout, dtype, optimizer, seed)

    return make


def save(run_dir: Path, iteration: int, engine: MegatronEngine, hf_folder: Path, keep: int = 0) -> Path:
    return save_checkpoint(run_dir, iteration, engine, {"step": iteration}, keep=keep, hf_folder=hf_folder)


def load_latest(run_dir: Path, engine: MegatronEngine) -> int:
    found = latest_checkpoint(run_dir)
    assert found is not None
    extra = load_checkpoint(found[1], engine)
    assert extra["step"] == found[0]
    return found[0]


@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
def test_steps_after_a_resume_are_those_of_a_run_that_never_stopped(
    build: Build, hf_folder: Path, run_dir: Path, dtype: torch.dtype, optimizer: str, steps_before: int
) -> None:
    engine = build(dtype, optimizer)
    for seed in range(steps_before):
        step(engine, seed)
    save(run_dir, steps_before, engine, hf_folder)
    resumed = build(dtype, optimizer, seed=1)
    assert not equal_weights(weights(engine), weights(resumed))
    load_latest(run_dir, resumed)
    assert equal_weights(weights(engine), weights(resumed))
    for seed in range(10, 13):
        step(engine, seed)
        step(resumed, seed)
        assert equal_weights(weights(engine), weights(resumed))


def test_float32_main_weights_of_a_bfloat16_model_are_kept(build: Build, hf_folder: Path, run_dir: Path) -> None:
    engine = build(torch.bfloat16)
    step(engine, 0)
    save(run_dir, 1, engine, hf_folder)
    resumed = build(torch.bfloat16, seed=1)
    load_latest(run_dir, resumed)
    pairs = zip(engine.optimizer.get_parameters(), resumed.optimizer.get_parameters(), strict=True)
    main = [
        (first.main_param, second.main_param) if hasattr(first, "main_param") else (first, second)
        for first, second in pairs
    ]
    assert all(first.dtype is torch.float32 and torch.equal(first, second) for first, second in main)
    # Otherwise rounded weights would pass for main weights.
    assert any(not torch.equal(first, first.bfloat16().float()) for first, _ in main)


def test_random_generators_go_on_where_they_were(build: Build, hf_folder: Path, run_dir: Path) -> None:
    def draw() -> tuple[list[float], float, float]:
        return torch.rand(3).tolist(), random.gauss(0, 1), float(np.random.normal())  # noqa: NPY002

    engine = build()
    draw()
    save(run_dir, 1, engine, hf_folder)
    expected = [draw(), draw()]
    resumed = build(seed=7)
    draw()
    load_latest(run_dir, resumed)
    assert [draw(), draw()] == expected


def test_extra_comes_back_as_it_was(build: Build, hf_folder: Path, run_dir: Path) -> None:
    extra = {"position": {"step": 3, "row": 12}, "name": "ä", "figures": [0.1, None]}
    folder = save_checkpoint(run_dir, 3, build(), extra, keep=1, hf_folder=hf_folder)
    assert load_checkpoint(folder, build()) == extra


def test_checkpoint_lies_where_tools_look_for_it(build: Build, hf_folder: Path, run_dir: Path) -> None:
    folder = save(run_dir, 12, build(), hf_folder)
    assert folder == run_dir / "checkpoints" / "iter_0000012"
    assert (run_dir / "checkpoints" / TRACKER).read_text().strip() == "12"
    assert {"metadata.json", "common.pt", ".metadata"} <= {path.name for path in folder.iterdir()}


def test_checkpoint_suffices_to_build_the_model(
    build: Build, hf_folder: Path, run_dir: Path, layout: ParallelLayout
) -> None:
    engine = build()
    save(run_dir, 1, engine, hf_folder)
    names = {path.name for path in hf_folder_of(run_dir).iterdir()}
    assert {"config.json", "tokenizer.json"} <= names
    assert not any(name.endswith(".safetensors") for name in names)
    model = build_model(read_hf_config(hf_folder_of(run_dir)), torch.float64, layout)
    load_weights(run_dir, model)
    expected = {name.removeprefix("module."): value.double() for name, value in weights(engine).items()}
    assert equal_weights(expected, {name: value.detach() for name, value in model.named_parameters()})


@pytest.mark.parametrize("place", [".", "checkpoints", "checkpoints/iter_0000001"])
def test_weights_are_found_from_a_run_its_checkpoints_or_one_of_them(
    build: Build, hf_folder: Path, run_dir: Path, layout: ParallelLayout, place: str
) -> None:
    engine = build()
    save(run_dir, 1, engine, hf_folder)
    other = build(seed=1)
    load_weights(run_dir / place, other.model.module)
    assert equal_weights(weights(engine), weights(other))


def test_weights_of_another_model_are_refused(
    build: Build, hf_folder: Path, run_dir: Path, layout: ParallelLayout
) -> None:
    save(run_dir, 1, build(), hf_folder)
    config = read_hf_config(hf_folder)
    config.intermediate_size *= 2
    with pytest.raises(InputError, match="iter_0000001: does not fit the model"):
        load_weights(run_dir, build_model(config, torch.float32, layout))


def test_folder_without_a_checkpoint_is_refused(run_dir: Path) -> None:
    with pytest.raises(InputError, match=r"model\.checkpoint: holds no checkpoint"):
        hf_folder_of(run_dir)


def test_nothing_saved_is_nothing_to_resume(run_dir: Path) -> None:
    assert latest_checkpoint(run_dir) is None


def test_saving_leaves_no_process_and_no_message_behind(
    build: Build, hf_folder: Path, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for iteration in (1, 2, 2):
        save(run_dir, iteration, build(), hf_folder)
    assert multiprocessing.active_children() == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(("keep", "left"), [(0, [1, 2, 3, 4]), (1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4])])
def test_so_many_of_the_newest_checkpoints_stay(
    build: Build, hf_folder: Path, run_dir: Path, keep: int, left: list[int]
) -> None:
    engine = build()
    for iteration in range(1, 5):
        save(run_dir, iteration, engine, hf_folder, keep)
    names = sorted(path.name for path in (run_dir / "checkpoints").iterdir() if path.is_dir())
    assert names == [f"iter_{iteration:07d}" for iteration in left]


def test_an_iteration_can_be_saved_again(build: Build, hf_folder: Path, run_dir: Path) -> None:
    engine = build()
    save(run_dir, 1, engine, hf_folder)
    step(engine, 0)
    save(run_dir, 1, engine, hf_folder, keep=1)
    assert [path.name for path in (run_dir / "checkpoints").iterdir() if path.is_dir()] == ["iter_0000001"]
    resumed = build(seed=1)
    load_latest(run_dir, resumed)
    assert equal_weights(weights(engine), weights(resumed))


class _KillAt:
    """Lets so many calls of the operations that change the disk pass, and stops the program before the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
        self.left = calls
        operations = [
            (save_module.torch_dist.dist_checkpointing, "save"),
            (save_module.torch_dist.torch_dist.checkpoint, "save"),
            (save_module.shutil, "copyfile"),
            (save_module.shutil, "rmtree"),
            (Path, "mkdir"),
            (Path, "rename"),
            (Path, "write_text"),
            (folder_module.os, "replace"),
            (folder_module.os, "fsync"),
        ]
        for owner, name in operations:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            return operation(*args, **kwargs)

        return run


@pytest.mark.filterwarnings("ignore:.*iter_0000001 is missing; going on from iter_0000001.replaced")
@pytest.mark.parametrize("again", [False, True], ids=["the-next-iteration", "the-same-iteration-again"])
def test_a_save_stopped_at_any_moment_leaves_the_former_or_the_new_checkpoint(
    build: Build, hf_folder: Path, run_dir: Path, again: bool
) -> None:
    engine, resumed = build(), build(seed=1)
    save(run_dir, 1, engine, hf_folder)
    former = weights(engine)
    pristine = shutil.copytree(run_dir, run_dir.with_name("pristine"))
    step(engine, 0)
    latest = weights(engine)
    iteration, outcomes = (1 if again else 2), []
    for calls in range(200):
        shutil.rmtree(run_dir)
        shutil.copytree(pristine, run_dir)
        with pytest.MonkeyPatch.context() as monkeypatch:
            killer = _KillAt(monkeypatch, calls)
            try:
                save(run_dir, iteration, engine, hf_folder, keep=1)
            except (Killed, save_module.torch_dist.torch_dist.checkpoint.CheckpointException):
                killer.left = -1
            finished = killer.left >= 0
        found = load_latest(run_dir, resumed)
        outcomes.append(equal_weights(weights(resumed), latest))
        assert outcomes[-1] or equal_weights(weights(resumed), former)
        if not again:
            assert found == (2 if outcomes[-1] else 1)
        if finished:
            break
        # Whatever was left behind is no hindrance to the next save.
        if calls % 5 == 0:
            save(run_dir, iteration, engine, hf_folder, keep=1)
            load_latest(run_dir, resumed)
            assert equal_weights(weights(resumed), latest)
            names = [path.name for path in (run_dir / "checkpoints").iterdir() if path.is_dir()]
            assert names == [f"iter_{iteration:07d}"]
    # It was stopped before and after the decisive moment, and once not at all.
    assert finished
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert outcomes == sorted(outcomes)
    assert len(outcomes) > 20


def break_tracker(checkpoints: Path) -> None:
    (checkpoints / TRACKER).write_text("x")


def lose_tracker(checkpoints: Path) -> None:
    (checkpoints / TRACKER).unlink()


def lose_newest(checkpoints: Path) -> None:
    shutil.rmtree(checkpoints / "iter_0000003")


def cut_weights(checkpoints: Path) -> None:
    file = next((checkpoints / "iter_0000003").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])


def lose_index(checkpoints: Path) -> None:
    (checkpoints / "iter_0000003" / ".metadata").unlink()


def lose_manifest(checkpoints: Path) -> None:
    (checkpoints / "iter_0000003" / "manifest.json").unlink()


def cut_manifest(checkpoints: Path) -> None:
    (checkpoints / "iter_0000003" / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "warning", "iteration"),
    [
        (break_tracker, "names no iteration", 3),
        (lose_tracker, "is missing", 3),
        (lose_newest, "iter_0000003 is missing", 2),
        (cut_weights, r"iter_0000003 has \d+ of the \d+ bytes of __0_0.distcp", 2),
        (lose_index, "iter_0000003 lacks .metadata", 2),
        (lose_manifest, "iter_0000003 has no manifest.json", 2),
        (cut_manifest, "iter_0000003 has a damaged manifest.json", 2),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    build: Build, hf_folder: Path, run_dir: Path, damage: Callable[[Path], None], warning: str, iteration: int
) -> None:
    engine = build()
    for saved in range(1, 4):
        save(run_dir, saved, engine, hf_folder)
    damage(run_dir / "checkpoints")
    with pytest.warns(UserWarning, match=warning):
        assert latest_checkpoint(run_dir) == (iteration, run_dir / "checkpoints" / f"iter_{iteration:07d}")


def test_a_run_without_any_whole_checkpoint_is_an_input_error(build: Build, hf_folder: Path, run_dir: Path) -> None:
    for iteration in (2, 3):
        save(run_dir, iteration, build(), hf_folder)
        (run_dir / "checkpoints" / f"iter_{iteration:07d}" / "common.pt").unlink()
    with pytest.raises(InputError, match=r"iter_0000003 lacks common.pt; iter_0000002 lacks common.pt"):
        latest_checkpoint(run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "iter_0000003")
    shutil.rmtree(run_dir / "checkpoints" / "iter_0000002")
    with pytest.raises(InputError, match="iter_0000003 is missing"):
        latest_checkpoint(run_dir)


def test_checkpoints_beyond_the_tracked_one_are_neither_resumed_nor_counted(
    build: Build, hf_folder: Path, run_dir: Path
) -> None:
    engine = build()
    for iteration in (1, 5):
        save(run_dir, iteration, engine, hf_folder)
    (run_dir / "checkpoints" / TRACKER).write_text("1")
    save(run_dir, 2, engine, hf_folder, keep=2)
    found = latest_checkpoint(run_dir)
    assert found is not None
    assert found[0] == 2
    assert (run_dir / "checkpoints" / "iter_0000001").is_dir()


def test_optimizer_of_another_kind_is_an_input_error(build: Build, hf_folder: Path, run_dir: Path) -> None:
    folder = save(run_dir, 1, build(optimizer="sgd"), hf_folder)
    with pytest.raises(InputError, match="iter_0000001: does not fit the model"):
        load_checkpoint(folder, build(optimizer="adam"))


@pytest.fixture
def former_run(run_dir: Path) -> Path:
    """A run's directory that holds its config and the line of a step."""
    run_dir.mkdir()
    defaults = Config()
    config = replace(
        defaults,
        model=replace(defaults.model, hf="m"),
        data=replace(defaults.data, prompts="p.jsonl"),
        reward=replace(defaults.reward, function="rewards:length"),
    )
    (run_dir / "config.yaml").write_text(dump_config(config))
    (run_dir / "metrics.jsonl").write_text('{"step": 1}\n')
    return run_dir


def same_run_with(run_dir: Path, key: str, value: object) -> Config:
    """The directory's own config with one key changed."""
    config = load_config(run_dir / "config.yaml")
    section, _, name = key.partition(".")
    return replace(config, **{section: replace(getattr(config, section), **{name: value})})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.hf", "other"),
        ("model.dtype", "float64"),
        ("data.seed", 3),
        ("rollout.group_size", 9),
        ("objective.clip_low", 0.1),
        ("replay.prompt_gradient", "stop"),
        ("replay.state_dtype", "bfloat16"),
        ("replay.cotangent_dtype", "bfloat16"),
        ("optimizer.lr", 1.0),
        ("train.seed", 5),
        ("train.groups_per_step", 3),
        ("train.groups_per_update", 2),
        ("train.updates_per_rollout", 2),
        ("reward.function", "rewards:other"),
    ],
)
def test_directory_of_another_run_is_refused_by_the_key_that_differs(former_run: Path, key: str, value: object) -> None:
    config = same_run_with(former_run, key, value)
    with pytest.raises(InputError) as refusal:
        check_same_run(former_run, config)
    assert f"which differs in {key} (there " in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.steps", 1000),
        ("checkpoint.every", 7),
        ("checkpoint.keep", 0),
        ("tracking.progress", "off"),
        ("replay.segment_tokens", 77),
        ("replay.page_tokens", 77),
        ("replay.keep_graph_segments", 3),
        ("replay.tier", "host"),
        ("data.token_cache", "tokens"),
    ],
)
def test_a_run_may_go_on_with_other_settings_of_these(former_run: Path, key: str, value: object) -> None:
    check_same_run(former_run, same_run_with(former_run, key, value))


def test_a_directory_without_a_run_is_free(run_dir: Path) -> None:
    check_same_run(run_dir, Config())


def test_extra_is_readable_without_the_program(build: Build, hf_folder: Path, run_dir: Path) -> None:
    folder = save(run_dir, 4, build(), hf_folder)
    assert json.loads((folder / "extra.json").read_text()) == {"step": 4}


def test_a_directory_where_no_step_was_finished_takes_any_run(former_run: Path) -> None:
    (former_run / "metrics.jsonl").write_text("")
    check_same_run(former_run, same_run_with(former_run, "model.hf", "other"))


def test_a_path_written_in_another_way_is_the_same_run(former_run: Path) -> None:
    check_same_run(former_run, same_run_with(former_run, "model.hf", str(Path("m").resolve())))
