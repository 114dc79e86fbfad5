"""Llama 2 and 3, and what has its layout: Mistral, SmolLM2."""

from megatron_longstraw.checkpoint.mapping import Family, Fusion, WeightMap

_HF, _MEGATRON = "model.layers.{layer}.", "decoder.layers.{layer}."
_QKV = ("q_proj", "k_proj", "v_proj")

ATTENTION = (
    WeightMap(f"{_MEGATRON}input_layernorm.weight", (f"{_HF}input_layernorm.weight",)),
    WeightMap(
        f"{_MEGATRON}self_attention.linear_qkv.weight",
        tuple(f"{_HF}self_attn.{name}.weight" for name in _QKV),
        Fusion.GROUPED_QKV,
    ),
    WeightMap(f"{_MEGATRON}self_attention.linear_proj.weight", (f"{_HF}self_attn.o_proj.weight",)),
)
MLP = (
    WeightMap(f"{_MEGATRON}pre_mlp_layernorm.weight", (f"{_HF}post_attention_layernorm.weight",)),
    WeightMap(
        f"{_MEGATRON}mlp.linear_fc1.weight",
        (f"{_HF}mlp.gate_proj.weight", f"{_HF}mlp.up_proj.weight"),
        Fusion.CONCATENATED,
    ),
    WeightMap(f"{_MEGATRON}mlp.linear_fc2.weight", (f"{_HF}mlp.down_proj.weight",)),
)
# A model with tied embeddings has no output layer.
EMBEDDINGS = (
    WeightMap("embedding.word_embeddings.weight", ("model.embed_tokens.weight",)),
    WeightMap("decoder.final_layernorm.weight", ("model.norm.weight",)),
    WeightMap("output_layer.weight", ("lm_head.weight",)),
)

LLAMA = Family(EMBEDDINGS + ATTENTION + MLP)
