"""Text files that a row names, to be put into its prompt."""

from pathlib import Path

from megatron_longstraw.data.rows import Place, Row
from megatron_longstraw.data.token_cache import TokenCache
from megatron_longstraw.data.windows import Ids

# In a prompt with documents it says where they go.
MARK = "{documents}"
SEPARATOR = "\n\n"

Text = str | list[dict[str, str]]


class Documents:
    """The documents of rows: which files a row names, and their token ids.

    Args:
        tokens: gives the ids of a file; None where the model has no tokenizer.
        key: the column that lists the files, relative to the folder of the data file.
        anywhere: allow files outside that folder.
    """

    def __init__(self, tokens: TokenCache | None, *, key: str, anywhere: bool) -> None:
        self._tokens = tokens
        self._key = key
        self._anywhere = anywhere
        self._found: dict[tuple[Path, str], Path] = {}

    def paths(self, row: Row, place: Place) -> list[Path]:
        """The files that a row names, in its order; none where it has no documents.

        Raises:
            InputError: the column is not a list of texts, or a file is missing, empty, or outside the folder.
        """
        value = row.get(self._key)
        names = [value] if isinstance(value, str) else [] if value is None else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            allowed = '["file.txt", ...]; data.documents_key names another column'
            raise place.error("is not a list of names of text files", key=self._key, allowed=allowed)
        return [self._path(name, place) for name in names]

    def ids(self, row: Row, place: Place) -> list[Ids]:
        """The token ids of each of a row's documents `[document_tokens]`, with nothing added to them.

        Raises:
            InputError: as in `paths`; or a file is not UTF-8, or there is no tokenizer.
        """
        return [self._ids(path, place) for path in self.paths(row, place)]

    def _path(self, name: str, place: Place) -> Path:
        folder = place.file.parent
        found = self._found.get((folder, name))
        if found is None:
            found = self._found[folder, name] = self._find(folder, name, place)
        return found

    def _find(self, folder: Path, name: str, place: Place) -> Path:
        try:
            path, root = (folder / name).resolve(), folder.resolve()
            outside = not self._anywhere and not path.is_relative_to(root)
            problem = None if outside else _problem_of(path)
        # A null byte, a name that is too long, a link that leads to itself, a folder that may not be entered.
        except (OSError, RuntimeError, ValueError) as error:
            raise place.error(f"{name!r} cannot be read: {error}", key=self._key) from error
        if outside:
            allowed = f"a file in {root}, or data.documents_anywhere true"
            raise place.error(f"{name!r} lies outside the folder of the data file", key=self._key, allowed=allowed)
        if problem is not None:
            raise place.error(f"{name!r} {problem}", key=self._key, allowed=f"a text file, relative to {root}")
        return path

    def _ids(self, path: Path, place: Place) -> Ids:
        if self._tokens is None:
            problem = "names text files, but the model's folder has no tokenizer"
            raise place.error(problem, key=self._key, allowed="token ids")
        try:
            return self._tokens.ids(path)
        except OSError as error:
            raise place.error(f"{path} cannot be read: {error.strerror}", key=self._key) from error
        except UnicodeDecodeError as error:
            problem = f"{path} is not UTF-8: {error.reason} at byte {error.start}"
            raise place.error(problem, key=self._key, allowed="text in UTF-8") from error


def _problem_of(path: Path) -> str | None:
    if not path.exists():
        return "does not exist"
    if not path.is_file():
        return "is not a file"
    return None if path.stat().st_size else "is empty"


def check_mark(prompt: Text, place: Place, key: str) -> None:
    """Refuse a prompt with documents that says twice where they go."""
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    marks = sum(text.count(MARK) for text in texts)
    if marks > 1:
        raise place.error(f"has {marks} marks {MARK}", key=key, allowed=f"one {MARK}, or none: then at the beginning")


def with_documents(prompt: Text, documents: str) -> Text:
    """Put documents where a prompt's mark is.

    Without a mark they go before the text, or before the content of the first user's message, or else of the first
    message; a blank line follows.

    Args:
        prompt: text or messages, with one mark at most; stays as it is.
        documents: the text to put there.
    """
    if isinstance(prompt, str):
        return _put(prompt, documents)
    index = next((i for i, message in enumerate(prompt) if MARK in message["content"]), None)
    if index is None:
        index = next((i for i, message in enumerate(prompt) if message["role"] == "user"), 0)
    message = prompt[index]
    return [*prompt[:index], {**message, "content": _put(message["content"], documents)}, *prompt[index + 1 :]]


def unused_word(prompt: Text) -> str:
    """A word that no text of a prompt holds."""
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    number = 0
    while any(f"documents{number}here" in text for text in texts):
        number += 1
    return f"documents{number}here"


def _put(text: str, documents: str) -> str:
    if MARK in text:
        return text.replace(MARK, documents)
    return documents + SEPARATOR + text if text else documents
