"""Weights under tensor parallelism: which rows each rank gets, from a folder or a checkpoint, and back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from megatron_longstraw.checkpoint import torch_dist
from megatron_longstraw.checkpoint.convert import to_hf, to_megatron
from megatron_longstraw.checkpoint.folder import HF, write_manifest
from megatron_longstraw.checkpoint.hf_read import load_hf_weights
from megatron_longstraw.checkpoint.resume import load_weights
from megatron_longstraw.checkpoint.save import copy_hf_files
from megatron_longstraw.model.build import build_model, read_hf_config
from megatron_longstraw.parallel.layout import process_groups
from tests.oracle.conventional import save_folder, tiny_model

pytestmark = pytest.mark.distributed


def load_both(hf: str, checkpoint: str, tensor: int, saved: str) -> dict[str, Any]:
    """On a rank: loads a folder and a checkpoint, which must agree; saves what it has; returns its parameters."""
    with process_groups(tensor=tensor) as layout:
        hf_config = read_hf_config(hf)
        models = [build_model(hf_config, torch.float32, layout) for _ in range(2)]
        for model in models:
            # What no padded row may keep.
            model.embedding.word_embeddings.weight.data.fill_(7.0)
        load_hf_weights(models[0], hf_config, hf)
        load_weights(checkpoint, models[1])
        for first, second in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.equal(first, second)
        if layout.is_main_rank:
            Path(saved).mkdir()
        torch.distributed.barrier()
        torch_dist.write({"model": models[0].sharded_state_dict()}, saved)
        if layout.is_main_rank:
            copy_hf_files(Path(hf), Path(saved) / HF)
            write_manifest(Path(saved))
        return {name: parameter.detach().numpy() for name, parameter in models[0].named_parameters()}


def rows_of(whole: Tensor, rank: int, ranks: int) -> Tensor:
    return whole.chunk(ranks)[rank]


def expected_shard(hf: dict[str, Tensor], name: str, rank: int, ranks: int, heads: tuple[int, int]) -> Tensor:
    """What a rank must hold of the first layer and of the vocabulary, written down without the package."""
    query_heads, kv_heads = heads
    layer = "model.layers.0."
    if name == "embedding.word_embeddings.weight":
        rows = -(-97 // (128 * ranks)) * 128 * ranks
        padded = torch.zeros(rows, hf["model.embed_tokens.weight"].shape[1])
        padded[:97] = hf["model.embed_tokens.weight"]
        return rows_of(padded, rank, ranks)
    if name.endswith("linear_qkv.weight"):
        query, key, value = (hf[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv")
        groups = []
        for head in range(kv_heads):
            per_group = query_heads // kv_heads
            dim = key.shape[0] // kv_heads
            groups += [
                query[head * per_group * dim : (head + 1) * per_group * dim],
                key[head * dim : (head + 1) * dim],
                value[head * dim : (head + 1) * dim],
            ]
        return rows_of(torch.cat(groups), rank, ranks)
    if name.endswith("linear_fc1.weight"):
        gate, up = hf[f"{layer}mlp.gate_proj.weight"], hf[f"{layer}mlp.up_proj.weight"]
        return torch.cat([rows_of(gate, rank, ranks), rows_of(up, rank, ranks)])
    if name.endswith("linear_proj.weight"):
        return hf[f"{layer}self_attn.o_proj.weight"].chunk(ranks, dim=1)[rank]
    assert name.endswith("linear_fc2.weight")
    return hf[f"{layer}mlp.down_proj.weight"].chunk(ranks, dim=1)[rank]


@pytest.mark.parametrize(
    ("kind", "heads", "tensor"),
    [("qwen3_tied", (4, 1), 2), ("llama", (4, 2), 2), ("llama", (4, 2), 4), ("qwen2", (6, 2), 2)],
    ids=["fewer-kv-heads-than-ranks-tied", "as-many", "fewer-kv-heads-than-ranks", "biases"],
)
def test_each_rank_gets_its_rows_and_they_come_back(
    ranks, kind: str, heads: tuple[int, int], tensor: int, tmp_path: Path
) -> None:
    folder = save_folder(tiny_model(kind, dtype=torch.float32), tmp_path / "hf")
    to_megatron(folder, tmp_path / "checkpoint")
    saved = tmp_path / "iter_0000001"
    arguments = (str(folder), str(tmp_path / "checkpoint"), tensor, str(saved))
    hf = load_file(folder / "model.safetensors")
    for rank, parameters in enumerate(ranks(tensor).run(load_both, *arguments)):
        checked = [name for name in parameters if ".1." not in name and "norm" not in name and "bias" not in name]
        assert len(checked) in (5, 6)
        for name in checked:
            if name != "output_layer.weight":
                shard = torch.from_numpy(parameters[name])
                assert torch.equal(shard, expected_shard(hf, name, rank, tensor, heads)), name
    to_hf(saved, tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == hf.keys()
    assert all(torch.equal(back[name], hf[name]) for name in hf)
