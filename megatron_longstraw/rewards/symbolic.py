"""The reward for mathematical expressions, compared by the package math-verify, which is met only here."""

import importlib
import logging
import re
import threading
from collections.abc import Sequence
from typing import Any

from megatron_longstraw.errors import InputError
from megatron_longstraw.rewards.answers import ANSWER, Completion, best_over_answers

# Longest time of one reading and of one comparison, in seconds.
SECONDS = 5
# The expression stands at the end; reading takes time with the square of the length.
LAST_CHARACTERS = 10_000

_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[")


def math_verify(
    prompts: Sequence[object],
    completions: Sequence[Completion],
    completion_ids: Sequence[Sequence[int]],
    *,
    answer_key: str = ANSWER,
    **columns: object,
) -> list[float | None]:
    r"""Give 1 where the completion's last expression equals an accepted answer mathematically, and 0 elsewhere.

    An answer without LaTeX delimiters (`$`, `\(`, `\[`, `\boxed`) is one expression as a whole. What takes too long to
    read or to compare is not equal; there is no such limit outside the main thread.

    Args:
        prompts: unused.
        completions: texts or chats, of which the last characters are read.
        completion_ids: unused.
        answer_key: the column of answers.
        columns: the row's columns.

    Returns:
        1 or 0 for each; None where none of the row's answers can be read as mathematics.

    Raises:
        InputError: the package is missing.
    """
    library = _library()
    # The package sets its limits by signals, which only the main thread can.
    seconds = SECONDS if threading.current_thread() is threading.main_thread() else None
    read: dict[str, Any] = {}

    def expressions(text: str) -> Any:
        if text not in read:
            read[text] = library.parse(text.replace("\N{MINUS SIGN}", "-"), parsing_timeout=seconds)
        return read[text]

    def equal(given: str, right: str) -> float | None:
        truth = expressions(right if _DELIMITED.search(right) else rf"\boxed{{{right}}}")
        if not truth:
            return None
        return float(library.verify(truth, expressions(given[-LAST_CHARACTERS:]), timeout_seconds=seconds))

    return best_over_answers(completions, columns, answer_key, equal)


def _library() -> Any:
    try:
        library = importlib.import_module("math_verify")
    except ImportError as error:
        raise InputError(f"needs the package math-verify, `pip install math-verify` ({error})") from error
    # Its warnings repeat the whole completion.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return library
