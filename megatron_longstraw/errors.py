"""Errors a user can cause; the command line prints each as one line, without a traceback."""

from pathlib import Path


class InputError(ValueError):
    """Bad usage or bad input: which file, line or key, what is wrong, what is allowed. Exit status 2.

    Args:
        problem: what is wrong, without a full stop.
        file: the file the input came from.
        line: the line in it, from 1.
        key: the config key or column.
        allowed: what would have been accepted.

    Example:
        >>> str(InputError("is not a number", file="a.jsonl", line=3, key="reward", allowed="a number or null"))
        'a.jsonl:3: reward: is not a number (allowed: a number or null)'
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        key: str | None = None,
        allowed: str | None = None,
    ) -> None:
        place = "" if file is None else f"{file}:{line}: " if line is not None else f"{file}: "
        name = "" if key is None else f"{key}: "
        hint = "" if allowed is None else f" (allowed: {allowed})"
        super().__init__(f"{place}{name}{problem}{hint}")


class DoesNotFit(RuntimeError):
    """The planned memory exceeds what there is. Exit status 3."""


class Diverged(RuntimeError):
    """The policy's numbers are no longer finite. Exit status 1."""


class Interrupted(Exception):
    """The run was asked to stop and has saved its state. Exit status 130."""


def first_line(error: BaseException) -> str:
    """What another library's error says, in one line; its type where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
