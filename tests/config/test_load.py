"""Reading, completing, writing and comparing configurations."""

import ast
import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_longstraw.config import schema
from megatron_longstraw.config.load import differing_keys, dump_config, flatten, load_config
from megatron_longstraw.config.schema import ModelConfig, RewardConfig, RewardTermConfig, RolloutConfig, TrainConfig
from megatron_longstraw.errors import InputError

MINIMAL = """
model: {hf: some/model}
data: {prompts: prompts.jsonl}
reward: {function: "module:function"}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(MINIMAL)
    return path


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_absent_keys_have_their_defaults(path: Path) -> None:
    config = load_config(path)
    assert config.model == ModelConfig(hf="some/model")
    assert config.train == TrainConfig()
    assert (config.rollout.group_size, config.objective.clip_high, config.optimizer.clip_grad) == (8, 0.2, 1.0)


def test_the_last_override_wins_over_earlier_ones_and_the_file(path: Path) -> None:
    path.write_text(MINIMAL + "train: {steps: 1, seed: 5}\n")
    config = load_config(path, ["train.steps=2", "optimizer.lr=1e-5", "train.steps=3", "rollout.stop=[a, b]"])
    assert config.train == TrainConfig(steps=3, seed=5)
    assert config.optimizer.lr == 1e-5
    assert config.rollout.stop == ("a", "b")


def test_a_value_may_refer_to_another_key(path: Path) -> None:
    path.write_text(MINIMAL + "train: {seed: 5}\nrun_dir: runs/seed_${train.seed}\n")
    assert load_config(path).run_dir == "runs/seed_5"
    assert load_config(path, ["run_dir=runs/of_${train.seed}", "train.seed=7"]).run_dir == "runs/of_7"


def test_an_empty_section_means_its_defaults(path: Path) -> None:
    path.write_text(MINIMAL + "train:\n")
    assert load_config(path).train == TrainConfig()


def test_one_stop_text_is_a_list_of_one(path: Path) -> None:
    assert load_config(path, ["rollout.stop=abc"]).rollout.stop == ("abc",)


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("rollout.groupsize", "rollout.group_size"),
        ("group_size", "rollout.group_size"),
        ("optimizer.beta", "optimizer.betas"),
        ("replay.segment_token", "replay.segment_tokens"),
        ("tracking.wandb.modes", "tracking.wandb.mode"),
        ("checkpoint.rundir", "run_dir"),
    ],
)
def test_an_unknown_key_names_the_nearest(path: Path, unknown: str, nearest: str) -> None:
    assert refusal(path, f"{unknown}=1") == f"{unknown}: is not a key; the nearest is {nearest}"


def test_an_unknown_key_of_the_file_names_the_file(path: Path) -> None:
    path.write_text(MINIMAL + "train: {step: 1}\n")
    assert refusal(path) == f"{path}: train.step: is not a key; the nearest is train.steps"


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("train.steps=0", "an integer >= 1"),
        ("train.steps=1.5", "an integer >= 1"),
        ("train.steps=true", "an integer >= 1"),
        ("train.steps=null", "an integer >= 1"),
        ("data.shuffle=1", "true or false"),
        ("model.dtype=float16", "float32, bfloat16, float64"),
        ("optimizer.lr=-1", "a number >= 0"),
        ("optimizer.lr=.inf", "a number >= 0"),
        ("optimizer.lr=.nan", "a number >= 0"),
        ("optimizer.lr=fast", "a number >= 0"),
        ("optimizer.betas=[0.9, 1.0]", "a list of 2, each a number >= 0 and < 1"),
        ("optimizer.betas=[0.9]", "a list of 2, each a number >= 0 and < 1"),
        ("rollout.temperature=0", "a number > 0"),
        ("rollout.top_p=0", "a number > 0 and <= 1"),
        ("rollout.stop=[1]", "a list, each a text"),
        ("reward.kwargs=[1]", "a mapping"),
        ("replay.prompt_gradient=0", "full, stop or an integer >= 1"),
        ("replay.prompt_gradient=half", "full, stop or an integer >= 1"),
        ("tracking.wandb=offline", "a mapping of keys"),
        ("model.hf=3", "a text or null"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(path: Path, override: str, allowed: str) -> None:
    message = refusal(path, override)
    assert message.startswith(override.partition("=")[0] + ": is ")
    assert message.endswith(f"(allowed: {allowed})")


@pytest.mark.parametrize("override", ["train.steps", "=3"])
def test_what_is_no_override_is_refused(path: Path, override: str) -> None:
    assert "is not an override (allowed: key=value" in refusal(path, override)


@pytest.mark.parametrize(
    ("content", "expected"),
    [("a: [1\nb: 2\n", ":2: is not YAML"), ("train: {steps: 1}\ntrain: {steps: 2}\n", ":2: "), ("- 1\n", "no mapping")],
)
def test_a_file_that_is_no_configuration_is_refused(path: Path, content: str, expected: str) -> None:
    path.write_text(content)
    message = refusal(path)
    assert message.startswith(str(path))
    assert expected in message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.yaml").startswith(f"{tmp_path}/no.yaml: No such file")


def test_run_dir_may_stand_under_checkpoint(path: Path) -> None:
    path.write_text(MINIMAL + "checkpoint: {run_dir: there, every: 3}\n")
    config = load_config(path)
    assert (config.run_dir, config.checkpoint.every) == ("there", 3)
    assert load_config(path, ["run_dir=elsewhere"]).run_dir == "elsewhere"
    assert load_config(path, ["checkpoint.run_dir=elsewhere"]).run_dir == "elsewhere"
    assert "one of the two" in refusal_of_file(path, "run_dir: here\ncheckpoint: {run_dir: there}\n")


def refusal_of_file(path: Path, more: str) -> str:
    path.write_text(MINIMAL + more)
    return refusal(path)


def test_run_dir_follows_the_files_name(path: Path) -> None:
    assert load_config(path).run_dir == "runs/config"


@pytest.mark.parametrize(
    ("dtype", "state", "cotangent"),
    [("float32", "float32", "float32"), ("bfloat16", "bfloat16", "float32"), ("float64", "float64", "float64")],
)
def test_auto_dtypes_follow_the_model(path: Path, dtype: str, state: str, cotangent: str) -> None:
    replay = load_config(path, [f"model.dtype={dtype}"]).replay
    assert (replay.state_dtype, replay.cotangent_dtype) == (state, cotangent)


values = st.one_of(st.integers(-5, 5), st.floats(allow_nan=False), st.booleans(), st.text(max_size=8), st.none())


@given(kwargs=st.dictionaries(st.text("abc", min_size=1), values, max_size=3), stop=st.lists(st.text(), max_size=2))
def test_what_is_written_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, kwargs: dict[str, object], stop: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("config")
    (directory / "first.yaml").write_text(MINIMAL)
    config = load_config(directory / "first.yaml", ["optimizer.lr=3e-7", "replay.prompt_gradient=12"])
    config = replace(
        config,
        reward=RewardConfig(function="module:function", kwargs={**kwargs, "text": "${train.seed}"}),
        rollout=RolloutConfig(stop=tuple(stop)),
    )
    (directory / "second.yaml").write_text(dump_config(config))
    assert load_config(directory / "second.yaml") == config


SEVERAL = """
model: {hf: some/model}
data: {prompts: prompts.jsonl}
reward:
  functions:
  - {function: exact_match, weight: 2, kwargs: {ignore_case: true}}
  - {function: length_penalty, weight: 0.5, kwargs: {target_tokens: 9, max_tokens: "${rollout.max_response_tokens}"}}
  - {function: "module:compute_score", style: verl}
"""


def test_several_reward_functions_are_read_and_written(path: Path) -> None:
    path.write_text(SEVERAL)
    config = load_config(path, ["rollout.max_response_tokens=12"])
    assert config.reward.functions == (
        RewardTermConfig("exact_match", 2.0, {"ignore_case": True}),
        RewardTermConfig("length_penalty", 0.5, {"target_tokens": 9, "max_tokens": 12}),
        RewardTermConfig("module:compute_score", style="verl"),
    )
    path.write_text(dump_config(config))
    assert load_config(path) == config


def test_an_override_may_change_an_entry_of_a_list(path: Path) -> None:
    path.write_text(SEVERAL)
    overrides = ["reward.functions[1].weight=3", "reward.functions.0.kwargs.normalize=true"]
    first, second, _ = load_config(path, [*overrides, "rollout.max_response_tokens=12"]).reward.functions
    assert (first.kwargs, second.weight) == ({"ignore_case": True, "normalize": True}, 3.0)
    for wrong in ("[3]", "[x]", ".x"):
        message = refusal(path, f"reward.functions{wrong}.weight=3")
        assert message.startswith(f"reward.functions{wrong}.weight: cannot be read: ")


def test_several_reward_functions_are_listed_as_plain_values_and_compared(path: Path) -> None:
    path.write_text(SEVERAL.replace("${rollout.max_response_tokens}", "10"))
    config = load_config(path)
    listed = flatten(config)["reward.functions"]
    assert json.loads(json.dumps(listed))[0] == {
        "function": "exact_match",
        "weight": 2.0,
        "kwargs": {"ignore_case": True},
        "style": "trl",
    }
    path.write_text(
        SEVERAL.replace("ignore_case: true", "ignore_case: false").replace("${rollout.max_response_tokens}", "10")
    )
    assert differing_keys(config, load_config(path), ["reward"]) == ["reward.functions"]
    assert differing_keys(config, config, ["reward"]) == []


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ("{function: m:f}", "reward.functions: is {'function': 'm:f'} (allowed: a list, each a mapping)"),
        ("[m:f]", "reward.functions[0]: is 'm:f' (allowed: a mapping of keys)"),
        (
            "[{function: 'm:f'}, {weigth: 1}]",
            "reward.functions[1].weigth: is not a key; the nearest is reward.functions[1].weight",
        ),
        ("[{function: 'm:f', weight: much}]", "reward.functions[0].weight: is 'much' (allowed: a number)"),
        ("[{function: 'm:f', style: rllib}]", "reward.functions[0].style: is 'rllib' (allowed: trl, verl)"),
    ],
)
def test_a_wrong_entry_of_a_list_of_sections_is_named(path: Path, functions: str, message: str) -> None:
    assert refusal(path, f"reward.functions={functions}").startswith(message)


def test_differing_keys_are_named_within_the_chosen_sections(path: Path) -> None:
    first = load_config(path)
    second = load_config(path, ["train.steps=7", "train.seed=1", "model.init.seed=3", "optimizer.lr=1", "run_dir=x"])
    assert differing_keys(first, second, ["model", "train.seed", "optimizer"]) == [
        "model.init.seed",
        "optimizer.lr",
        "train.seed",
    ]
    assert differing_keys(first, first, [""]) == []
    assert differing_keys(first, second, ["mod", "train.see"]) == []


def test_every_key_says_what_it_means() -> None:
    # It stands under each key in the source, since dataclasses keep no docstring of a field.
    undocumented = []
    for node in ast.parse(inspect.getsource(schema)).body:
        if isinstance(node, ast.ClassDef) and node.name != "Bounds":
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if isinstance(field, ast.AnnAssign) and not documented:
                    undocumented.append(f"{node.name}.{ast.unparse(field.target)}")
    assert undocumented == []


def test_a_bare_off_is_the_choice_and_not_a_truth_value(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("model: {hf: m}\ndata: {prompts: p}\nreward: {function: 'm:f'}\ntracking: {progress: off}\n")
    assert load_config(file).tracking.progress == "off"
    assert load_config(file, ["tracking.progress=auto"]).tracking.progress == "auto"
    assert load_config(file, ["tracking.progress=off"]).tracking.progress == "off"
