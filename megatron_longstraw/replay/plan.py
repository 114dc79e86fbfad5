"""Which tokens run together, and where they are cut; integers only."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Tokens `start..stop` of a run, by offset in it."""

    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """Its length."""
        return self.stop - self.start


@dataclass(frozen=True)
class BranchBatch:
    """Branches that run at once.

    Args:
        branches: their indices in the group, longest first.
        spans: one segment for all of them, or the chain of segments of a single branch.
    """

    branches: tuple[int, ...]
    spans: tuple[Span, ...]


def gradient_start(prompt_tokens: int, prompt_gradient: str | int) -> int:
    """The first prompt token that gradient flows through.

    The last prompt token runs in the branches and always carries gradient, so `stop` is a window of one token.

    Args:
        prompt_tokens: tokens of the prompt, the last one included.
        prompt_gradient: `full`, `stop`, or the number of last prompt tokens.

    Example:
        >>> gradient_start(10, "full"), gradient_start(10, "stop"), gradient_start(10, 4)
        (0, 9, 6)
    """
    if prompt_gradient == "full":
        return 0
    window = 1 if prompt_gradient == "stop" else int(prompt_gradient)
    return max(0, prompt_tokens - window)


def cut(start: int, stop: int, segment_tokens: int) -> tuple[Span, ...]:
    """Cut `start..stop` into segments of `segment_tokens`, the last one shorter."""
    return tuple(Span(a, min(a + segment_tokens, stop)) for a in range(start, stop, segment_tokens))


def prompt_spans(captured_tokens: int, segment_tokens: int, first_gradient_token: int) -> tuple[Span, ...]:
    """Segments of a captured prompt; none crosses the place where its gradient starts.

    Example:
        >>> [(span.start, span.stop) for span in prompt_spans(10, 4, 3)]
        [(0, 3), (3, 7), (7, 10)]
    """
    first = min(first_gradient_token, captured_tokens)
    return cut(0, first, segment_tokens) + cut(first, captured_tokens, segment_tokens)


def branch_batches(lengths: Sequence[int], segment_tokens: int) -> tuple[BranchBatch, ...]:
    """Put branches together, sorted by length, as many as fit one segment's budget of `rows x longest`.

    A branch longer than a segment runs alone, as a chain of segments.

    Args:
        lengths: tokens of each branch, at least 1.
        segment_tokens: the budget.

    Example:
        >>> [batch.branches for batch in branch_batches([2, 9, 3, 4], 8)]
        [(1,), (3, 2), (0,)]
    """
    batches: list[BranchBatch] = []
    waiting: list[int] = []

    def close() -> None:
        if waiting:
            batches.append(BranchBatch(tuple(waiting), (Span(0, lengths[waiting[0]]),)))
            waiting.clear()

    for branch in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if lengths[branch] > segment_tokens:
            batches.append(BranchBatch((branch,), cut(0, lengths[branch], segment_tokens)))
            continue
        if waiting and (len(waiting) + 1) * lengths[waiting[0]] > segment_tokens:
            close()
        waiting.append(branch)
    close()
    return tuple(batches)
