"""Branches of a captured prompt: scored without a graph, then replayed one batch at a time with one."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from megatron_longstraw.replay.capture import OnSegment, PromptState, ReplaySettings
from megatron_longstraw.replay.execute import Executor
from megatron_longstraw.replay.plan import BranchBatch, branch_batches
from megatron_longstraw.replay.segment import Branches, state_segment
from megatron_longstraw.state.runs import RunState
from megatron_longstraw.types import Phase


def _branches(
    state: PromptState,
    responses: Sequence[Tensor],
    settings: ReplaySettings,
    token_weights: Sequence[Tensor] | None = None,
) -> Branches:
    inputs = tuple(torch.cat([state.prompt.ids[-1:], response[:-1]]) for response in responses)
    weights = None if token_weights is None else tuple(token_weights)
    return Branches(inputs, tuple(responses), weights, settings.temperature)


def _branch_run(state: PromptState, batch: BranchBatch, *, with_cotangents: bool) -> RunState:
    """State of a batch on top of the prompt; only a chain keeps any, and nobody reads that of its last segment."""
    capacity = batch.spans[-1].start
    cotangent_start = 0 if with_cotangents else capacity
    return RunState(
        state.run.settings,
        start=state.run.capacity,
        capacity=capacity,
        cotangent_start=cotangent_start,
        parent=state.run,
    )


def score(
    executor: Executor,
    state: PromptState,
    responses: Sequence[Tensor],
    settings: ReplaySettings,
    on_segment: OnSegment = lambda done, total: None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute log-probs and entropies of all responses, graph-free.

    Args:
        executor: runs the segments.
        state: the captured prompt.
        responses: token ids of each, `[response_tokens]`.
        settings: how branches are cut.
        on_segment: told of progress.

    Returns:
        Log-probs and entropies of each response, each `[response_tokens]` on the CPU.
    """
    branches = _branches(state, responses, settings)
    logprobs: dict[int, list[Tensor]] = {branch: [] for branch in range(len(responses))}
    entropies: dict[int, list[Tensor]] = {branch: [] for branch in range(len(responses))}
    batches = branch_batches([len(response) for response in responses], settings.segment_tokens)
    for done, batch in enumerate(batches):
        run = _branch_run(state, batch, with_cotangents=False)
        for span in batch.spans:
            store = span.stop <= run.capacity
            (output,) = executor.forward([partial(branches.segment, batch, span, run, phase=Phase.SCORE, store=store)])
            sizes = [min(span.stop, len(responses[branch])) - span.start for branch in batch.branches]
            for found, values in zip((logprobs, entropies), output, strict=True):
                for branch, part in zip(batch.branches, values.cpu().split(sizes), strict=True):
                    found[branch].append(part)
        # The next chain's pages take the place of this one's.
        del run
        on_segment(done + 1, len(batches))
    return [torch.cat(parts) for parts in logprobs.values()], [torch.cat(parts) for parts in entropies.values()]


def replay_branches(
    executor: Executor,
    state: PromptState,
    responses: Sequence[Tensor],
    token_weights: Sequence[Tensor],
    settings: ReplaySettings,
    on_segment: OnSegment = lambda done, total: None,
) -> None:
    """Differentiate `sum(token_weights * logprobs)`; leave the prompt's cotangent in its pages.

    Parameters' gradients accumulate in the executor's model; cotangents accumulate in the state's pages, in place.
    Branches without any weight are passed over: their gradient is exactly 0.

    Args:
        executor: runs the segments.
        state: the captured prompt.
        responses: token ids of each, `[response_tokens]`.
        token_weights: d loss / d logprob of each response's tokens, `[response_tokens]`.
        settings: how branches are cut.
        on_segment: told of progress.
    """
    counted = [branch for branch, weights in enumerate(token_weights) if bool(weights.any())]
    responses = [responses[branch] for branch in counted]
    branches = _branches(state, responses, settings, [token_weights[branch] for branch in counted])
    batches = branch_batches([len(response) for response in responses], settings.segment_tokens)
    for done, batch in enumerate(batches):
        run = _branch_run(state, batch, with_cotangents=True)
        first = branches.inputs[batch.branches[0]]
        executor.forward(
            [partial(state_segment, first, span, run, phase=Phase.CAPTURE, store=True) for span in batch.spans[:-1]]
        )
        executor.forward_backward(
            [
                partial(branches.segment, batch, span, run, phase=Phase.REPLAY, inject=span.stop <= run.capacity)
                for span in reversed(batch.spans)
            ]
        )
        # The next chain's pages take the place of this one's.
        del run
        on_segment(done + 1, len(batches))
