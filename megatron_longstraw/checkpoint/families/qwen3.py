"""Qwen3: Llama's layout with a norm of each head's query and key."""

from megatron_longstraw.checkpoint.families.llama import LLAMA
from megatron_longstraw.checkpoint.mapping import Family, WeightMap

QWEN3 = Family(
    (
        *LLAMA.weights,
        *(
            WeightMap(
                f"decoder.layers.{{layer}}.self_attention.{kind}_layernorm.weight",
                (f"model.layers.{{layer}}.self_attn.{kind}_norm.weight",),
            )
            for kind in "qk"
        ),
    )
)
