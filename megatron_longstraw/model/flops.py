"""Floating-point operations of a forward pass, for throughput and planning."""

from megatron.core.transformer.transformer_config import TransformerConfig


def forward_flops(config: TransformerConfig, vocabulary: int, *, start: int, tokens: int, predictions: int) -> float:
    """Multiply-adds times two of the matrix products and of attention, on the whole model.

    Of a mixture of experts the router counts, and the experts that a token takes.

    Args:
        config: the model's config.
        vocabulary: rows of the output projection.
        start: absolute position of the first token.
        tokens: tokens run.
        predictions: tokens whose logits are computed; where there are none, the tokens are run for their state alone,
            and the last layer stops at its queries, keys and values.
    """
    assert config.kv_channels is not None
    heads = config.num_attention_heads * config.kv_channels
    kv_heads = config.num_query_groups * config.kv_channels
    seen = tokens * start + tokens * (tokens + 1) / 2
    attention = 2.0 * config.hidden_size * (2 * heads + 2 * kv_heads) * tokens + 4.0 * heads * seen
    mlps = [2.0 * weights * tokens for weights in _mlp_weights(config)]
    if not predictions:
        last_layer = 2.0 * config.hidden_size * (heads + 2 * kv_heads) * tokens
        return (config.num_layers - 1) * attention + sum(mlps[:-1]) + last_layer
    return config.num_layers * attention + sum(mlps) + 2.0 * vocabulary * config.hidden_size * predictions


def _mlp_weights(config: TransformerConfig) -> list[int]:
    """Weights of each layer's MLP that a token meets."""
    assert config.ffn_hidden_size is not None
    dense = 3 * config.hidden_size * config.ffn_hidden_size
    if config.num_moe_experts is None:
        return [dense] * config.num_layers
    assert config.moe_ffn_hidden_size is not None
    assert isinstance(config.moe_layer_freq, list)
    experts = config.hidden_size * (config.num_moe_experts + 3 * config.moe_router_topk * config.moe_ffn_hidden_size)
    return [experts if has_experts else dense for has_experts in config.moe_layer_freq]
