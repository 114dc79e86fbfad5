"""Ragged groups as plain Python lists, from which both the tests' loops and the product's records are made."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from megatron_longstraw.grpo.objective import ObjectiveInputs


@dataclass(frozen=True)
class Ragged:
    """Per response: an advantage; per token of it: log-probs and whether it counts."""

    advantages: list[float]
    logprobs: list[list[float]]
    old_logprobs: list[list[float]]
    counts: list[list[bool]]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(row) for row in self.logprobs)

    def inputs(self, dtype: torch.dtype = torch.float64) -> ObjectiveInputs:
        return ObjectiveInputs(
            logprobs=torch.tensor(flat(self.logprobs), dtype=dtype),
            old_logprobs=torch.tensor(flat(self.old_logprobs), dtype=dtype),
            advantages=torch.tensor(self.advantages, dtype=torch.float64),
            loss_mask=torch.tensor(flat(self.counts), dtype=torch.bool),
            lengths=self.lengths,
        )


def flat(rows: list[list]) -> list:
    return [value for row in rows for value in row]


@st.composite
def ragged_groups(draw: st.DrawFn) -> Ragged:
    """Groups of 1 to 5 responses of 1 to 6 tokens, masked and not, with ratios on both sides of the bounds."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    logprob = st.floats(-4.0, 0.0)

    def rows(elements: st.SearchStrategy) -> list[list]:
        return [draw(st.lists(elements, min_size=length, max_size=length)) for length in lengths]

    return Ragged(
        advantages=[draw(st.one_of(st.just(0.0), st.floats(-3.0, 3.0))) for _ in lengths],
        logprobs=rows(logprob),
        old_logprobs=rows(logprob),
        counts=rows(st.booleans()),
    )
