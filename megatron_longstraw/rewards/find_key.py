"""The reward of the "find the key" prompts: the share of the key's numbers that stand where they should."""

from collections.abc import Sequence

from megatron_longstraw.rewards.answers import Completion, completion_text


def reward(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer: Sequence[str],
    **columns: object,
) -> list[float]:
    """Score each completion against its row's answer.

    Args:
        prompts: unused.
        completions: texts; what follows an end-of-sequence mark such as `<eos>` does not count.
        completion_ids: unused.
        answer: the right numbers, separated by spaces, one string for each completion.
        columns: unused.

    Returns:
        One number in `[0, 1]` each: the numbers that are right, divided by the length of the answer or of the
        completion, whichever is longer. 1 means the key and nothing else; each of three numbers is worth a third.

    Example:
        With the answer `47 12 85`: that gives 1, `47 12 99` gives 2/3, `47 12 85 .` gives 3/4, the empty text gives 0.
    """
    return [_share(completion_text(completion), right) for completion, right in zip(completions, answer, strict=True)]


def _share(completion: str, answer: str) -> float:
    given = completion.split("<eos>")[0].split()
    right = answer.split()
    hits = sum(a == b for a, b in zip(given, right, strict=False))
    return hits / max(len(given), len(right), 1)
