"""Capture: run a prompt without a graph and keep its state."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from megatron_longstraw.replay.execute import Executor
from megatron_longstraw.replay.plan import Span, gradient_start, prompt_spans
from megatron_longstraw.replay.segment import state_segment
from megatron_longstraw.state.runs import RunState, StateSettings
from megatron_longstraw.types import Phase, Prompt

# Told how many segments are done, of how many.
OnSegment = Callable[[int, int], None]


@dataclass(frozen=True)
class ReplaySettings:
    """How tokens are cut and how far gradient flows.

    Args:
        segment_tokens: tokens of one forward, over all rows.
        prompt_gradient: `full`, `stop`, or a window of last prompt tokens.
        keep_graph_segments: graphs of the last captured segments that are kept for the prompt backward.
        temperature: divides the logits.
    """

    segment_tokens: int
    prompt_gradient: str | int = "full"
    keep_graph_segments: int = 0
    temperature: float = 1.0


@dataclass
class PromptState:
    """A captured prompt.

    Args:
        prompt: the prompt.
        run: state of its tokens but the last, which runs in the branches.
        spans: the segments it was captured in.
        kept: the roots of kept graphs, by span; the prompt backward takes them out.
    """

    prompt: Prompt
    run: RunState
    spans: tuple[Span, ...]
    kept: dict[Span, Tensor] = field(default_factory=dict)

    @property
    def gradient_spans(self) -> tuple[Span, ...]:
        """The segments that gradient flows through, in order."""
        return tuple(span for span in self.spans if span.start >= self.run.cotangent_start)


def capture(
    executor: Executor,
    prompt: Prompt,
    state_settings: StateSettings,
    settings: ReplaySettings,
    on_segment: OnSegment = lambda done, total: None,
) -> PromptState:
    """Run the prompt's tokens but the last, segment by segment.

    Args:
        executor: runs the segments.
        prompt: what to capture.
        state_settings: how state is kept.
        settings: how the prompt is cut.
        on_segment: told of progress.

    Returns:
        The state; its pages are freed when it is dropped.
    """
    tokens = len(prompt.ids) - 1
    first = min(gradient_start(len(prompt.ids), settings.prompt_gradient), tokens)
    run = RunState(state_settings, start=0, capacity=tokens, cotangent_start=first)
    state = PromptState(prompt, run, prompt_spans(tokens, settings.segment_tokens, first))
    kept = state.gradient_spans[-settings.keep_graph_segments :] if settings.keep_graph_segments else ()
    for done, span in enumerate(state.spans):
        keep = span in kept
        make = partial(state_segment, prompt.ids, span, run, phase=Phase.CAPTURE, store=True, inject=keep)
        if keep:
            state.kept[span] = executor.forward_keep(make())
        else:
            executor.forward([make])
        on_segment(done + 1, len(state.spans))
    return state
