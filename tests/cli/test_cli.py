"""Commands, exit statuses, and errors in one line."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from megatron_longstraw import cli
from megatron_longstraw.config.schema import Config
from megatron_longstraw.errors import DoesNotFit, InputError, Interrupted

COMPLETE = "model: {hf: .}\ndata: {prompts: config.yaml}\nreward: {function: 'module:function'}\n"


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(COMPLETE)


def replace_trainer(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> list[Config]:
    """Put a trainer in place that only notes its configuration, or raises."""
    configs: list[Config] = []

    def train(config: Config) -> None:
        configs.append(config)
        if error is not None:
            raise error

    module = types.ModuleType("megatron_longstraw.trainer")
    module.train = train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron_longstraw.trainer", module)
    monkeypatch.setattr("megatron_longstraw.trainer", module, raising=False)
    return configs


def test_train_hands_over_the_checked_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = replace_trainer(monkeypatch, None)
    assert cli.main(["train", "config.yaml", "train.steps=3", "optimizer.name=sgd"]) == 0
    assert [(config.train.steps, config.optimizer.name) for config in configs] == [(3, "sgd")]


def test_deepspeeds_launcher_may_add_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = replace_trainer(monkeypatch, None)
    assert cli.main(["--local_rank=1", "train", "config.yaml"]) == 0
    assert len(configs) == 1


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("is wrong", key="model.hf"), 2, "longstraw: model.hf: is wrong\n"),
        (DoesNotFit("needs 3 bytes,\nthere are 2"), 3, "longstraw: needs 3 bytes, there are 2\n"),
        (Interrupted("saved at step 4"), 130, "longstraw: saved at step 4\n"),
        (KeyboardInterrupt(), 130, "longstraw: interrupted\n"),
    ],
)
def test_an_error_has_its_status_and_one_line(
    error: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace_trainer(monkeypatch, error)
    assert cli.main(["train", "config.yaml"]) == status
    assert capsys.readouterr() == ("", message)


def test_an_error_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_trainer(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["train", "config.yaml"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["tain"],
        ["train"],
        ["train", "config.yaml", "--steps"],
        ["train", "no.yaml"],
        ["train", "config.yaml", "x=1"],
    ],
)
def test_bad_usage_is_one_line_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("longstraw: ")
    assert errors.count("\n") == 1


def test_a_bad_key_fails_before_torch_is_imported() -> None:
    program = (
        "import sys\nfrom megatron_longstraw import cli\n"
        "status = cli.main(['train', 'config.yaml', 'train.step=1'])\n"
        "sys.exit(status if 'torch' not in sys.modules else 'torch was imported')"
    )
    command = [sys.executable, "-c", program]
    root = str(Path(cli.__file__).parents[1])
    done = subprocess.run(command, env={"PYTHONPATH": root}, capture_output=True, text=True, check=False)
    expected = "longstraw: train.step: is not a key; the nearest is train.steps\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "megatron_longstraw", "train", "no.yaml"]
    root = str(Path(cli.__file__).parents[1])
    done = subprocess.run(command, env={"PYTHONPATH": root}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "longstraw: no.yaml: No such file or directory (allowed: a YAML file of keys)\n",
    )
