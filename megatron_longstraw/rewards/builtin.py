"""Rewards for prompts with a known answer, in the column `answer`."""

from collections.abc import Mapping, Sequence

Completion = str | Sequence[Mapping[str, str]]


def completion_text(completion: Completion) -> str:
    """The text of a completion, which is a chat where the prompt was one."""
    return completion if isinstance(completion, str) else "".join(message["content"] for message in completion)


def exact_match(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer: Sequence[object],
    **columns: object,
) -> list[float]:
    """Give 1 where the completion is the answer, spaces around both aside, and 0 elsewhere."""
    return [
        float(completion_text(given).strip() == str(right).strip())
        for given, right in zip(completions, answer, strict=True)
    ]


def contains(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer: Sequence[object],
    **columns: object,
) -> list[float]:
    """Give 1 where the answer stands anywhere in the completion, and 0 elsewhere."""
    return [
        float(str(right).strip() in completion_text(given)) for given, right in zip(completions, answer, strict=True)
    ]
