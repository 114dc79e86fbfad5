"""Where a run's checkpoints lie, and which of them are whole.

`checkpoints/iter_NNNNNNN/` is a checkpoint, and `checkpoints/latest_checkpointed_iteration.txt` the tracker file, which
names the one to continue from. `iter_NNNNNNN.partial` is being written. `iter_NNNNNNN.replaced` is the former
checkpoint of an iteration that was saved again, until the new one counts.
"""

import json
import os
import re
from pathlib import Path

TRACKER = "latest_checkpointed_iteration.txt"
PARTIAL, REPLACED = ".partial", ".replaced"
HF = "hf"
# Lists every other file of a checkpoint with its size in bytes; it is written last.
MANIFEST = "manifest.json"


def checkpoints_of(run_dir: str | Path) -> Path:
    """The folder of a run's checkpoints."""
    return Path(run_dir) / "checkpoints"


def folder_of(checkpoints: Path, iteration: int) -> Path:
    """The folder of one checkpoint."""
    return checkpoints / f"iter_{iteration:07d}"


def variant(folder: Path, suffix: str) -> Path:
    """The sibling of a checkpoint's folder with `PARTIAL` or `REPLACED` added to its name."""
    return folder.with_name(folder.name + suffix)


def saved_iterations(checkpoints: Path) -> list[int]:
    """Iterations with a folder, whole or not, the newest first; a replaced one counts, a partial one does not."""
    names = [path.name.removesuffix(REPLACED) for path in checkpoints.glob("iter_*") if path.is_dir()]
    return sorted({int(name[5:]) for name in names if re.fullmatch(r"iter_\d{7,}", name)}, reverse=True)


def tracked_iteration(checkpoints: Path) -> int | None:
    """The iteration that the tracker file names; None where it names none."""
    try:
        return int((checkpoints / TRACKER).read_text())
    except (OSError, ValueError):
        return None


def write_manifest(folder: Path) -> None:
    """Declare a checkpoint's folder complete, and make all of it durable."""
    sizes = {str(file.relative_to(folder)): file.stat().st_size for file in _files(folder)}
    (folder / MANIFEST).write_text(json.dumps(sizes, indent=1, sort_keys=True) + "\n")
    for path in [*_files(folder), *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        sync(path)


def damage(folder: Path) -> str | None:
    """Say what is wrong with a checkpoint's folder; None where it is whole.

    It compares names and sizes, which finds what an interrupted write or copy leaves, and not a changed byte.
    """
    if not folder.is_dir():
        return "is missing"
    try:
        sizes = json.loads((folder / MANIFEST).read_text())
    except OSError:
        return f"has no {MANIFEST}"
    except ValueError:
        return f"has a damaged {MANIFEST}"
    for name, size in sizes.items():
        file = folder / name
        if not file.is_file():
            return f"lacks {name}"
        if file.stat().st_size != size:
            return f"has {file.stat().st_size} of the {size} bytes of {name}"
    return None


def write_durably(file: Path, text: str) -> None:
    """Write a small file so that it holds its former text or the new one, whenever the machine stops."""
    partial = file.with_name(file.name + PARTIAL)
    partial.write_text(text)
    sync(partial)
    os.replace(partial, file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST]
