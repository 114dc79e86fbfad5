"""How much memory is in use, and how much was at most: exactly, tensor by tensor, or cheaply for every step.

`LiveBytes` sees every tensor and is for tests and benchmarks on the CPU, where there is no allocator statistic;
`peak_bytes` costs nothing and is what training logs.
"""

import re
import resource
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STATUS_FILE = Path("/proc/self/status")
CLEAR_FILE = Path("/proc/self/clear_refs")
# What the kernel calls resetting the peak (proc(5), clear_refs).
RESET_PEAK = "5"


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of live tensor storages, aliases once, while it is entered.

    Storages that were alive before are not counted unless registered; storages it has seen stay counted until they are
    freed, also after leaving. What a single operation allocates and frees inside is not seen, and neither is memory
    that no operation makes (`torch.from_numpy`). Outputs on the meta device and sparse ones hold no storage to count.

    Example:
        >>> with LiveBytes() as live:
        ...     a = torch.zeros(256)
        ...     b = a.view(2, 128) + 1
        ...     del b
        >>> live.current, live.peak
        (1024, 2048)
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self._bytes_by_storage: dict[int, int] = {}

    def register(self, *tensors: Tensor) -> None:
        """Counts the storages of tensors made before entering."""
        for tensor in tensors:
            self._count(tensor)

    def reset_peak(self) -> None:
        """Forgets the peak so far: it starts again at what is alive now."""
        self.peak = self.current

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation, and counts those of its outputs that alias no input."""
        outputs = func(*args, **(kwargs or {}))
        # torch.tensor() makes its storage unseen and shows it here first, as an input.
        is_new = func is torch.ops.aten.lift_fresh.default
        seen_before = set() if is_new else {_storage_key(tensor) for tensor in _stored_tensors((args, kwargs))}
        for tensor in _stored_tensors(outputs):
            key = _storage_key(tensor)
            if key in self._bytes_by_storage or key not in seen_before:
                self._count(tensor)
        return outputs

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, storage_bytes = storage._cdata, storage.nbytes()
        if key not in self._bytes_by_storage:
            # torch keeps a storage's Python object for as long as the storage lives, whoever holds it.
            weakref.finalize(storage, self._forget, key).atexit = False
        self.current += storage_bytes - self._bytes_by_storage.get(key, 0)
        self._bytes_by_storage[key] = storage_bytes
        self.peak = max(self.peak, self.current)

    def _forget(self, key: int) -> None:
        self.current -= self._bytes_by_storage.pop(key)


def reset_peak_bytes() -> None:
    """Starts a new measurement of `peak_bytes`, from what is in use now, where the system can."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        reset_peak_rss()


def peak_bytes() -> int:
    """Returns the most memory in use since the last reset: the allocator's on an accelerator, else the process's."""
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else peak_rss_bytes()


def reset_peak_rss() -> bool:
    """Resets the process's peak resident size to its present one.

    Returns:
        Whether the system could; where not, `peak_rss_bytes` is the peak since the process started.
    """
    try:
        CLEAR_FILE.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def peak_rss_bytes() -> int:
    """Returns the process's peak resident size since the last reset."""
    found = _status_bytes("VmHWM")
    if found is not None:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(field: str) -> int | None:
    try:
        line = re.search(rf"^{field}:\s+(\d+) kB$", STATUS_FILE.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if line is None else int(line.group(1)) * 1024


def _stored_tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and _has_storage(leaf)]


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type != "meta"


def _storage_key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
