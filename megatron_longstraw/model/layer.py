"""A Megatron transformer layer that stops at its state where it is the last and nobody reads its output."""

from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

from megatron_longstraw.model.attention import PagedCoreAttention
from megatron_longstraw.model.experts import no_notes
from megatron_longstraw.model.norm import RMSNorm
from megatron_longstraw.model.router import Router
from megatron_longstraw.model.swiglu import SwiGLU
from megatron_longstraw.state.context import SegmentContext


class SegmentLayer(TransformerLayer):
    """Megatron's layer; in phases that run for state alone, the model's last layer computes no output."""

    def forward(
        self, hidden_states: Tensor, *args: Any, packed_seq_params: SegmentContext, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Run the layer on `[tokens, rows, hidden]`; see `PagedCoreAttention.state_root` for the exception."""
        if not packed_seq_params.state_only or self.layer_number != self.config.num_layers:
            with no_notes(self.mlp):
                return super().forward(hidden_states, *args, packed_seq_params=packed_seq_params, **kwargs)
        attention = self.self_attention
        _, key, value = attention.get_query_key_value_tensors(self.input_layernorm(hidden_states))
        root = attention.core_attention.state_root(key, value, packed_seq_params, self.config.hidden_size)
        return root, None


def layer_spec(*, qk_layernorm: bool, num_experts: int | None = None) -> ModuleSpec:
    """Megatron's local spec of a layer with our layer, norms, activation, core attention and router.

    Args:
        qk_layernorm: whether queries and keys are normalised per head.
        num_experts: experts of its MLP; None for a dense one.
    """
    spec = get_gpt_layer_local_spec(num_experts=num_experts, qk_layernorm=qk_layernorm, normalization="RMSNorm")
    spec.module = SegmentLayer
    layer = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    layer.self_attention.submodules.core_attention = PagedCoreAttention
    if qk_layernorm:
        layer.self_attention.submodules.q_layernorm = layer.self_attention.submodules.k_layernorm = RMSNorm
    mlp: MLPSubmodules = layer.mlp.submodules
    if num_experts is not None:
        layer.mlp.submodules.router = Router
        # One expert after the other; a grouped product for GPUs would take the place of this spec.
        mlp = layer.mlp.submodules.experts.submodules
        # In a checkpoint this norm is part of a dense MLP's first layer; an expert layer has it under its own name.
        del layer.sharded_state_dict_keys_map["pre_mlp_layernorm."]
    mlp.activation_func = SwiGLU
    return spec
