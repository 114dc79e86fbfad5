"""A folder that appears whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron_longstraw.checkpoint.folder import PARTIAL, sync, variant
from megatron_longstraw.errors import InputError


@contextmanager
def new_folder(folder: str | Path, key: str) -> Iterator[Path]:
    """Give a folder to write to, which gets its name when the block ends, and is removed when it fails.

    Args:
        folder: its name; it must be new or empty.
        key: what the user calls it, for messages.

    Raises:
        InputError: it holds something, or cannot be written.
    """
    folder = Path(folder).absolute()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError("exists already", file=folder, key=key, allowed="a new or an empty folder")
    partial = variant(folder, PARTIAL)
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        try:
            yield partial
            for path in [*partial.rglob("*"), partial]:
                sync(path)
            if folder.exists():
                folder.rmdir()
            partial.rename(folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=folder, key=key) from error
