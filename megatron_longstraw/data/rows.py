"""Rows of a JSON-lines or parquet file: all checked when it is opened, then read one at a time, never all in memory."""

import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from megatron_longstraw.errors import InputError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a row stands, for messages: the file, and the line (JSON lines) or the row (parquet), from 1."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def error(self, problem: str, *, key: str | None = None, allowed: str | None = None) -> InputError:
        """Make the error that says what is wrong here."""
        return InputError(problem, file=self.file, line=self.line, key=key, allowed=allowed)


class RowFile(Protocol):
    """What `open_rows` returns."""

    def __len__(self) -> int:
        """The number of rows."""

    def read(self, row: int) -> tuple[Row, Place]:
        """Read a row, from 0."""


def open_rows(path: str | Path, check: Callable[[Row, Place], object]) -> RowFile:
    """Open a file of rows.

    Args:
        path: `.parquet`, or JSON lines under any other name. Blank lines are passed over.
        check: called once for every row; raises `InputError` for a bad one.

    Raises:
        InputError: the file is missing, holds no row, or a row is bad.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("there is no such file", file=path)
    rows: RowFile = _ParquetRows(path) if path.suffix == ".parquet" else _JsonRows(path)
    if len(rows) == 0:
        raise InputError("holds no row", file=path)
    for row in range(len(rows)):
        check(*rows.read(row))
    return rows


class _JsonRows:
    """Remembers where each line begins; eight bytes a row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = array("q")
        self._lines = array("q")
        offset = 0
        with path.open("rb") as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    self._offsets.append(offset)
                    self._lines.append(line)
                offset += len(text)

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, row: int) -> tuple[Row, Place]:
        place = Place(self._path, self._lines[row])
        with self._path.open("rb") as file:
            file.seek(self._offsets[row])
            text = file.readline().rstrip()
        try:
            content = json.loads(text)
        except UnicodeDecodeError as error:
            raise place.error(f"is not UTF-8: {error.reason}") from error
        except json.JSONDecodeError as error:
            raise place.error(f"is not JSON: {error.msg} at column {error.colno}") from error
        except (ValueError, RecursionError) as error:
            raise place.error(f"is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise place.error("is not a JSON object", allowed='{"prompt": ...}')
        return content, place


class _ParquetRows:
    """Holds one row group, the last that was read."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise InputError(f"needs pyarrow ({error})", file=path, allowed="pip install pyarrow") from error
        self._path = path
        try:
            self._file = parquet.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise InputError(f"is not parquet: {error}", file=path) from error
        metadata = self._file.metadata
        self._starts = [0]
        for group in range(metadata.num_row_groups):
            self._starts.append(self._starts[-1] + metadata.row_group(group).num_rows)
        self._group = -1
        self._table: Any = None

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, row: int) -> tuple[Row, Place]:
        group = bisect_right(self._starts, row) - 1
        if group != self._group:
            self._table = self._file.read_row_group(group)
            self._group = group
        content = self._table.slice(row - self._starts[group], 1).to_pylist()[0]
        return content, Place(self._path, row + 1)
