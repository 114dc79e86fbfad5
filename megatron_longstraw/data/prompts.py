"""A file of prompts, a prompt a row."""

from pathlib import Path
from typing import Any

from megatron_longstraw.data.documents import Documents, check_mark
from megatron_longstraw.data.rows import Place, Row, open_rows
from megatron_longstraw.data.template import Encoder, check_text
from megatron_longstraw.types import Prompt

IDS_KEY = "prompt_ids"


class PromptFile:
    """Prompts by row; texts are tokenised when they are read.

    Args:
        path: JSON lines or parquet; verl's files read as they are.
        encoder: tokenizer and limits.
        prompt_key: the column with the prompt. A column `prompt_ids` is used as it is; the text is then only for
            the reward function.
        documents: finds and reads the text files that rows name; None where a column of that name is like any other.

    Raises:
        InputError: the file is missing or a row of it is bad.
    """

    def __init__(
        self, path: str | Path, encoder: Encoder, prompt_key: str = "prompt", documents: Documents | None = None
    ) -> None:
        self._encoder = encoder
        self._prompt_key = prompt_key
        self._documents = documents
        self._rows = open_rows(path, self._check)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, row: int) -> Prompt | None:
        """Read the prompt of a row, from 0; None where it is too long and too long ones are dropped."""
        content, place = self._rows.read(row)
        ids = content.get(IDS_KEY)
        text: Any = content.get(self._prompt_key)
        if ids is not None:
            tokens = self._encoder.prompt(self._encoder.ids(ids, place, IDS_KEY), place, IDS_KEY)
        else:
            documents = self._documents.ids(content, place) if self._documents else ()
            tokens = self._encoder.prompt(text, place, self._prompt_key, documents)
        if tokens is None:
            return None
        columns = {name: value for name, value in content.items() if name not in (self._prompt_key, IDS_KEY)}
        return Prompt(ids=tokens, text=text, columns=columns, source=str(place))

    def _check(self, row: Row, place: Place) -> None:
        """Everything that can be known without a tokenizer."""
        key = self._prompt_key
        paths = self._documents.paths(row, place) if self._documents else []
        if row.get(IDS_KEY) is not None:
            if paths:
                raise place.error(f"documents beside {IDS_KEY}, which are the whole prompt", allowed="one of the two")
            self._encoder.prompt(self._encoder.ids(row[IDS_KEY], place, IDS_KEY), place, IDS_KEY)
        elif key not in row:
            allowed = f"a column {key} or {IDS_KEY}; data.prompt_key names another"
            raise place.error(f"has no {key}; its columns are {', '.join(row) or 'none'}", allowed=allowed)
        else:
            text = check_text(row[key], place, key)
            if paths:
                check_mark(text, place, key)
