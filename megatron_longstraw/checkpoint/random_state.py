"""The state of every global random generator, written to files that are safe to read."""

import json
import random
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from megatron_longstraw.device.cpu import default_device

_TENSORS, _NUMBERS = "random_state.safetensors", "random_state.json"


def save_random_state(folder: Path) -> None:
    """Write the states of torch's, Python's and NumPy's generators into a folder."""
    tensors = {"torch": torch.get_rng_state()}
    device = default_device()
    if device.type != "cpu":
        tensors["device"] = torch.get_device_module(device).get_rng_state()
    save_file(tensors, folder / _TENSORS)
    # Reward functions may draw from either.
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    numbers = {"python": random.getstate(), "numpy": [name, np.asarray(keys).tolist(), *rest]}
    (folder / _NUMBERS).write_text(json.dumps(numbers))


def load_random_state(folder: Path) -> None:
    """Put the generators into the states that a folder holds."""
    tensors = load_file(folder / _TENSORS)
    torch.set_rng_state(tensors["torch"])
    device = default_device()
    # A run may go on where there is another kind of device, whose generator then keeps its seed.
    if device.type != "cpu" and "device" in tensors:
        torch.get_device_module(device).set_rng_state(tensors["device"])
    numbers = json.loads((folder / _NUMBERS).read_text())
    version, internal, gauss = numbers["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = numbers["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
