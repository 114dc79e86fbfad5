"""The records that flow from one stage to the next; all frozen, all on the CPU, none padded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor


class Phase(Enum):
    """What a forward pass is for; always handed over, never guessed from the grad mode."""

    CAPTURE = "capture"
    DECODE = "decode"
    SCORE = "score"
    REPLAY = "replay"
    PROMPT_BACKWARD = "prompt_backward"


@dataclass(frozen=True)
class Prompt:
    """A prompt, shared by all responses of its group.

    Args:
        ids: token ids `[prompt_tokens]`, int64, at least one.
        text: the prompt as its file has it (text, chat messages, or None where only ids were given).
        columns: every other column of its row, handed to the reward function by name.
        source: where it came from, `file:line`, for messages.
    """

    ids: Tensor
    text: str | list[dict[str, str]] | None = None
    columns: Mapping[str, object] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class Response:
    """One continuation of a prompt; its end-of-sequence token, if it has one, is part of it.

    Args:
        ids: token ids `[response_tokens]`, int64, at least one.
        reward: the reward; None where the response is unscored.
        loss_mask: `[response_tokens]` bool, True where the token counts in the loss; None where all do.
        old_logprobs: `[response_tokens]` log-probs under the policy before the step's first update; None until scored.
        rollout_logprobs: `[response_tokens]` log-probs that the sampler saw; None for recorded responses.
        truncated: it ended because it reached `max_response_tokens`.
        reward_parts: the reward by function, without weights, where it is the sum of several; None as in `reward`.

    Example:
        Prompt ids `[5, 6, 7]` and response ids `[8, 9]`: the branch's input is `[7, 8]`, its targets are `[8, 9]`, and
        `old_logprobs[0]` is log p(8 | 5 6 7).
    """

    ids: Tensor
    reward: float | None = None
    loss_mask: Tensor | None = None
    old_logprobs: Tensor | None = None
    rollout_logprobs: Tensor | None = None
    truncated: bool = False
    reward_parts: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """A prompt and its responses. Groups may differ in size."""

    prompt: Prompt
    responses: tuple[Response, ...]
