"""Counted operations are those of the matrix products, typed out."""

from machine import SIZES, small_machine
from transformers import Qwen3MoeConfig

from megatron_longstraw.model.flops import forward_flops


def test_operations_are_those_of_the_formula():
    with small_machine() as machine:
        config = machine.engine.model.module.config
    hidden, ffn, heads, kv_heads, layers = 32, 64, 32, 16, 3
    assert (SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["num_hidden_layers"]) == (hidden, ffn, layers)
    start, tokens, predictions, vocabulary = 10, 4, 2, 97
    projections = 2 * tokens * (hidden * (heads + 2 * kv_heads) + heads * hidden + 3 * hidden * ffn)
    # Scores and values, each 2 operations, for every query head's dim and every visible position.
    attention = sum(2 * 2 * heads * (start + token + 1) for token in range(tokens))
    logits = 2 * predictions * hidden * vocabulary
    counted = forward_flops(config, vocabulary, start=start, tokens=tokens, predictions=predictions)
    assert counted == layers * (projections + attention) + logits
    state_only = forward_flops(config, vocabulary, start=start, tokens=tokens, predictions=0)
    last = 2 * tokens * hidden * (heads + 2 * kv_heads)
    assert state_only == (layers - 1) * (projections + attention) + last


def test_of_experts_those_that_a_token_takes_count_and_the_router():
    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True}
    # The middle one of three layers is dense, and the last one has experts.
    with small_machine(config_class=Qwen3MoeConfig, head_dim=8, mlp_only_layers=[1], **experts) as machine:
        config = machine.engine.model.module.config
    with small_machine() as machine:
        dense_config = machine.engine.model.module.config
    hidden, tokens = 32, 4
    dense = 3 * 2 * tokens * hidden * 64
    sparse = 2 * tokens * hidden * (8 + 3 * 3 * 24)
    for predictions, sparse_layers in ((2, 2), (0, 1)):
        counts = [
            forward_flops(each, 97, start=10, tokens=tokens, predictions=predictions) for each in (config, dense_config)
        ]
        assert counts[0] - counts[1] == sparse_layers * (sparse - dense)
