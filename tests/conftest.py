"""Fixtures that the whole session shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from autoplan.runtime.pool import Pool

# Read by torch when a test imports it. On several threads small tensors are slower, on a busy
# machine several times so; and workers are forked, which other threads do not survive.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Worker processes for every test that runs a plan on several of them."""
    import torch

    from autoplan.runtime.pool import Pool

    # Workers are forked: a parallel region of this process would leave threads that they lack.
    torch.set_num_threads(1)
    with Pool() as workers:
        yield workers
