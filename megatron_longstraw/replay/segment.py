"""One segment: the model's inputs, and the weights of its log-probs where it is differentiated."""

from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_longstraw.replay.plan import BranchBatch, Span
from megatron_longstraw.state.context import SegmentContext
from megatron_longstraw.state.runs import RunState
from megatron_longstraw.types import Phase


@dataclass(frozen=True)
class Segment:
    """One forward of the model; a microbatch of Megatron's schedule.

    Args:
        input_ids: `[rows, tokens]` int64, on the model's device.
        context: phase and state.
        token_weights: d loss / d logprob of every prediction, `[predictions]`; None where nothing is predicted.
    """

    input_ids: Tensor
    context: SegmentContext
    token_weights: Tensor | None = None


def state_segment(
    run_ids: Tensor, span: Span, run: RunState, *, phase: Phase, store: bool = False, inject: bool = False
) -> Segment:
    """A piece of a run that is run for its state alone.

    Args:
        run_ids: token ids of the whole run, `[run_tokens]`.
        span: which of them.
        run: the state they belong to.
        phase: CAPTURE or PROMPT_BACKWARD.
        store: append their state to the run's pages.
        inject: in backward, start from the cotangents of the run's pages.
    """
    context = SegmentContext(phase=phase, run=run, start=run.start + span.start, store=store, inject=inject)
    return Segment(_on_device(run_ids[None, span.start : span.stop], run), context)


@dataclass(frozen=True)
class Branches:
    """Branches of one prompt, as the model takes them.

    Args:
        inputs: each branch's input ids, `[branch_tokens]`: the last prompt token and the response but its last.
        targets: each branch's targets, `[branch_tokens]`: the response.
        token_weights: for REPLAY, each branch's d loss / d logprob, `[branch_tokens]`.
        temperature: divides the logits.
    """

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    token_weights: tuple[Tensor, ...] | None
    temperature: float

    def segment(
        self, batch: BranchBatch, span: Span, run: RunState, *, phase: Phase, store: bool = False, inject: bool = False
    ) -> Segment:
        """A piece of one or several branches that predicts their targets.

        Rows are padded on the right with token 0. Padding predicts nothing, no real token sees it, and its gradient
        is 0.

        Args:
            batch: which branches.
            span: which of their tokens, the same for all.
            run: the state of the rows; appended to only where there is one row.
            phase: SCORE or REPLAY.
            store: append the segment's state to the run's pages.
            inject: in backward, add the cotangents of the run's pages.
        """

        def pieces(of: tuple[Tensor, ...]) -> list[Tensor]:
            return [of[branch][span.start : span.stop] for branch in batch.branches]

        rows = pieces(self.inputs)
        lengths = [len(row) for row in rows]
        input_ids = torch.zeros(len(rows), max(lengths), dtype=torch.long)
        for index, row in enumerate(rows):
            input_ids[index, : len(row)] = row
        # Hidden states are [tokens, rows]; predictions go row by row, in the order of the targets.
        head_index = torch.cat([torch.arange(length) * len(rows) + index for index, length in enumerate(lengths)])
        context = SegmentContext(
            phase=phase,
            run=run,
            start=run.start + span.start,
            store=store,
            inject=inject,
            head_index=_on_device(head_index, run),
            head_targets=_on_device(torch.cat(pieces(self.targets)), run),
            temperature=self.temperature,
        )
        weights = None if self.token_weights is None else _on_device(torch.cat(pieces(self.token_weights)), run)
        return Segment(_on_device(input_ids, run), context, weights)


def _on_device(tensor: Tensor, run: RunState) -> Tensor:
    return tensor.to(run.settings.device)
