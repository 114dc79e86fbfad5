"""Megatron's mixture of experts keeps notes of a segment, and must not."""

from collections.abc import Iterator
from contextlib import contextmanager

from megatron.core.transformer.moe.moe_layer import MoELayer
from torch import nn


@contextmanager
def no_notes(mlp: nn.Module) -> Iterator[None]:
    """Surround a forward of a layer: the dispatcher of its experts is afterwards as it was before.

    The dispatcher's notes hold the segment's graph. A graph that a module holds is a cycle through autograd's own
    nodes, which Python's collector does not see: the model, and its process groups, would never be freed, and in every
    layer the last segment would stay in memory.

    Args:
        mlp: the layer's MLP; nothing is done for a dense one.
    """
    if not isinstance(mlp, MoELayer):
        yield
        return
    notes = vars(mlp.token_dispatcher)
    before = dict(notes)
    try:
        yield
    finally:
        notes.clear()
        notes.update(before)
