"""The backward through the prompt: its segments in reverse order, one graph at a time, for all branches at once."""

from functools import partial

from megatron_longstraw.replay.capture import OnSegment, PromptState
from megatron_longstraw.replay.execute import Executor
from megatron_longstraw.replay.segment import state_segment
from megatron_longstraw.types import Phase


def prompt_backward(executor: Executor, state: PromptState, on_segment: OnSegment = lambda done, total: None) -> None:
    """Recompute each segment on constant earlier state and differentiate it from its cotangent.

    When a segment is reached, every later reader of its state has run, so its cotangent is complete.
    Kept graphs are taken out of `state.kept` and freed.

    Args:
        executor: runs the segments; parameters' gradients accumulate in its model.
        state: the captured prompt, with the cotangents that the branches left.
        on_segment: told of progress.
    """
    spans = state.gradient_spans
    for done, span in enumerate(reversed(spans)):
        if span in state.kept:
            executor.backward_kept(state.kept.pop(span))
        else:
            make = partial(state_segment, state.prompt.ids, span, state.run, phase=Phase.PROMPT_BACKWARD, inject=True)
            executor.forward_backward([make])
        on_segment(done + 1, len(spans))
