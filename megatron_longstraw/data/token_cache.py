"""Token ids of text files, kept on disk by content, so that a long document is tokenised once."""

import hashlib
import json
import os
import secrets
import tempfile
import warnings
import zlib
from codecs import IncrementalDecoder, getincrementaldecoder
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import tokenizers

from megatron_longstraw.data.windows import Ids, OnProgress, token_ids
from megatron_longstraw.errors import InputError, first_line

# Another number where the same text and tokenizer give other ids, or a file is laid out otherwise.
FORMAT = 1
READ_BYTES = 1 << 20


class TokenCache:
    """Gives the token ids of text files.

    A file of the folder is named by a hash of the text, the tokenizer and the format. It is a numpy array of uint32:
    the ids, and last the CRC-32 of their bytes. It is written aside and renamed, so several processes may share a
    folder. Where it cannot be written, ids stay in memory.

    Args:
        tokenizer: one of `transformers`.
        folder: where ids are kept; None for the user's own, see `default_folder`.
        on_progress: told of progress, in characters, while a text is tokenised.
    """

    def __init__(
        self, tokenizer: Any, folder: str | Path | None = None, on_progress: OnProgress = lambda done, total: None
    ) -> None:
        self._tokenizer = tokenizer
        self._given_folder = folder
        self._on_progress = on_progress
        # What was found for a path: its size and time of change, and its entry, or else its ids.
        self._known: dict[Path, tuple[tuple[int, int], Path | Ids]] = {}

    def ids(self, path: Path) -> Ids:
        """The ids `[tokens]` of a text file, read-only and mapped into memory where they are on disk.

        Raises:
            OSError: the file cannot be read.
            UnicodeDecodeError: it is not UTF-8.
        """
        status = path.stat()
        change = (status.st_size, status.st_mtime_ns)
        known_change, known = self._known.get(path, (None, None))
        if known_change == change and isinstance(known, np.ndarray):
            return known
        # An entry that was sound once is not read through again.
        ids = _load(known) if known_change == change and isinstance(known, Path) else None
        if ids is None:
            entry = self._entry(_content_hash(path))
            ids = self._checked(entry)
            if ids is None:
                text, content_hash = _read(path)
                entry = self._entry(content_hash)
                ids = token_ids(self._tokenizer, text, self._on_progress)
                kept = self._write(entry, ids)
            else:
                kept = True
            self._known[path] = (change, entry if kept else ids)
        return ids

    @cached_property
    def _folder(self) -> Path:
        return default_folder() if self._given_folder is None else Path(self._given_folder)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self._tokenizer)

    def _entry(self, content_hash: str) -> Path:
        key = hashlib.sha256(f"{FORMAT} {self._fingerprint} {content_hash}".encode()).hexdigest()
        return self._folder / f"{key}.npy"

    def _checked(self, entry: Path) -> Ids | None:
        """The ids of an entry that is there and sound."""
        if not entry.is_file():
            return None
        array = _load(entry, checked=True)
        if array is None:
            warnings.warn(f"{entry} is damaged; the text is tokenised again", stacklevel=2)
        return array

    def _write(self, entry: Path, ids: Ids) -> bool:
        partial = entry.with_name(f"{entry.name}.{secrets.token_hex(8)}.partial")
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            try:
                with partial.open("xb") as file:
                    np.save(file, np.append(ids, np.uint32(zlib.crc32(ids.data))))
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(entry)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            warnings.warn(f"token ids cannot be kept in {entry.parent}: {first_line(error)}", stacklevel=2)
            return False
        return True


def default_folder() -> Path:
    """`longstraw/tokens` in `$XDG_CACHE_HOME`, or in `~/.cache`.

    Raises:
        InputError: there is no home folder.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named and Path(named).is_absolute():
        return Path(named) / "longstraw" / "tokens"
    try:
        return Path.home() / ".cache" / "longstraw" / "tokens"
    except RuntimeError as error:
        raise InputError("there is no home folder", key="data.token_cache", allowed="a folder") from error


def fingerprint(tokenizer: Any) -> str:
    """A hash of all that decides which ids a tokenizer gives."""
    digest = hashlib.sha256(f"{type(tokenizer).__name__} {tokenizers.__version__}".encode())
    if tokenizer.is_fast:
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        # What a former call asked for, not the tokenizer itself.
        state.update(truncation=None, padding=None)
        digest.update(json.dumps(state, sort_keys=True).encode())
        return digest.hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for file in sorted(Path(folder).rglob("*")):
            if file.is_file():
                digest.update(f"{file.name} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _load(entry: Path, *, checked: bool = False) -> Ids | None:
    """The ids of an entry; None where it is no longer there or not sound."""
    try:
        array = np.lib.format.open_memmap(entry, mode="r")
    # The header of an array is Python source, so a damaged one fails in every way that source can.
    except (OSError, ValueError, SyntaxError, TokenError):
        return None
    if array.dtype != np.uint32 or array.ndim != 1 or not len(array):
        return None
    ids = array[:-1]
    return None if checked and zlib.crc32(ids.data) != int(array[-1]) else ids


def _content_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> tuple[str, str]:
    """A file's text, and the hash of just these bytes, since the file may be written to meanwhile."""
    digest, decoder = hashlib.sha256(), getincrementaldecoder("utf-8")()
    parts: list[str] = []
    done = 0
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
            parts.append(_decode(decoder, block, done))
            done += len(block)
    parts.append(_decode(decoder, b"", done))
    return "".join(parts), digest.hexdigest()


def _decode(decoder: IncrementalDecoder, block: bytes, position: int) -> str:
    """Decode a file's next block, an empty one at its end; errors count bytes from the beginning of the file."""
    try:
        return decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        # The decoder counts from what it has kept of the block before.
        position += len(block) - len(error.object)
        raise UnicodeDecodeError("utf-8", b"", position + error.start, position + error.end, error.reason) from error
