"""As many threads as there are cores, for as long as something is measured."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(number: int) -> Iterator[None]:
    """PyTorch's operations, MKL's and FBGEMM's kernels use so many threads, whatever OMP_NUM_THREADS says: PyTorch sets the
    number in the OpenMP runtime that FBGEMM shares with it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
