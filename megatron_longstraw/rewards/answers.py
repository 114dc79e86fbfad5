"""What the ready-made rewards share: the text of a completion, the accepted answers of a row, and the best of them."""

from collections.abc import Callable, Mapping, Sequence

from megatron_longstraw.errors import InputError

Completion = str | Sequence[Mapping[str, str]]
Columns = Mapping[str, object]

ANSWER = "answer"


def completion_text(completion: Completion) -> str:
    """The text of a completion, which is a chat where the prompt was one."""
    return completion if isinstance(completion, str) else "".join(message["content"] for message in completion)


def best_over_answers(
    completions: Sequence[Completion], columns: Columns, answer_key: str, worth: Callable[[str, str], float | None]
) -> list[float | None]:
    """Compare each completion with the accepted answers of its row.

    Args:
        completions: texts or chats.
        columns: each a list with one entry per completion.
        answer_key: the column of answers.
        worth: of a completion's text, given an answer; None where it cannot be compared with that answer.

    Returns:
        The highest worth over the row's answers; None where the row has none, which leaves the completion unscored.

    Raises:
        InputError: there is no such column, or an entry of it is no answer.
    """
    if not completions:
        return []
    answers = [_accepted(value, answer_key) for value in _answer_column(columns, answer_key)]
    best: list[float | None] = []
    for given, accepted in zip(completions, answers, strict=True):
        worths = (worth(completion_text(given), right) for right in accepted)
        best.append(max((value for value in worths if value is not None), default=None))
    return best


def _answer_column(columns: Columns, answer_key: str) -> Sequence[object]:
    values = columns.get(answer_key)
    if isinstance(values, Sequence):
        return values
    # Where verl keeps the answer.
    models = columns.get("reward_model")
    if answer_key == ANSWER and isinstance(models, Sequence):
        truths = [model.get("ground_truth") for model in models if isinstance(model, Mapping)]
        if len(truths) == len(models):
            return truths
    instead = ", reward_model.ground_truth or one named by answer_key" if answer_key == ANSWER else ""
    raise InputError(f"needs a column {answer_key!r}{instead}")


def _accepted(value: object, answer_key: str) -> list[str]:
    """A row's answers as texts, none where it is null."""
    values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    if not all(isinstance(item, (str, int, float)) for item in values):
        raise InputError(f"needs a text, a number or a list of them in {answer_key!r}, which is {value!r:.80}")
    return [str(item) for item in values]
