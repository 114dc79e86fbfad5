"""Core attention on pages; enters Megatron's self attention through the layer spec."""

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional

from megatron_longstraw.kernels.segment_attention import segment_attention
from megatron_longstraw.kernels.segment_attention.decode import decode_attention
from megatron_longstraw.model.rope import rotate
from megatron_longstraw.state.context import SegmentContext
from megatron_longstraw.state.runs import DecodeState, RunState


class PagedCoreAttention(nn.Module):
    """Attention of one layer: rotates, stores the segment's state where asked to, attends to pages and segment.

    Args:
        config: the model's config.
        layer_number: from 1, over all pipeline stages.
        softmax_scale: factor of the scores; `1 / sqrt(head_dim)` where None.
    """

    def __init__(
        self, config: TransformerConfig, layer_number: int, softmax_scale: float | None = None, **_: Any
    ) -> None:
        super().__init__()
        self.layer_number = layer_number
        assert config.kv_channels is not None
        self.scale = config.kv_channels**-0.5 if softmax_scale is None else softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        packed_seq_params: SegmentContext,
        **_: Any,
    ) -> Tensor:
        """Attend.

        Args:
            query: `[tokens, rows, query_heads, head_dim]`, not yet rotated.
            key: `[tokens, rows, kv_heads, head_dim]`, not yet rotated.
            value: like `key`.
            attention_mask: unused; a segment is causal.
            packed_seq_params: the segment's context.

        Returns:
            `[tokens, rows, query_heads * head_dim]`.
        """
        context = packed_seq_params
        assert context.rotary is not None
        padding = query.shape[0] - context.rotary[0].shape[0]
        query, key, value = (_unpadded(tensor, padding) for tensor in (query, key, value))
        query, key = rotate(query, context.rotary), rotate(key, context.rotary)
        if isinstance(context.run, DecodeState):
            own_key, own_value = context.run.layer(self.layer_number).append(context.run.tokens, key, value)
            past = tuple(context.run.past(self.layer_number))
            out = decode_attention(query, own_key, own_value, past, scale=self.scale)
        else:
            run = _store(self.layer_number, key, value, context)
            past_pages = run.past(self.layer_number, context.start)
            own_cotangent = _own_cotangent(self.layer_number, key.shape[0], context)
            out = segment_attention(query, key, value, past_pages, scale=self.scale, own_cotangent=own_cotangent)
        # Sequence parallelism pads segments at their end; padding attends to nothing.
        return functional.pad(out.flatten(2), (0, 0, 0, 0, 0, padding)) if padding else out.flatten(2)

    def state_root(self, key: Tensor, value: Tensor, context: SegmentContext, hidden_size: int) -> Tensor:
        """Store the segment's state where nobody reads the layer's output.

        Args:
            key: as in `forward`.
            value: as in `forward`.
            context: the segment's context.
            hidden_size: the model's.

        Returns:
            Zeros `[1, 1, hidden_size]`, whose backward starts from the cotangent of `key` and `value`.
        """
        assert context.rotary is not None
        padding = key.shape[0] - context.rotary[0].shape[0]
        key, value = _unpadded(key, padding), _unpadded(value, padding)
        key = rotate(key, context.rotary)
        _store(self.layer_number, key, value, context)
        own_cotangent = _own_cotangent(self.layer_number, key.shape[0], context)
        return _StateRoot.apply(key, value, own_cotangent, hidden_size)


def _unpadded(tensor: Tensor, padding: int) -> Tensor:
    return tensor[: tensor.shape[0] - padding] if padding else tensor


def _store(layer_number: int, key: Tensor, value: Tensor, context: SegmentContext) -> RunState:
    run = context.run
    assert isinstance(run, RunState)
    if context.store:
        assert key.shape[1] == 1, "a run is one row"
        run.layer(layer_number).append(context.start - run.start, key.detach()[:, 0], value.detach()[:, 0])
    return run


def _own_cotangent(layer_number: int, tokens: int, context: SegmentContext) -> Any:
    if not context.inject:
        return None
    run = context.run
    assert isinstance(run, RunState)
    start = context.start - run.start

    def own_cotangent() -> tuple[Tensor, Tensor]:
        d_key, d_value = run.layer(layer_number).cotangent(start, start + tokens)
        return d_key.unsqueeze(1), d_value.unsqueeze(1)

    return own_cotangent


class _StateRoot(torch.autograd.Function):
    """The root of a backward that starts from state, not from a loss: it ignores the gradient it gets."""

    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor, own_cotangent: Any, hidden_size: int) -> Tensor:
        """Return zeros; keep only where the cotangents will be."""
        ctx.own_cotangent, ctx.dtype = own_cotangent, key.dtype
        return key.new_zeros(1, 1, hidden_size)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the cotangents that later segments left."""
        d_key, d_value = ctx.own_cotangent()
        return d_key.to(ctx.dtype), d_value.to(ctx.dtype), None, None
