"""Qwen3-MoE: Qwen3 with a router and experts in place of the MLP, in some layers or all."""

from megatron_longstraw.checkpoint.families.qwen3 import QWEN3
from megatron_longstraw.checkpoint.mapping import Family, Fusion, Stacked, WeightMap

_HF, _MEGATRON = "model.layers.{layer}.mlp.", "decoder.layers.{layer}.mlp."
_HF_EXPERT = f"{_HF}experts.{{expert}}."
_MEGATRON_EXPERT = f"{_MEGATRON}experts.local_experts.{{expert}}."
_GATE_UP = (f"{_HF_EXPERT}gate_proj.weight", f"{_HF_EXPERT}up_proj.weight")
_DOWN = (f"{_HF_EXPERT}down_proj.weight",)

QWEN3_MOE = Family(
    weights=(
        *QWEN3.weights,
        WeightMap(f"{_MEGATRON}router.weight", (f"{_HF}gate.weight",)),
        WeightMap(f"{_MEGATRON_EXPERT}linear_fc1.weight", _GATE_UP, Fusion.CONCATENATED),
        WeightMap(f"{_MEGATRON_EXPERT}linear_fc2.weight", _DOWN),
    ),
    # As transformers names its parameters in memory.
    stacked=(Stacked(f"{_HF}experts.gate_up_proj", _GATE_UP), Stacked(f"{_HF}experts.down_proj", _DOWN)),
)
