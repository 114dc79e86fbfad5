"""Set-up of every test: one thread, the same random numbers, nothing left behind."""

import os
import random
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _same_start_and_nothing_left() -> Iterator[None]:
    environment = dict(os.environ)
    dtype = torch.get_default_dtype()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (libraries under test may draw from it)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(dtype)
    os.environ.clear()
    os.environ.update(environment)
