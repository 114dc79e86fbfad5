"""Rewards for prompts with a known answer, in the column `answer`."""

from collections.abc import Sequence


def exact_match(
    prompts: Sequence[object],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer: Sequence[object],
    **columns: object,
) -> list[float]:
    """Give 1 where the completion is the answer, spaces around both aside, and 0 elsewhere."""
    return [float(text.strip() == str(right).strip()) for text, right in zip(completions, answer, strict=True)]


def contains(
    prompts: Sequence[object],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer: Sequence[object],
    **columns: object,
) -> list[float]:
    """Give 1 where the answer stands anywhere in the completion, and 0 elsewhere."""
    return [float(str(right).strip() in text) for text, right in zip(completions, answer, strict=True)]
