"""A model goes into a checkpoint and comes back bit for bit; what is not a whole model leaves no folder behind."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from megatron_longstraw.checkpoint.convert import to_hf, to_megatron
from megatron_longstraw.checkpoint.resume import checkpoint_folder, hf_folder_of, load_weights
from megatron_longstraw.checkpoint.save import save_checkpoint
from megatron_longstraw.config.schema import OptimizerConfig
from megatron_longstraw.device import cpu
from megatron_longstraw.engine.megatron import MegatronEngine
from megatron_longstraw.errors import InputError
from megatron_longstraw.model.build import build_model, read_hf_config
from megatron_longstraw.parallel.layout import process_groups
from tests.oracle.conventional import KINDS, save_folder, tiny_model

WEIGHTS = "model.safetensors"
FIRST_UP = "model.layers.0.mlp.up_proj.weight"


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, whatever files they are in."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether names, dtypes and bits agree."""
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first
    )


def hf_folder(folder: Path, kind: str, dtype: torch.dtype = torch.float32, **overrides: Any) -> Path:
    model = tiny_model(kind, dtype=torch.float32, **overrides)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return save_folder(model, folder)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, dtype) for kind in KINDS for dtype in (torch.float32, torch.bfloat16)),
        *((kind, dtype) for kind in ("qwen3_tied", "qwen3_moe") for dtype in (torch.float16, torch.float64)),
    ],
    ids=str,
)
def test_weights_come_back_bit_for_bit_and_the_config_as_it_was(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "hf", kind, dtype)
    to_megatron(folder, tmp_path / "checkpoint")
    to_hf(tmp_path / "checkpoint", tmp_path / "back")
    assert same(read_folder(tmp_path / "back"), read_folder(folder))
    assert (tmp_path / "back" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    with safe_open(tmp_path / "back" / WEIGHTS, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_shards_are_read_and_written_with_their_index(tmp_path: Path) -> None:
    model = tiny_model("qwen3_moe", dtype=torch.float32)
    model.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 3
    to_megatron(tmp_path / "hf", tmp_path / "checkpoint")
    to_hf(tmp_path / "checkpoint", tmp_path / "back", shard_bytes=30_000)
    files = sorted((tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(file.stat().st_size < 40_000 for file in files)
    tensors = read_folder(tmp_path / "back")
    assert same(tensors, read_folder(tmp_path / "hf"))
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "back" / file)
    assert index["weight_map"].keys() == tensors.keys()


def test_transformers_loads_what_comes_back(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "hf", "qwen3_tied")
    to_hf(to_megatron(folder, tmp_path / "checkpoint"), tmp_path / "back")
    ids = torch.arange(20)[None]
    first, second = (AutoModelForCausalLM.from_pretrained(path)(ids).logits for path in (folder, tmp_path / "back"))
    assert torch.equal(first, second)


def test_experts_that_are_stacked_are_read_as_transformers_has_them_in_memory(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "hf", "qwen3_moe")
    split_tensors = read_folder(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    stacked = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    assert any(tensor.dim() == 3 for tensor in stacked.values())
    save_file(stacked, folder / WEIGHTS)
    to_hf(to_megatron(folder, tmp_path / "checkpoint"), tmp_path / "back")
    assert same(read_folder(tmp_path / "back"), split_tensors)


def test_what_tokenizes_and_generates_is_carried_over(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "hf", "llama")
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    for name in names:
        (folder / name).write_text(f'{{"of": "{name}"}}')
    to_hf(to_megatron(folder, tmp_path / "checkpoint"), tmp_path / "back")
    for name in names:
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("kind", ["llama", "qwen3_tied"])
@pytest.mark.parametrize("multiple", [8, 128])
def test_a_padded_vocabulary_is_filled_and_comes_back_without_its_padding(
    kind: str, multiple: int, tmp_path: Path
) -> None:
    folder = hf_folder(tmp_path / "hf", kind)
    to_megatron(folder, tmp_path / "checkpoint")
    padded = write_padded(folder, tmp_path / "checkpoint", tmp_path / "padded", multiple)
    assert padded["embedding.word_embeddings.weight"].shape[0] == -(-97 // multiple) * multiple
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        assert name not in padded or not padded[name][97:].any()
    to_hf(tmp_path / "padded", tmp_path / "back")
    assert same(read_folder(tmp_path / "back"), read_folder(folder))


def write_padded(hf: Path, source: Path, target: Path, multiple: int) -> dict[str, Tensor]:
    """Loads a checkpoint into a model with padded rows and saves it as a run would; returns the parameters."""
    cpu.install()
    with process_groups() as layout:
        model = build_model(read_hf_config(hf), torch.float32, layout, vocabulary_multiple=multiple)
        # What no row may keep.
        model.embedding.word_embeddings.weight.data.fill_(7.0)
        load_weights(source, model)
        parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        engine = MegatronEngine(model, layout, OptimizerConfig(name="sgd"))
        save_checkpoint(target, 3, engine, {}, keep=0, hf_folder=hf)
    return parameters


def test_weights_exported_in_another_dtype_are_rounded_and_the_config_says_so(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "hf", "qwen2")
    to_hf(to_megatron(folder, tmp_path / "checkpoint"), tmp_path / "back", dtype="bfloat16")
    expected = {name: tensor.bfloat16() for name, tensor in read_folder(folder).items()}
    assert same(read_folder(tmp_path / "back"), expected)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "back").dtype is torch.bfloat16


def test_each_weight_keeps_its_own_dtype(tmp_path: Path) -> None:
    folder = change(
        hf_folder(tmp_path / "hf", "qwen3_moe", torch.bfloat16),
        lambda tensors: tensors.update(
            {name: tensor.float() for name, tensor in tensors.items() if name.endswith("mlp.gate.weight")}
        ),
    )
    to_hf(to_megatron(folder, tmp_path / "checkpoint"), tmp_path / "back")
    assert same(read_folder(tmp_path / "back"), read_folder(folder))


def test_progress_ends_at_its_total(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "hf", "llama")
    ways: list[list[tuple[int, int]]] = [[], []]
    to_megatron(folder, tmp_path / "checkpoint", on_progress=lambda done, total: ways[0].append((done, total)))
    to_hf(tmp_path / "checkpoint", tmp_path / "back", on_progress=lambda done, total: ways[1].append((done, total)))
    size = sum(tensor.nbytes for tensor in read_folder(folder).values())
    assert ways[1][-1] == (size, size)
    assert ways[0][-1] == (size, size)
    assert all(done <= total for way in ways for done, total in way)


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> Path:
    """Edits a folder's tensors in place."""
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def cut(folder: Path, tensor: str) -> None:
    """Ends the file of weights one byte before a tensor does."""
    content = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(content[:8], "little")
    end = json.loads(content[8 : 8 + length])[tensor]["data_offsets"][1]
    (folder / WEIGHTS).write_bytes(content[: 8 + length + end - 1])


def corrupt_header(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[8:12] = b"\xff\xfe\xfd\xfc"
    (folder / WEIGHTS).write_bytes(bytes(content))


def set_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda f: change(f, lambda t: t.pop(FIRST_UP)), f"tensor {FIRST_UP} is missing"),
    "left-over": (
        lambda f: change(f, lambda t: t.update({"model.layers.9.mlp.up_proj.weight": torch.zeros(2)})),
        "tensor model.layers.9.mlp.up_proj.weight has no place in the model",
    ),
    "wrong-shape": (
        lambda f: change(f, lambda t: t.update({FIRST_UP: torch.zeros(56, 31)})),
        f"tensor {FIRST_UP} has the shape [56, 31] (allowed: [56, 32])",
    ),
    # What only the sum of its parts' rows would not show.
    "rows-moved-between-parts": (
        lambda f: change(
            f, lambda t: t.update({FIRST_UP: torch.zeros(57, 32), FIRST_UP.replace("up", "gate"): torch.zeros(55, 32)})
        ),
        "tensor model.layers.0.mlp.gate_proj.weight has the shape [55, 32] (allowed: [56, 32])",
    ),
    "wrong-dtype": (
        lambda f: change(f, lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)})),
        "tensor model.norm.weight has the dtype I8 (allowed: F64, F32, F16, BF16)",
    ),
    "cut-off": (lambda f: cut(f, FIRST_UP), f"is not a whole safetensors file: tensor {FIRST_UP} is cut off"),
    "corrupt-header": (corrupt_header, "is not a whole safetensors file"),
    "no-weights": (lambda f: (f / WEIGHTS).unlink(), "no such file; weights are read from safetensors"),
    "no-config": (lambda f: (f / "config.json").unlink(), "--hf: no config.json"),
    "unknown-architecture": (
        lambda f: set_config(f, model_type="gpt2"),
        "model type 'gpt2' is not supported (allowed: llama, mistral, qwen2, qwen3, qwen3_moe",
    ),
    "unheard-of-architecture": (lambda f: set_config(f, model_type="no_such_model"), "no_such_model"),
    "more-layers-than-weights": (
        lambda f: set_config(f, num_hidden_layers=3),
        "tensor model.layers.2.input_layernorm.weight is missing",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_not_a_whole_model_is_named_and_leaves_no_folder(name: str, tmp_path: Path) -> None:
    edit, message = BREAKS[name]
    folder = hf_folder(tmp_path / "hf", "llama")
    edit(folder)
    with pytest.raises(InputError) as caught:
        to_megatron(folder, tmp_path / "checkpoint")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda index: index["weight_map"].update({FIRST_UP: "other.safetensors"}), "other.safetensors: no such file"),
        (
            lambda index: index["weight_map"].update({"model.extra": index["weight_map"][FIRST_UP]}),
            "tensor model.extra is not in model-",
        ),
        (lambda index: index.pop("weight_map"), "is not an index of weights"),
        (lambda index: index["weight_map"].update({FIRST_UP: "../../etc/passwd"}), "is not an index of weights"),
    ],
)
def test_an_index_that_does_not_agree_with_its_files_is_refused(
    edit: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    tiny_model("llama", dtype=torch.float32).save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    file = tmp_path / "hf" / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    edit(index)
    file.write_text(json.dumps(index))
    with pytest.raises(InputError) as caught:
        to_megatron(tmp_path / "hf", tmp_path / "checkpoint")
    assert message in str(caught.value)
    assert not (tmp_path / "checkpoint").exists()


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "hf", "llama")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"--out: exists already \(allowed: a new or an empty folder\)"):
        to_megatron(folder, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    to_megatron(hf_folder(tmp_path / "hf", "llama"), tmp_path / "checkpoint")
    assert checkpoint_folder(tmp_path / "checkpoint").name == "iter_0000000"
    assert (hf_folder_of(tmp_path / "checkpoint") / "config.json").is_file()


def test_a_failure_in_the_middle_leaves_no_folder(tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "hf", "llama")

    def fail(done: int, total: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="--out: cannot be written: No space left"):
        to_megatron(folder, tmp_path / "checkpoint", on_progress=fail)
    to_megatron(folder, tmp_path / "checkpoint")
    with pytest.raises(InputError, match="--out: cannot be written: No space left"):
        to_hf(tmp_path / "checkpoint", tmp_path / "back", on_progress=fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "hf"]


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    to_megatron(hf_folder(tmp_path / "hf", "llama"), tmp_path / "checkpoint")
    data = next((tmp_path / "checkpoint" / "iter_0000000").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"bytes of __0_0\.distcp"):
        to_hf(tmp_path / "checkpoint", tmp_path / "back")
    assert not (tmp_path / "back").exists()


MEASURE = """
import sys, warnings
warnings.filterwarnings("ignore")
from pathlib import Path
from megatron_longstraw.checkpoint.convert import to_hf, to_megatron
def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if key in line)
folder = Path(sys.argv[1])
to_megatron(folder / "warm", folder / "warm_out")
to_hf(folder / "warm_out", folder / "warm_back")
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
to_megatron(folder / "hf", folder / "out")
peak = status("VmHWM")
Path("/proc/self/clear_refs").write_text("5")
to_hf(folder / "out", folder / "back", shard_bytes=int(sys.argv[2]))
print(peak - before, status("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks of memory are read from Linux's /proc")
def test_memory_is_that_of_a_shard_and_not_of_the_model(tmp_path: Path) -> None:
    hf_folder(tmp_path / "warm", "llama")
    sizes = {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8}
    hf_folder(tmp_path / "hf", "llama", layers=10, head_dim=128, **sizes)
    model_bytes = (tmp_path / "hf" / WEIGHTS).stat().st_size
    assert model_bytes > 350e6
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", MEASURE, str(tmp_path), str(60_000_000)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    to_megatron_bytes, to_hf_bytes = map(int, done.stdout.split()[-2:])
    assert to_megatron_bytes < 0.35 * model_bytes
    assert to_hf_bytes < 0.5 * model_bytes
    assert same(read_folder(tmp_path / "back"), read_folder(tmp_path / "hf"))
