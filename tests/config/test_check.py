"""Keys that must go together, what is not supported yet, and the files that a configuration names."""

from pathlib import Path

import pytest

from megatron_longstraw.config.check import check_files
from megatron_longstraw.config.load import load_config
from megatron_longstraw.errors import InputError

COMPLETE = "model: {hf: model}\ndata: {prompts: prompts.jsonl}\nreward: {function: 'module:function'}\n"


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(COMPLETE)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.hf=null"], "model: neither is given"),
        (["model.checkpoint=there"], "model: both are given"),
        (["data.prompts=null"], "data.prompts: is missing"),
        (["rollout.source=recorded"], "rollout.path: is missing"),
        (["reward.function=null"], "reward.function: is missing"),
        (["reward.function=exact"], "reward.function: is 'exact' (allowed: module:function, or one of exact_match, "),
        (["reward.function='module:'"], "reward.function: is 'module:' (allowed: module:function, or one of"),
        (["reward.function=regex", "reward.style=verl"], "reward.style: is verl, but regex is a ready-made function"),
        (["reward.functions=[{function: regex}]"], "reward: both are given (allowed: one of reward.function and "),
        (["rollout.group_size=1"], "rollout.group_size: is 1: "),
        (["data.overlong=drop"], "data.overlong: is drop without a limit"),
        (["train.groups_per_step=4", "train.groups_per_update=5"], "train.groups_per_update: is 5 (allowed: at most"),
        (["objective.name=dapo"], "objective.name: dapo is not supported yet (allowed: grpo)"),
        (["objective.kl_coefficient=0.1"], "objective.kl_coefficient: 0.1 is not supported yet (allowed: 0)"),
        (["engine.name=deepspeed"], "engine.name: deepspeed is not supported yet (allowed: megatron)"),
        (["parallel.context=2"], "parallel.context: 2 is not supported yet (allowed: 1)"),
        (["parallel.sequence_parallel=true"], "parallel.sequence_parallel: true is not supported yet (allowed: false)"),
        (["replay.tier=host"], "replay.tier: host is not supported yet (allowed: device)"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config("config.yaml", overrides)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("{functions: []}", "reward.function: is missing"),
        ("{functions: [{weight: 2}]}", "reward.functions[0].function: is missing"),
        (
            "{functions: [{function: regex}, {function: rege}]}",
            "reward.functions[1].function: is 'rege' (allowed: module:",
        ),
        ("{functions: [{function: regex, style: verl}]}", "reward.functions[0].style: is verl, but regex"),
        (
            "{functions: [{function: regex, weight: .inf}]}",
            "reward.functions[0].weight: is inf (allowed: a finite number)",
        ),
        (
            "{functions: [{function: regex, weight: .nan}]}",
            "reward.functions[0].weight: is nan (allowed: a finite number)",
        ),
        ("{functions: [{function: 'm:f'}], kwargs: {a: 1}}", "reward.kwargs: belongs into each entry of reward.funct"),
        ("{functions: [{function: 'm:f'}], style: verl}", "reward.style: belongs into each entry of reward.functions"),
    ],
)
def test_every_one_of_several_reward_functions_is_checked(reward: str, message: str) -> None:
    Path("config.yaml").write_text(f"model: {{hf: model}}\ndata: {{prompts: prompts.jsonl}}\nreward: {reward}\n")
    with pytest.raises(InputError) as caught:
        load_config("config.yaml")
    assert str(caught.value).startswith(message)


def test_a_reward_may_be_ready_made_or_several_functions() -> None:
    assert load_config("config.yaml", ["reward.function=exact_match"]).reward.function == "exact_match"
    overrides = ["reward.function=null", "reward.functions=[{function: exact_match}, {function: 'm:f', style: verl}]"]
    first, second = load_config("config.yaml", overrides).reward.functions
    assert (first.function, first.weight, second.function, second.style) == ("exact_match", 1.0, "m:f", "verl")


def test_recorded_rollouts_need_neither_prompts_nor_a_reward_nor_a_group_size() -> None:
    overrides = ["rollout.source=recorded", "rollout.path=r.jsonl", "data.prompts=null", "reward.function=null"]
    assert load_config("config.yaml", [*overrides, "rollout.group_size=1"]).rollout.path == "r.jsonl"


def test_files_must_exist_before_anything_is_imported() -> None:
    config = load_config("config.yaml")
    with pytest.raises(InputError, match=r"^model.hf: 'model' is not a directory"):
        check_files(config)
    Path("model").mkdir()
    with pytest.raises(InputError, match=r"^data.prompts: there is no file 'prompts.jsonl'"):
        check_files(config)
    Path("prompts.jsonl").touch()
    check_files(config)


def test_the_run_directory_must_be_one() -> None:
    Path("model").mkdir()
    Path("prompts.jsonl").touch()
    with pytest.raises(InputError, match=r"^run_dir: 'prompts.jsonl' is not a directory"):
        check_files(load_config("config.yaml", ["run_dir=prompts.jsonl/run"]))


def test_more_ranks_than_are_supported_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("model").mkdir()
    Path("prompts.jsonl").touch()
    config = load_config("config.yaml")
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_files(config)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"^parallel: 2 ranks were started, which is not supported yet"):
        check_files(config)
