"""Segments through Megatron's schedule as its microbatches; the only file that knows `forward_backward_func`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from megatron_longstraw.parallel.layout import ParallelLayout
from megatron_longstraw.replay.segment import Segment
from megatron_longstraw.types import Phase

# Segments are made one at a time, so that a long chain holds the inputs of one.
MakeSegment = Callable[[], Segment]


@dataclass(frozen=True)
class Executor:
    """Runs segments; gradients accumulate in the buffers of the model's wrapper, unreduced and unnormalised.

    Args:
        model: the wrapped model, with `no_sync()`.
        layout: sizes and groups.
    """

    model: Any
    layout: ParallelLayout

    @torch.no_grad()
    def forward(self, make_segments: Sequence[MakeSegment]) -> list[Any]:
        """Run segments in order without a graph; return the model's outputs on the last pipeline stage."""
        return self._schedule(make_segments, forward_only=True)

    def forward_backward(self, make_segments: Sequence[MakeSegment]) -> None:
        """Run and differentiate segments in order; the graph of one exists at a time per pipeline stage."""
        self._schedule(make_segments, forward_only=False)

    def forward_keep(self, segment: Segment) -> Tensor:
        """Run one segment and keep its graph; for a single pipeline stage."""
        assert self.layout.pipeline == 1, "graphs are kept on a single stage only"
        return self.model(segment.input_ids, segment.context)

    def backward_kept(self, root: Tensor) -> None:
        """Differentiate what `forward_keep` returned."""
        with self.model.no_sync():
            root.backward()

    def _schedule(self, make_segments: Sequence[MakeSegment], *, forward_only: bool) -> list[Any]:
        if not make_segments:
            return []
        # Gradients are reduced once per update, by the engine, however many schedules ran.
        with self.model.no_sync():
            return get_forward_backward_func()(
                forward_step_func=_forward_step,
                data_iterator=(make() for make in make_segments),
                model=self.model,
                num_microbatches=len(make_segments),
                # Shapes travel with the tensors; these two are not read.
                seq_length=1,
                micro_batch_size=1,
                forward_only=forward_only,
                pg_collection=self.layout.groups,
            )


def _forward_step(segments: Iterator[Segment], model: Any) -> tuple[Any, Any]:
    segment = next(segments)
    return model(segment.input_ids, segment.context), partial(_loss, segment)


def _loss(segment: Segment, output: Any) -> tuple[Tensor, Tensor, Any]:
    """What the schedule differentiates, a count it never divides by, and what the caller wants back."""
    count = torch.ones((), dtype=torch.int)
    if segment.context.phase is not Phase.REPLAY:
        return (output[0] if isinstance(output, tuple) else output), count, output
    assert segment.token_weights is not None
    logprobs, _ = output
    return (logprobs * segment.token_weights).sum(), count, None
