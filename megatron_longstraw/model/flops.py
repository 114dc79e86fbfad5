"""Floating-point operations of a forward pass, for throughput and planning."""

from megatron.core.transformer.transformer_config import TransformerConfig


def forward_flops(config: TransformerConfig, vocabulary: int, *, start: int, tokens: int, predictions: int) -> float:
    """Multiply-adds times two of the matrix products and of attention, on the whole model.

    Args:
        config: the model's config.
        vocabulary: rows of the output projection.
        start: absolute position of the first token.
        tokens: tokens run.
        predictions: tokens whose logits are computed; where there are none, the tokens are run for their state alone,
            and the last layer stops at its queries, keys and values.
    """
    assert config.kv_channels is not None
    assert config.ffn_hidden_size is not None
    heads = config.num_attention_heads * config.kv_channels
    kv_heads = config.num_query_groups * config.kv_channels
    weights = config.hidden_size * (2 * heads + 2 * kv_heads + 3 * config.ffn_hidden_size)
    seen = tokens * start + tokens * (tokens + 1) / 2
    per_layer = 2.0 * weights * tokens + 4.0 * heads * seen
    if not predictions:
        last_layer = 2.0 * config.hidden_size * (heads + 2 * kv_heads) * tokens
        return (config.num_layers - 1) * per_layer + last_layer
    return config.num_layers * per_layer + 2.0 * vocabulary * config.hidden_size * predictions
