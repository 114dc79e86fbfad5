"""Where a step's groups come from: sampled from the policy, or recorded in a file."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from megatron_longstraw.config.schema import RolloutConfig
from megatron_longstraw.data.order import RowOrder, take
from megatron_longstraw.data.prompts import PromptFile
from megatron_longstraw.data.recorded import RecordedFile
from megatron_longstraw.replay.capture import PromptState
from megatron_longstraw.replay.execute import Executor
from megatron_longstraw.rewards.call import Reward
from megatron_longstraw.rollout.decode import StopRules, decode_group
from megatron_longstraw.rollout.sampling import SamplingSettings
from megatron_longstraw.types import Group, Prompt


@dataclass(frozen=True)
class Work:
    """One group on its way through a step.

    Args:
        number: the group's number, counted over the whole run.
        prompt: its prompt.
        group: its responses; None until they are sampled.
    """

    number: int
    prompt: Prompt
    group: Group | None = None


class RolloutSource(Protocol):
    """Gives a step its groups."""

    def take(self, position: int, first_number: int, count: int) -> tuple[list[Work], int]:
        """Read the next groups or prompts from a position of the data, and the position to go on from."""
        ...

    def complete(
        self, executor: Executor, state: PromptState, work: Work, on_token: Callable[[int, int], None]
    ) -> Group:
        """Give a group its responses, where it has none yet."""
        ...


@dataclass(frozen=True)
class SampledRollouts:
    """Samples responses from the captured prompt and rewards them.

    Args:
        prompts: the data.
        order: in which it is visited.
        settings: the rollout's section.
        stop: when a response ends.
        reward: scores a group.
        tokenizer: decodes responses for the reward; None hands over empty texts.
    """

    prompts: PromptFile
    order: RowOrder
    settings: RolloutConfig
    stop: StopRules
    reward: Reward
    tokenizer: Any

    def take(self, position: int, first_number: int, count: int) -> tuple[list[Work], int]:
        """Read the next prompts."""
        prompts, position = take(self.prompts.read, self.order, position=position, count=count)
        return [Work(first_number + index, prompt) for index, prompt in enumerate(prompts)], position

    def complete(
        self, executor: Executor, state: PromptState, work: Work, on_token: Callable[[int, int], None]
    ) -> Group:
        """Sample and reward."""
        settings = self.settings
        responses = decode_group(
            executor,
            state,
            rows=settings.group_size,
            group=work.number,
            seed=settings.seed,
            sampling=SamplingSettings(settings.temperature, settings.top_p, settings.top_k),
            stop=self.stop,
            on_token=on_token,
        )
        ids = [response.ids.tolist() for response in responses]
        texts = [self._text(response) for response in ids]
        scores = self.reward.score(work.prompt, texts, ids)
        scored = (
            replace(response, reward=score.reward, reward_parts=score.parts)
            for response, score in zip(responses, scores, strict=True)
        )
        return Group(work.prompt, tuple(scored))

    def _text(self, ids: list[int]) -> str:
        return "" if self.tokenizer is None else self.tokenizer.decode(ids, skip_special_tokens=True)


@dataclass(frozen=True)
class RecordedRollouts:
    """Reads groups from a file, in its order.

    Args:
        groups: the file.
        order: in which it is visited.
    """

    groups: RecordedFile
    order: RowOrder

    def take(self, position: int, first_number: int, count: int) -> tuple[list[Work], int]:
        """Read the next groups, each at most once."""
        # A file with fewer groups than a step takes is trained on once a step, not some of it twice.
        count = min(count, len(self.order))
        groups, position = take(self.groups.read, self.order, position=position, count=count)
        works = [Work(first_number + index, group.prompt, group) for index, group in enumerate(groups)]
        return works, position

    def complete(
        self, executor: Executor, state: PromptState, work: Work, on_token: Callable[[int, int], None]
    ) -> Group:
        """Return the recorded group."""
        assert work.group is not None
        return work.group
