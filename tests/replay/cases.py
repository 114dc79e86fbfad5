"""Updates to compare with the oracle: models, groups and settings of every kind the replay must be exact for."""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from tests.oracle.conventional import response_logprobs, tiny_model

VOCABULARY = 97
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
# The oracle's argument to the product's key.
CONFIG_KEYS = {
    "clip_low": "objective.clip_low",
    "clip_high": "objective.clip_high",
    "prompt_gradient": "replay.prompt_gradient",
    "aggregation": "objective.aggregation",
    "temperature": "rollout.temperature",
    "max_response_tokens": "rollout.max_response_tokens",
    "advantage_scale": "objective.advantage.scale",
    "advantage_epsilon": "objective.advantage.epsilon",
}


@dataclass(frozen=True)
class Case:
    """One update.

    Args:
        groups: of each, the prompt's length and the responses' lengths.
        segment_tokens: budget of one segment.
        prompt_gradient: `full`, `stop` or a window in tokens.
        aggregation: of the token losses.
        temperature: divides the logits.
        masked: whether some tokens do not count.
        off_policy: whether old log-probs are given, some of them far enough away to be clipped.
        unscored: whether a response of each group of three or more has no reward.
        page_tokens: tokens of a page of state.
        seed: of ids, rewards, masks and old log-probs; advantages are not scaled where it is odd.
    """

    groups: tuple[tuple[int, tuple[int, ...]], ...]
    segment_tokens: int
    prompt_gradient: str | int = "full"
    aggregation: str = "token"
    temperature: float = 1.0
    masked: bool = False
    off_policy: bool = False
    unscored: bool = False
    page_tokens: int = 16
    seed: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """What both the oracle and the product are told about the objective."""
        longest = max(length for _, lengths in self.groups for length in lengths)
        return {
            **CLIP,
            "prompt_gradient": self.prompt_gradient,
            "aggregation": self.aggregation,
            "temperature": self.temperature,
            "max_response_tokens": longest + 3,
            "advantage_scale": "none" if self.seed % 2 else "group_std",
            "advantage_epsilon": 1e-3,
        }

    @property
    def overrides(self) -> list[str]:
        """The same for the product's command line."""
        return [f"replay.segment_tokens={self.segment_tokens}", f"replay.page_tokens={self.page_tokens}"] + [
            f"{CONFIG_KEYS[name]}={value}" for name, value in self.settings.items()
        ]


def recorded_groups(case: Case, kind: str) -> list[dict[str, Any]]:
    """Draws the groups of a case, in the form of lines of recorded rollouts.

    The responses of a group start with different tokens: the gradients of equal ones would cancel, which leaves nothing
    to compare.
    """
    generator = torch.Generator().manual_seed(case.seed)
    groups: list[dict[str, Any]] = []
    for prompt_tokens, lengths in case.groups:
        first_ids = torch.randperm(VOCABULARY, generator=generator)[: len(lengths)].tolist()
        responses: list[dict[str, Any]] = [
            {
                "ids": [first, *_ids(length - 1, generator)],
                "reward": float(torch.randn((), generator=generator, dtype=torch.float64)),
            }
            for first, length in zip(first_ids, lengths, strict=True)
        ]
        if case.masked:
            for response in responses:
                response["loss_mask"] = (torch.rand(len(response["ids"]), generator=generator) < 0.6).int().tolist()
            # Something is left to learn from in each group.
            responses[0]["loss_mask"][-1] = 1
        if case.unscored and len(responses) > 2:
            responses[1]["reward"] = None
        groups.append({"prompt_ids": _ids(prompt_tokens, generator), "responses": responses})
    if case.off_policy:
        _give_old_logprobs(groups, kind, case.temperature, generator)
    return groups


def _give_old_logprobs(groups: list[dict[str, Any]], kind: str, temperature: float, generator: torch.Generator) -> None:
    model = tiny_model(kind)
    for group in groups:
        for response in group["responses"]:
            with torch.no_grad():
                logprobs, _ = response_logprobs(model, group["prompt_ids"], response["ids"], temperature=temperature)
            # About a third of the tokens lie beyond either bound of the ratio.
            shifts = torch.randn(len(logprobs), generator=generator, dtype=torch.float64) * 0.25
            response["old_logprobs"] = (logprobs + shifts).tolist()


def _ids(count: int, generator: torch.Generator) -> list[int]:
    ids: list[int] = torch.randint(VOCABULARY, (count,), generator=generator).tolist()
    return ids


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any update with prompts up to 40 tokens, up to 9 responses up to 20 tokens, and segments of any length."""
    # Long prompts and long responses are not both needed in each of several groups.
    num_groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    response_lengths = st.lists(st.integers(1, 20), min_size=1, max_size=9).map(tuple)
    groups = tuple(draw(st.tuples(st.integers(1, 40), response_lengths)) for _ in range(num_groups))
    return Case(
        groups=groups,
        segment_tokens=draw(st.one_of(st.integers(1, 12), st.integers(1, 64))),
        prompt_gradient=draw(st.one_of(st.just("full"), st.just("stop"), st.integers(1, 45))),
        aggregation=draw(st.sampled_from(["token", "sequence", "constant"])),
        temperature=draw(st.sampled_from([1.0, 0.7, 1.6])),
        masked=draw(st.booleans()),
        off_policy=draw(st.booleans()),
        unscored=draw(st.booleans()),
        page_tokens=draw(st.sampled_from([1, 5, 16, 4096])),
        seed=draw(st.integers(0, 1000)),
    )
