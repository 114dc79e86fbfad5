"""What this machine can use of what the program knows, and why not the rest."""

import importlib
import os
import platform
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from importlib import metadata

import torch
from rich.console import Console
from rich.table import Table

from megatron_longstraw import __version__
from megatron_longstraw.kernels.choice import choices

Row = tuple[str, str, str]

_PACKAGES = ("torch", "megatron-core", "transformers", "safetensors", "omegaconf", "pyarrow", "rich")
# Distribution, the part of it whose import shows that it works here, and what it is for.
_OPTIONAL = (
    ("transformer-engine", "transformer_engine.pytorch", "fused layers"),
    ("wandb", "wandb", "tracking.wandb"),
)


def show(console: Console | None = None) -> None:
    """Print the report; it never fails, since what is missing is what it is for."""
    table = Table(title=f"longstraw {__version__}")
    for heading in ("part", "here", "why, or what for"):
        table.add_column(heading, overflow="fold")
    for rows in (_system(), _packages(), _optional(), _kernels(), _engines()):
        for row in rows:
            table.add_row(*row)
        table.add_section()
    (console or Console()).print(table)


def _system() -> Iterable[Row]:
    yield "python", platform.python_version(), ""
    yield "platform", platform.platform(), f"{os.cpu_count()} processors"
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        yield "device", "cpu", "torch finds no accelerator; everything runs on the processors, over gloo"
        return
    module = torch.get_device_module(accelerator)
    for index in range(torch.accelerator.device_count()):
        properties = module.get_device_properties(index)
        yield f"device {index}", properties.name, f"{properties.total_memory / 2**30:.0f} GiB"


def _packages() -> Iterable[Row]:
    for name in _PACKAGES:
        version = _version(name)
        yield name, version or "missing", "" if version else f"pip install {name}"


def _optional() -> Iterable[Row]:
    yield "NVIDIA Apex", *_usable(_import_apex, "fused optimizers")
    for distribution, module, purpose in _OPTIONAL:
        status, reason = _usable(partial(importlib.import_module, module), purpose)
        yield distribution, _version(distribution) or status if status == "usable" else status, reason


def _kernels() -> Iterable[Row]:
    for kernel, implementation, reason in choices():
        yield f"kernel {kernel}", implementation, reason


def _engines() -> Iterable[Row]:
    yield "engine megatron", *_usable(partial(importlib.import_module, "megatron.core"), "engine.name: megatron")
    yield "engine deepspeed", "not usable", "not supported yet"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _usable(load: Callable[[], object], purpose: str) -> tuple[str, str]:
    """Try an import, and tell how it went."""
    try:
        with warnings.catch_warnings(action="ignore"):
            load()
    except ModuleNotFoundError as error:
        return "not usable", f"{purpose}: not installed ({error})"
    # A package built for another machine fails in its own way.
    except Exception as error:  # noqa: BLE001
        return "not usable", f"{purpose}: {type(error).__name__}: {' '.join(str(error).split()):.120}"
    return "usable", purpose


def _import_apex() -> None:
    apex = importlib.import_module("apex")
    try:
        importlib.import_module("apex.optimizers")
        importlib.import_module("amp_C")
    except ModuleNotFoundError as error:
        place = getattr(apex, "__file__", None) or "apex"
        raise ImportError(f"{place} is not NVIDIA's Apex with its extensions ({error})") from error
