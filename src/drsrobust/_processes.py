"""Processes and threads: how many are worth while, and a pool of processes that leaves nothing behind."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(number: int) -> Iterator[None]:
    """PyTorch's operations, MKL's and FBGEMM's kernels use so many threads, whatever OMP_NUM_THREADS says: PyTorch sets the
    number in the OpenMP runtime that FBGEMM shares with it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """An executor of fresh processes. An interrupt ends them at once; so does the end of this process, even by `kill -9`."""
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
    try:
        yield executor
    except BaseException:
        for process in list((executor._processes or {}).values()):
            process.terminate()  # an interrupted run does not wait for work that nobody takes
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def end_with_parent() -> None:
    """For a child process: Ctrl-C, which a terminal sends to all, is the parent's to answer; and where the parent is gone,
    the child goes too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    multiprocessing.parent_process().join()
    os.kill(os.getpid(), signal.SIGTERM)
