"""One adapter per kind of layer: how its state is stored, read by attention, and given its cotangent."""

from megatron_longstraw.state.adapters.attention import AttentionState

ADAPTERS = {"attention": AttentionState}
