"""Counted operations are those of the matrix products, typed out."""

from machine import SIZES, small_machine

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
