"""Qwen2 and Qwen2.5: Llama's layout with biases of queries, keys and values."""

from megatron_longstraw.checkpoint.families.llama import LLAMA
from megatron_longstraw.checkpoint.mapping import Family, Fusion, WeightMap

QWEN2 = Family(
    (
        *LLAMA.weights,
        WeightMap(
            "decoder.layers.{layer}.self_attention.linear_qkv.bias",
            tuple(f"model.layers.{{layer}}.self_attn.{name}_proj.bias" for name in "qkv"),
            Fusion.GROUPED_QKV,
        ),
    )
)
