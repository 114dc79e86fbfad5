"""What a Hugging Face config becomes: which layers have experts, what is refused, and how rows are padded."""

import json

import pytest
from machine import SIZES, small_machine
from transformers import Qwen3MoeConfig

from megatron_longstraw.errors import InputError
from megatron_longstraw.model.build import expert_layers, padded_vocabulary, read_hf_config

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


def moe_config(**fields):
    return Qwen3MoeConfig(**(SIZES | EXPERTS | fields))


def folder_with(tmp_path, **fields):
    (tmp_path / "config.json").write_text(json.dumps(moe_config(**fields).to_dict()))
    return tmp_path


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, [True, True, True, True]),
        ({"decoder_sparse_step": 2}, [False, True, False, True]),
        ({"mlp_only_layers": [0, 3]}, [False, True, True, False]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [False, False, False, True]),
        ({"num_experts": 0}, [False, False, False, False]),
    ],
)
def test_layers_with_experts_are_those_the_config_names(fields, layers):
    fields = fields | {"num_hidden_layers": 4}
    assert expert_layers(moe_config(**fields)) == layers
    with small_machine(config_class=Qwen3MoeConfig, **(EXPERTS | fields)) as machine:
        built = machine.engine.model.module.decoder.layers
        assert [layer.is_moe_layer for layer in built] == layers
        widths = {layer.mlp.linear_fc2.weight.shape[1] for layer in built if not layer.is_moe_layer}
        assert widths <= {SIZES["intermediate_size"]}
        experts = [expert for layer in built if layer.is_moe_layer for expert in layer.mlp.experts.local_experts]
        assert len(experts) == sum(layers) * fields.get("num_experts", 4)
        assert {expert.linear_fc2.weight.shape[1] for expert in experts} <= {24}


@pytest.mark.parametrize(
    ("key", "fields", "allowed"),
    [
        ("num_experts_per_tok", {"num_experts_per_tok": 5}, "1 to 4"),
        ("num_experts_per_tok", {"num_experts_per_tok": 0}, "1 to 4"),
        ("norm_topk_prob", {"num_experts_per_tok": 1}, "false where num_experts_per_tok is 1"),
        ("attention_bias, mlp_bias", {"attention_bias": True}, "false"),
        ("hidden_act", {"hidden_act": "gelu"}, "silu"),
    ],
)
def test_what_is_not_honoured_is_refused_by_its_key(tmp_path, key, fields, allowed):
    with pytest.raises(InputError) as caught:
        read_hf_config(folder_with(tmp_path, **fields))
    assert key in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize("fields", [{}, {"num_experts_per_tok": 1, "norm_topk_prob": False}, {"num_experts": 0}])
def test_a_config_that_is_honoured_is_read(tmp_path, fields):
    assert read_hf_config(folder_with(tmp_path, **fields)).model_type == "qwen3_moe"


def test_rows_are_a_multiple_of_128_for_each_of_several_tensor_ranks():
    assert [padded_vocabulary(97, tensor) for tensor in (1, 2, 4)] == [97, 256, 512]
    assert [padded_vocabulary(rows, 2) for rows in (256, 257)] == [256, 512]
    assert padded_vocabulary(151936, 8) == 152576
    assert padded_vocabulary(97, 1, multiple=64) == 128
