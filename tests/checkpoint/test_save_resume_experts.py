"""Checkpoints of a mixture of experts: a resumed run goes on bit for bit, and every layer and expert has its place."""

from pathlib import Path

import pytest
import torch

from megatron_longstraw.checkpoint.resume import latest_checkpoint, load_checkpoint, load_weights
from megatron_longstraw.checkpoint.save import save_checkpoint
from megatron_longstraw.model.build import build_model, read_hf_config
from megatron_longstraw.parallel.layout import ParallelLayout
from tests.checkpoint.engines import engine_with, step, weights
from tests.oracle.conventional import save_folder, tiny_model
from tests.run_files import equal_weights

KINDS = ("qwen3_moe", "qwen3_moe_mixed")


@pytest.fixture(scope="module", params=KINDS)
def hf_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tiny_model(request.param, dtype=torch.float32), tmp_path_factory.mktemp("hf"))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_after_a_resume_are_those_of_a_run_that_never_stopped(
    hf_folder: Path, layout: ParallelLayout, run_dir: Path, dtype: torch.dtype, optimizer: str
) -> None:
    engine = engine_with(hf_folder, layout, dtype, optimizer, 0)
    step(engine, 0)
    save_checkpoint(run_dir, 1, engine, {"step": 1}, keep=0, hf_folder=hf_folder)
    resumed = engine_with(hf_folder, layout, dtype, optimizer, 1)
    assert not equal_weights(weights(engine), weights(resumed))
    found = latest_checkpoint(run_dir)
    assert found is not None
    load_checkpoint(found[1], resumed)
    assert equal_weights(weights(engine), weights(resumed))
    for seed in (10, 11):
        step(engine, seed)
        step(resumed, seed)
        assert equal_weights(weights(engine), weights(resumed))


def test_weights_alone_are_read_in_another_dtype(hf_folder: Path, layout: ParallelLayout, run_dir: Path) -> None:
    engine = engine_with(hf_folder, layout, torch.float32, "sgd", 0)
    save_checkpoint(run_dir, 1, engine, {}, keep=0, hf_folder=hf_folder)
    model = build_model(read_hf_config(hf_folder), torch.float64, layout)
    load_weights(run_dir, model)
    saved = {name.removeprefix("module."): weight.double() for name, weight in weights(engine).items()}
    assert equal_weights(saved, {name: parameter.detach() for name, parameter in model.named_parameters()})


def test_layers_are_named_one_by_one_and_experts_are_parts_of_one_tensor(
    hf_folder: Path, layout: ParallelLayout
) -> None:
    hf_config = read_hf_config(hf_folder)
    state = build_model(hf_config, torch.float32, layout).sharded_state_dict()
    keys = {tensor.key for tensor in state.values() if hasattr(tensor, "key")}
    dense = [layer in hf_config.mlp_only_layers for layer in range(2)]
    for layer, is_dense in enumerate(dense):
        prefix = f"decoder.layers.{layer}."
        assert (f"{prefix}mlp.router.weight" in keys) is not is_dense
        assert (f"{prefix}mlp.experts.experts.linear_fc1.weight" in keys) is not is_dense
        # Where Megatron's own models have it: in the first product of a dense MLP, before the experts otherwise.
        assert (f"{prefix}pre_mlp_layernorm.weight" in keys) is not is_dense
        assert (f"{prefix}mlp.linear_fc1.layer_norm_weight" in keys) is is_dense
        assert f"{prefix}self_attention.linear_qkv.layer_norm_weight" in keys
