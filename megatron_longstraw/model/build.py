"""From a Hugging Face config to Megatron-core's model and the specs of its state."""

from pathlib import Path
from typing import Any

import torch
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional
from transformers import AutoConfig

from megatron_longstraw.device.cpu import default_device
from megatron_longstraw.errors import InputError, first_line
from megatron_longstraw.model.gpt import SegmentModel
from megatron_longstraw.model.layer import layer_spec
from megatron_longstraw.model.norm import RMSNorm
from megatron_longstraw.model.rope import RotaryTable, rotary_frequencies
from megatron_longstraw.parallel.layout import ParallelLayout
from megatron_longstraw.state.spec import LayerStateSpec

# Model type to what sets the family apart: bias of q, k and v; norm of queries and keys.
DENSE_FAMILIES = {
    "llama": {"add_qkv_bias": False, "qk_layernorm": False},
    "mistral": {"add_qkv_bias": False, "qk_layernorm": False},
    "qwen2": {"add_qkv_bias": True, "qk_layernorm": False},
    "qwen3": {"add_qkv_bias": False, "qk_layernorm": True},
}


def read_hf_config(folder: str | Path) -> Any:
    """Read and check the config of a Hugging Face model folder.

    Raises:
        InputError: no config, an architecture that is not supported, or a setting the trainer would not honour.
    """
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise InputError("no config.json; a model is a Hugging Face folder", file=folder, key="model.hf")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise InputError(f"cannot be read: {first_line(error)}", file=file) from error
    if config.model_type not in DENSE_FAMILIES:
        raise InputError(
            f"model type {config.model_type!r} is not supported", file=file, allowed=", ".join(DENSE_FAMILIES)
        )
    _refuse(file, config)
    return config


def _refuse(file: Path, config: Any) -> None:
    """Refuse what would change the model's meaning if it were passed over."""
    bias = getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False)
    sliding = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    checks = {
        "attention_dropout": (getattr(config, "attention_dropout", 0.0) != 0.0, "0"),
        "hidden_act": (config.hidden_act != "silu", "silu"),
        "attention_bias, mlp_bias": (bias, "false"),
        "sliding_window": (sliding and config.sliding_window < config.max_position_embeddings, "null"),
    }
    for key, (wrong, allowed) in checks.items():
        if wrong:
            raise InputError("is set to what the trainer does not support", file=file, key=key, allowed=allowed)


def head_dim(hf_config: Any) -> int:
    """Size of one attention head."""
    return getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads


def transformer_config(hf_config: Any, dtype: torch.dtype, layout: ParallelLayout) -> TransformerConfig:
    """Translate a Hugging Face config for Megatron-core."""
    return TransformerConfig(
        num_layers=hf_config.num_hidden_layers,
        hidden_size=hf_config.hidden_size,
        ffn_hidden_size=hf_config.intermediate_size,
        num_attention_heads=hf_config.num_attention_heads,
        num_query_groups=hf_config.num_key_value_heads,
        kv_channels=head_dim(hf_config),
        layernorm_epsilon=hf_config.rms_norm_eps,
        init_method_std=hf_config.initializer_range,
        normalization="RMSNorm",
        activation_func=functional.silu,
        gated_linear_unit=True,
        # The activation comes from the layer spec; this flag is how Megatron lets it in.
        use_te_activation_func=True,
        bias_activation_fusion=False,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        # Segments and batches of branches differ in length.
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        # Sums stay unnormalised until the update's global counts are known.
        calculate_per_token_loss=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        use_cpu_initialization=True,
        **DENSE_FAMILIES[hf_config.model_type],
    )


def build_model(hf_config: Any, dtype: torch.dtype, layout: ParallelLayout) -> SegmentModel:
    """Build this rank's part of the model, randomly initialised.

    Args:
        hf_config: from `read_hf_config`.
        dtype: dtype of the parameters.
        layout: sizes and groups.
    """
    config = transformer_config(hf_config, dtype, layout)
    spec = layer_spec(qk_layernorm=config.qk_layernorm)
    pipeline_rank = layout.groups.pp.rank()
    layers = get_num_layers_to_build(config, pp_rank=pipeline_rank)
    model = SegmentModel(
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=RMSNorm),
        rotary_table=RotaryTable(*rotary_frequencies(hf_config)),
        real_vocabulary=hf_config.vocab_size,
        vocab_size=hf_config.vocab_size,
        max_sequence_length=hf_config.max_position_embeddings,
        pre_process=pipeline_rank == 0,
        post_process=pipeline_rank == layout.pipeline - 1,
        share_embeddings_and_output_weights=bool(hf_config.tie_word_embeddings),
        pg_collection=layout.groups,
    )
    # Nothing is dropped out, so that a segment recomputes to the same numbers; evaluation mode also skips the masks.
    return model.to(default_device()).eval()


def state_specs(
    model: SegmentModel, *, state_dtype: torch.dtype, cotangent_dtype: torch.dtype
) -> tuple[LayerStateSpec, ...]:
    """Specs of the state of every layer that this rank holds."""
    config = model.config
    shape = (config.num_query_groups // config.tensor_model_parallel_size, config.kv_channels)
    return tuple(
        LayerStateSpec(
            layer_number=layer.layer_number,
            kind="attention",
            per_token={"key": shape, "value": shape},
            state_dtype=state_dtype,
            cotangent_dtype=cotangent_dtype,
        )
        for layer in model.decoder.layers
    )
