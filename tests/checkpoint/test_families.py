"""Weights keep their place between Hugging Face and Megatron, and a folder that does not fit is refused by name."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from megatron_longstraw.checkpoint.families import to_hf
from megatron_longstraw.checkpoint.hf_read import load_hf_weights
from megatron_longstraw.checkpoint.mapping import Fusion, HeadSizes, fuse, split
from megatron_longstraw.errors import InputError
from megatron_longstraw.model.build import build_model, read_hf_config
from megatron_longstraw.model.gpt import SegmentModel
from megatron_longstraw.parallel.layout import ParallelLayout
from tests.oracle.conventional import save_folder, tiny_model

KINDS = ("llama", "mistral", "qwen2", "qwen3", "qwen3_tied")
WEIGHTS = "model.safetensors"
FIRST_UP = "model.layers.0.mlp.up_proj.weight"
Load = Callable[[Path], SegmentModel]


@st.composite
def head_counts(draw: st.DrawFn) -> HeadSizes:
    kv_heads = draw(st.integers(1, 4))
    return HeadSizes(kv_heads, kv_heads * draw(st.integers(1, 4)), draw(st.integers(1, 5)))


def numbered(rows: int, columns: int | None, start: int) -> Tensor:
    """A matrix, or a bias without columns, of which no two elements are equal to any of another start."""
    shape = (rows,) if columns is None else (rows, columns)
    return start + torch.arange(rows * (columns or 1)).reshape(shape)


@given(sizes=head_counts(), columns=st.one_of(st.none(), st.integers(1, 3)))
def test_splitting_queries_keys_and_values_undoes_fusing_them(sizes: HeadSizes, columns: int | None) -> None:
    rows = (sizes.query_heads * sizes.head_dim, *[sizes.kv_heads * sizes.head_dim] * 2)
    parts = [numbered(count, columns, 10_000 * index) for index, count in enumerate(rows)]
    for part, back in zip(parts, split(fuse(parts, Fusion.GROUPED_QKV, sizes), Fusion.GROUPED_QKV, sizes), strict=True):
        assert torch.equal(part, back)


@given(sizes=head_counts())
def test_a_fused_group_is_its_queries_then_its_key_then_its_value(sizes: HeadSizes) -> None:
    # Every row carries the number of its head; keys count from 100 and values from 200.
    parts = [
        torch.arange(heads).repeat_interleave(sizes.head_dim) + start
        for heads, start in ((sizes.query_heads, 0), (sizes.kv_heads, 100), (sizes.kv_heads, 200))
    ]
    heads = fuse(parts, Fusion.GROUPED_QKV, sizes)[:: sizes.head_dim].tolist()
    per_group = sizes.query_heads // sizes.kv_heads
    expected = []
    for group in range(sizes.kv_heads):
        expected += [*range(group * per_group, (group + 1) * per_group), 100 + group, 200 + group]
    assert heads == expected


@given(rows=st.integers(1, 6), columns=st.integers(1, 4))
def test_gate_comes_before_up_and_splitting_undoes_it(rows: int, columns: int) -> None:
    gate, up = numbered(rows, columns, 0), numbered(rows, columns, 1000)
    fused = fuse([gate, up], Fusion.CONCATENATED, HeadSizes(1, 1, 1))
    assert torch.equal(fused[:rows], gate)
    back = split(fused, Fusion.CONCATENATED, HeadSizes(1, 1, 1))
    assert torch.equal(back[0], gate)
    assert torch.equal(back[1], up)


@pytest.fixture
def load(layout: ParallelLayout) -> Load:
    """Builds the float32 model of a folder's config and loads the folder's weights."""

    def run(folder: Path) -> SegmentModel:
        config = read_hf_config(folder)
        model = build_model(config, torch.float32, layout)
        load_hf_weights(model, config, folder)
        return model

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_loaded_weights_go_back_under_the_names_and_values_of_transformers(
    load: Load, tmp_path: Path, kind: str
) -> None:
    oracle = tiny_model(kind, dtype=torch.float32)
    model = load(save_folder(oracle, tmp_path))
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    back = dict(to_hf(parameters, oracle.config))
    expected = {name: parameter.detach() for name, parameter in oracle.named_parameters()}
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[name], expected[name]) for name in expected)


def test_weights_are_read_from_shards(load: Load, tmp_path: Path) -> None:
    oracle = tiny_model("llama", dtype=torch.float32)
    oracle.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    sharded, whole = load(tmp_path / "sharded"), load(save_folder(oracle, tmp_path / "whole"))
    assert all(map(torch.equal, sharded.parameters(), whole.parameters()))


def test_a_weight_of_no_parameter_cannot_be_named() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        list(to_hf({"nowhere.weight": torch.zeros(1)}, tiny_model("llama").config))


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> Path:
    """Edits a folder's tensors in place."""
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(tiny_model("llama", dtype=torch.float32), tmp_path)


def test_missing_tensor_is_named(load: Load, folder: Path) -> None:
    change(folder, lambda tensors: tensors.pop(FIRST_UP))
    with pytest.raises(InputError, match=f"tensor {FIRST_UP} is missing"):
        load(folder)


def test_left_over_tensor_is_named(load: Load, folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({"model.layers.7.mlp.up_proj.weight": torch.zeros(2)}))
    with pytest.raises(InputError, match=r"model\.layers\.7\.mlp\.up_proj\.weight has no place in the model"):
        load(folder)


def test_wrong_shape_names_what_is_allowed(load: Load, folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(5)}))
    with pytest.raises(InputError, match=r"model\.norm\.weight .*shape \[5\] \(allowed: \[32\]\)"):
        load(folder)


@pytest.mark.parametrize("size", [0, 4, 100, -1], ids=["empty", "within-the-length", "within-the-header", "last-byte"])
def test_truncated_file_is_an_input_error(load: Load, folder: Path, size: int) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:size])
    with pytest.raises(InputError, match=r"model\.safetensors: is not a whole safetensors file"):
        load(folder)


def test_folder_without_weights_is_an_input_error(load: Load, folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(InputError, match=r"model\.safetensors: no such file"):
        load(folder)


def test_a_tied_model_may_carry_a_copy_of_its_embedding(load: Load, tmp_path: Path) -> None:
    folder = save_folder(tiny_model("qwen3_tied", dtype=torch.float32), tmp_path)
    change(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    load(folder)


def test_an_output_layer_that_a_tied_model_does_not_share_is_refused(load: Load, tmp_path: Path) -> None:
    folder = save_folder(tiny_model("qwen3_tied", dtype=torch.float32), tmp_path)
    change(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}))
    with pytest.raises(InputError, match=r"lm_head\.weight is not model\.embed_tokens\.weight"):
        load(folder)


def test_a_single_file_wins_over_an_index_that_was_left_over(load: Load, tmp_path: Path) -> None:
    oracle = tiny_model("llama", dtype=torch.float32)
    oracle.save_pretrained(tmp_path, max_shard_size="20KB")
    index = (tmp_path / "model.safetensors.index.json").read_text()
    save_folder(oracle, tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    load(tmp_path)
