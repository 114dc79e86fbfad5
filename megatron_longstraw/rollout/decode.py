"""Group decode: all responses of a group at once, on the pages of their prompt, which are read once per token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from megatron_longstraw.replay.capture import PromptState
from megatron_longstraw.replay.execute import Executor
from megatron_longstraw.replay.segment import Segment
from megatron_longstraw.rollout.sampling import SamplingSettings, row_generator, sample
from megatron_longstraw.state.context import SegmentContext
from megatron_longstraw.state.runs import DecodeState
from megatron_longstraw.types import Phase, Response


@dataclass(frozen=True)
class StopRules:
    """When a response ends; the token that ends it is part of it.

    Args:
        max_tokens: ends it as truncated.
        eos_ids: ends it.
        strings: ends it when its text holds one.
        tokenizer: decodes for `strings`; None where there are none.
    """

    max_tokens: int
    eos_ids: frozenset[int]
    strings: tuple[str, ...] = ()
    tokenizer: Any = None

    def ends(self, ids: Sequence[int]) -> bool:
        """Whether the newest token ends the response."""
        if ids[-1] in self.eos_ids:
            return True
        if not self.strings:
            return False
        # A token may be a single byte of a character of four.
        tail = ids[-4 * max(len(string) for string in self.strings) - 4 :]
        text = self.tokenizer.decode(tail)
        return any(string in text for string in self.strings)


@dataclass
class _Row:
    """One response while it is decoded."""

    generator: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def decode_group(
    executor: Executor,
    state: PromptState,
    *,
    rows: int,
    group: int,
    seed: int,
    sampling: SamplingSettings,
    stop: StopRules,
    on_token: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Response, ...]:
    """Sample responses of one captured prompt; nothing of the prompt is computed again.

    Args:
        executor: runs the model.
        state: the captured prompt; only read.
        rows: responses to sample.
        group: number of the group, for its random streams.
        seed: of the random streams.
        sampling: temperature and filters.
        stop: when a response ends.
        on_token: told of tokens per row, of how many at most.

    Returns:
        Responses with `rollout_logprobs`, not yet rewarded.
    """
    decoding = DecodeState(state.run, rows=rows, capacity=stop.max_tokens)
    everyone = [_Row(row_generator(seed, group, row)) for row in range(rows)]
    active = everyone
    newest = state.prompt.ids[-1:].expand(rows)
    dtype = torch.float32
    while active:
        logits = _next_logits(executor, decoding, newest)
        dtype = logits.dtype
        uniforms = torch.cat([torch.rand(1, generator=row.generator, dtype=torch.float64) for row in active])
        tokens, logprobs = (values.cpu() for values in sample(logits, uniforms, sampling))
        for row, token, logprob in zip(active, tokens.tolist(), logprobs.tolist(), strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
        going_on = [
            index for index, row in enumerate(active) if len(row.ids) < stop.max_tokens and not stop.ends(row.ids)
        ]
        on_token(decoding.tokens, stop.max_tokens)
        if len(going_on) < len(active):
            active = [active[index] for index in going_on]
            decoding.keep(going_on)
            tokens = tokens[going_on]
        newest = tokens
    return tuple(_response(row, stop, dtype) for row in everyone)


def _next_logits(executor: Executor, decoding: DecodeState, newest: Tensor) -> Tensor:
    """Append the rows' newest tokens, `[rows]`, and return the logits after them, `[rows, vocabulary]`."""
    context = SegmentContext(phase=Phase.DECODE, run=decoding, start=decoding.position)
    segment = Segment(newest.unsqueeze(-1).to(decoding.device), context)
    (logits,) = executor.forward([lambda: segment])
    decoding.advance()
    return logits


def _response(row: _Row, stop: StopRules, dtype: torch.dtype) -> Response:
    return Response(
        ids=torch.tensor(row.ids, dtype=torch.long),
        rollout_logprobs=torch.tensor(row.logprobs, dtype=dtype),
        truncated=not stop.ends(row.ids),
    )
