"""From a Hugging Face config to Megatron-core's model and the specs of its state."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
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


@dataclass(frozen=True)
class Family:
    """What sets a model type apart from Llama.

    Args:
        add_qkv_bias: queries, keys and values have a bias.
        qk_layernorm: queries and keys are normalised per head.
        experts: layers may be mixtures of experts.
    """

    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    experts: bool = False


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(add_qkv_bias=True),
    "qwen3": Family(qk_layernorm=True),
    "qwen3_moe": Family(qk_layernorm=True, experts=True),
}
# Rows of the vocabulary per tensor rank, as Megatron-LM's `make_vocab_size_divisible_by` has them.
VOCABULARY_ROWS = 128


def read_hf_config(folder: str | Path, key: str = "model.hf") -> Any:
    """Read and check the config of a Hugging Face model folder.

    Args:
        folder: holds `config.json`.
        key: what the user calls it, for messages.

    Raises:
        InputError: no config, an architecture that is not supported, or a setting the trainer would not honour.
    """
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise InputError("no config.json; a model is a Hugging Face folder", file=folder, key=key)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise InputError(f"cannot be read: {first_line(error)}", file=file) from error
    if config.model_type not in FAMILIES:
        raise InputError(f"model type {config.model_type!r} is not supported", file=file, allowed=", ".join(FAMILIES))
    _refuse(file, config)
    return config


def _refuse(file: Path, config: Any) -> None:
    """Refuse what would change the model's meaning if it were passed over."""
    bias = getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False)
    sliding = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    quantized = getattr(config, "quantization_config", None) is not None
    checks = {
        "quantization_config": (quantized, "none: the weights as they were before they were quantized"),
        "attention_dropout": (getattr(config, "attention_dropout", 0.0) != 0.0, "0"),
        "hidden_act": (config.hidden_act != "silu", "silu"),
        "attention_bias, mlp_bias": (bias, "false"),
        "sliding_window": (sliding, "null"),
    }
    if any(expert_layers(config)):
        chosen = config.num_experts_per_tok
        checks |= {
            "num_experts_per_tok": (not 1 <= chosen <= config.num_experts, f"1 to {config.num_experts}"),
            # A single weight divided by itself is 1: no gradient would ever reach the router.
            "norm_topk_prob": (config.norm_topk_prob and chosen == 1, "false where num_experts_per_tok is 1"),
        }
    for key, (wrong, allowed) in checks.items():
        if wrong:
            raise InputError("is set to what the trainer does not support", file=file, key=key, allowed=allowed)


def head_dim(hf_config: Any) -> int:
    """Size of one attention head."""
    return getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads


def expert_layers(hf_config: Any) -> list[bool]:
    """Tell for each layer whether its MLP is a mixture of experts."""
    layers = range(hf_config.num_hidden_layers)
    if not FAMILIES[hf_config.model_type].experts or not hf_config.num_experts:
        return [False for _ in layers]
    dense, step = hf_config.mlp_only_layers, hf_config.decoder_sparse_step
    return [layer not in dense and (layer + 1) % step == 0 for layer in layers]


def padded_vocabulary(vocab_size: int, tensor: int, multiple: int | None = None) -> int:
    """Count the rows of embedding and output projection, real ones and padding.

    Args:
        vocab_size: the real ones.
        tensor: tensor-parallel size.
        multiple: what the rows are a multiple of; by default 128 for each of several tensor ranks, and 1 for a single
            one.

    Example:
        >>> padded_vocabulary(1000, 1), padded_vocabulary(1000, 2)
        (1000, 1024)
    """
    if multiple is None:
        multiple = VOCABULARY_ROWS * tensor if tensor > 1 else 1
    return -(-vocab_size // multiple) * multiple


def transformer_config(hf_config: Any, dtype: torch.dtype, layout: ParallelLayout) -> TransformerConfig:
    """Translate a Hugging Face config for Megatron-core."""
    family = FAMILIES[hf_config.model_type]
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
        sequence_parallel=layout.sequence_parallel,
        expert_model_parallel_size=layout.expert,
        # Segments and batches of branches differ in length.
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        # Sums stay unnormalised until the update's global counts are known.
        calculate_per_token_loss=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        use_cpu_initialization=True,
        add_qkv_bias=family.add_qkv_bias,
        qk_layernorm=family.qk_layernorm,
        **_expert_settings(hf_config, dtype),
    )


def _expert_settings(hf_config: Any, dtype: torch.dtype) -> dict[str, Any]:
    """The part of Megatron's config about experts: no token is dropped, and no auxiliary loss is added."""
    pattern = expert_layers(hf_config)
    if not any(pattern):
        return {}
    return {
        "num_moe_experts": hf_config.num_experts,
        "moe_ffn_hidden_size": hf_config.moe_intermediate_size,
        # As a list it also makes checkpoints name every layer, which differ.
        "moe_layer_freq": [int(experts) for experts in pattern],
        "moe_router_topk": hf_config.num_experts_per_tok,
        # Megatron's softmax after the choice is a softmax before it and a division by the sum.
        "moe_router_pre_softmax": not hf_config.norm_topk_prob,
        "moe_router_load_balancing_type": "none",
        # A choice between experts should not depend on rounding to bfloat16.
        "moe_router_dtype": "fp64" if dtype is torch.float64 else "fp32",
    }


def build_model(
    hf_config: Any, dtype: torch.dtype, layout: ParallelLayout, *, vocabulary_multiple: int | None = None
) -> SegmentModel:
    """Build this rank's part of the model, randomly initialised; rows of the vocabulary that are padding are 0.

    Args:
        hf_config: from `read_hf_config`.
        dtype: dtype of the parameters.
        layout: sizes and groups.
        vocabulary_multiple: see `padded_vocabulary`.
    """
    model = _build(hf_config, dtype, layout, vocabulary_multiple)
    _clear_padding(model, layout.groups.tp.rank())
    # Nothing is dropped out, so that a segment recomputes to the same numbers; evaluation mode also skips the masks.
    return model.to(default_device()).eval()


def _build(
    hf_config: Any, dtype: torch.dtype, layout: ParallelLayout, vocabulary_multiple: int | None = None
) -> SegmentModel:
    config = transformer_config(hf_config, dtype, layout)
    pipeline_rank = layout.groups.pp.rank()
    return SegmentModel(
        config=config,
        transformer_layer_spec=TransformerBlockSubmodules(
            layer_specs=_layer_specs(hf_config, config, pipeline_rank), layer_norm=RMSNorm
        ),
        rotary_table=RotaryTable(*rotary_frequencies(hf_config)),
        real_vocabulary=hf_config.vocab_size,
        vocab_size=padded_vocabulary(hf_config.vocab_size, layout.tensor, vocabulary_multiple),
        max_sequence_length=hf_config.max_position_embeddings,
        pre_process=pipeline_rank == 0,
        post_process=pipeline_rank == layout.pipeline - 1,
        share_embeddings_and_output_weights=bool(hf_config.tie_word_embeddings),
        pg_collection=layout.groups,
    )


def build_shapes(hf_config: Any, layout: ParallelLayout) -> SegmentModel:
    """Build this rank's part of the model on the meta device: names and shapes, and no memory."""
    with torch.device("meta"):
        return _build(hf_config, torch.float32, layout)


def _layer_specs(hf_config: Any, config: TransformerConfig, pipeline_rank: int) -> list[ModuleSpec]:
    """The specs of a pipeline stage's layers."""
    dense = layer_spec(qk_layernorm=config.qk_layernorm)
    experts = layer_spec(qk_layernorm=config.qk_layernorm, num_experts=config.num_moe_experts)
    first = get_transformer_layer_offset(config, pp_rank=pipeline_rank)
    last = first + get_num_layers_to_build(config, pp_rank=pipeline_rank)
    return [experts if has_experts else dense for has_experts in expert_layers(hf_config)[first:last]]


@torch.no_grad()
def _clear_padding(model: SegmentModel, tensor_rank: int) -> None:
    """Set to 0, in place, this tensor rank's rows of the vocabulary that are padding."""
    for name, parameter in model.named_parameters():
        if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            parameter[max(0, model.real_vocabulary - tensor_rank * len(parameter)) :] = 0


def state_specs(
    model: SegmentModel, *, state_dtype: torch.dtype, cotangent_dtype: torch.dtype
) -> tuple[LayerStateSpec, ...]:
    """Specs of the state of every layer that this rank holds."""
    config = model.config
    # With fewer heads than ranks, several ranks hold the same head.
    shape = (max(1, config.num_query_groups // config.tensor_model_parallel_size), config.kv_channels)
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
