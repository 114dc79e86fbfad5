"""Ready-made rewards, in TRL's form and by name.

Most compare with the column `answer`: a text, a number, or a list of those, each of which is right. A row whose answer
is null leaves its completions unscored. Called with no completions, each still checks its options.
"""

import re
import string
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megatron_longstraw.errors import InputError
from megatron_longstraw.rewards.answers import ANSWER, Completion, best_over_answers, completion_text
from megatron_longstraw.rewards.numbers import numeric_answer
from megatron_longstraw.rewards.symbolic import math_verify
from megatron_longstraw.rewards.time_limit import time_limit

# A pattern may take exponential time; the longest search of one completion, in seconds.
SEARCH_SECONDS = 5.0


def exact_match(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer_key: str = ANSWER,
    ignore_case: bool = False,
    normalize: bool = False,
    **columns: object,
) -> list[float | None]:
    """Give 1 where the completion is an accepted answer, spaces around both aside, and 0 elsewhere.

    Args:
        prompts: unused.
        completions: texts or chats.
        completion_ids: unused.
        answer_key: the column of answers.
        ignore_case: upper and lower case are the same.
        normalize: case, punctuation, articles and the width of spaces do not count, as in SQuAD.
        columns: the row's columns.
    """
    simplify = _simplifier(ignore_case=ignore_case, normalize=normalize)
    return best_over_answers(
        completions, columns, answer_key, lambda given, right: float(simplify(given) == simplify(right))
    )


def contains(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer_key: str = ANSWER,
    ignore_case: bool = False,
    normalize: bool = False,
    whole_words: bool = False,
    **columns: object,
) -> list[float | None]:
    """Give 1 where an accepted answer stands anywhere in the completion, and 0 elsewhere.

    Args:
        prompts: unused.
        completions: texts or chats.
        completion_ids: unused.
        answer_key: the column of answers; an empty answer stands nowhere.
        ignore_case: upper and lower case are the same.
        normalize: case, punctuation, articles and the width of spaces do not count, as in SQuAD.
        whole_words: no letter or digit may touch the answer, so that 7 does not stand in 17.
        columns: the row's columns.
    """
    simplify = _simplifier(ignore_case=ignore_case, normalize=normalize)

    def found(given: str, right: str) -> float:
        text, answer = simplify(given), simplify(right)
        if whole_words:
            return float(bool(answer) and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None)
        return float(bool(answer) and answer in text)

    return best_over_answers(completions, columns, answer_key, found)


def word_f1(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer_key: str = ANSWER,
    **columns: object,
) -> list[float | None]:
    """Give the F1 of the completion's words and an accepted answer's, as SQuAD does; words are what spaces separate.

    Args:
        prompts: unused.
        completions: texts or chats.
        completion_ids: unused.
        answer_key: the column of answers.
        columns: the row's columns.

    Returns:
        `2 * shared / (words of the completion + words of the answer)` in `[0, 1]`, counted with repetition, without
        case, punctuation and articles; 1 where neither has a word.

    Example:
        With the answer `The Eiffel Tower`: `eiffel tower!` gives 1, `a tower in Paris` 2 / (3 + 2), `Rome` 0.
    """
    return best_over_answers(completions, columns, answer_key, _f1)


def regex(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    pattern: str | None = None,
    pattern_key: str | None = None,
    answer_key: str = ANSWER,
    ignore_case: bool = False,
    **columns: object,
) -> list[float | None]:
    r"""Give 1 where a regular expression is found in the completion, and 0 elsewhere.

    A pattern with a group named `answer`, such as `Answer:\s*(?P<answer>\w+)`, finds the answer instead: the group's
    text in the last match is compared with the accepted answers, spaces around both aside.

    Args:
        prompts: unused.
        completions: texts or chats.
        completion_ids: unused.
        pattern: of Python's `re`, the same for all rows.
        pattern_key: a column with the row's own pattern; give one of the two.
        answer_key: the column of answers, for a pattern with a group `answer`.
        ignore_case: upper and lower case are the same, in the pattern and in the answer.
        columns: the row's columns.

    Raises:
        InputError: there is no pattern, or it is not one.
    """
    if (pattern is None) == (pattern_key is None):
        raise InputError("needs one of pattern and pattern_key")
    flags = re.IGNORECASE if ignore_case else re.NOFLAG
    common = None if pattern is None else _compiled(pattern, flags)
    if not completions:
        return []
    if common is None:
        row_patterns = columns.get(str(pattern_key))
        if not isinstance(row_patterns, Sequence):
            raise InputError(f"needs a column {pattern_key!r}")
        patterns = [_compiled(row_pattern, flags) for row_pattern in row_patterns]
    else:
        patterns = [common] * len(completions)
    found = [_last_match(each, completion_text(given)) for each, given in zip(patterns, completions, strict=True)]
    # All of a group's rows are the same one, so their patterns have the same groups.
    if "answer" not in patterns[0].groupindex:
        return [float(match is not None) for match in found]
    texts = ["" if match is None else match["answer"] or "" for match in found]
    simplify = _simplifier(ignore_case=ignore_case, normalize=False)
    return best_over_answers(
        texts, columns, answer_key, lambda given, right: float(bool(given) and simplify(given) == simplify(right))
    )


def length_penalty(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    target_tokens: int,
    max_tokens: int,
    **columns: object,
) -> list[float]:
    """Give 0 up to a target length, falling in a straight line to -1 at a maximum, and -1 beyond.

    It is the soft overlong punishment of DAPO, whose cache is `max_tokens - target_tokens`.

    Args:
        prompts: unused.
        completions: unused.
        completion_ids: the responses' tokens, with the token that ended each.
        target_tokens: the longest response that costs nothing.
        max_tokens: the length at which a response gets -1.
        columns: unused.

    Raises:
        InputError: the target is not below the maximum.
    """
    if not 0 <= target_tokens < max_tokens:
        raise InputError(f"needs 0 <= target_tokens < max_tokens, which are {target_tokens} and {max_tokens}")
    return [max(-1.0, min(0.0, (target_tokens - len(ids)) / (max_tokens - target_tokens))) for ids in completion_ids]


# The names that `reward.function` knows; config.schema.READY_MADE_REWARDS lists them.
READY_MADE: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (exact_match, contains, regex, word_f1, numeric_answer, math_verify, length_penalty)
}


def _simplifier(*, ignore_case: bool, normalize: bool) -> Callable[[str], str]:
    """What is compared of a text."""
    if normalize:
        return lambda text: " ".join(_words(text))
    if ignore_case:
        return lambda text: text.strip().casefold()
    return str.strip


def _words(text: str) -> list[str]:
    """A text's words without case, punctuation and articles, as in the evaluation of SQuAD."""
    kept = "".join(char for char in text.casefold() if not _is_punctuation(char))
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def _is_punctuation(char: str) -> bool:
    return char in string.punctuation or unicodedata.category(char).startswith("P")


def _f1(given: str, right: str) -> float:
    given_words, right_words = _words(given), _words(right)
    words = len(given_words) + len(right_words)
    shared = (Counter(given_words) & Counter(right_words)).total()
    return 2 * shared / words if words else 1.0


def _compiled(pattern: object, flags: re.RegexFlag) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)  # type: ignore[call-overload]
    except (re.error, TypeError) as error:
        raise InputError(f"has the pattern {pattern!r:.80}, which is no regular expression: {error}") from error


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    try:
        with time_limit(SEARCH_SECONDS):
            for last in pattern.finditer(text):  # noqa: B007
                pass
    except TimeoutError:
        warnings.warn(
            f"the pattern {pattern.pattern!r} took over {SEARCH_SECONDS:g} s on a completion of {len(text)} characters,"
            " which counts as no match",
            stacklevel=2,
        )
        return None
    return last
