"""One way to say that a name is unknown: the thing, the name, the nearest known one and all there are.

Progress bars on stderr: lively for a person, one line every half minute in a batch run.

Processes and threads: how many are worth while, and a pool of processes that leaves nothing behind.

What a manifest records of where numbers were made: versions, commit, machine."""

import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tqdm import tqdm


def unknown(thing: str, name: object, known: Iterable[str], error: type[Exception] = ValueError) -> Exception:
    """The exception to raise for a name that is not among `known`."""
    known = list(known)
    near = get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return error(f"unknown {thing} {name!r}{hint} known: {', '.join(known) or 'none'}")


def progress_bar(total: int, description: str, *, progress: bool = True) -> tqdm:
    """A tqdm bar. `$DRSROBUST_BATCH` (set by `python -m reproduce`) and a stderr that is a file make it quiet."""
    in_notebook = "ipykernel" in sys.modules
    quiet = bool(os.environ.get("DRSROBUST_BATCH")) or not (in_notebook or sys.stderr.isatty())
    return tqdm(
        total=total, desc=description, disable=not progress, mininterval=30 if quiet else 0.5, file=sys.stderr, ncols=84
    )


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


PACKAGES = ("drsrobust", "torch", "torchrec", "fbgemm-gpu", "numpy", "pandas", "matplotlib", "seaborn")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers; `absent` for those that are not installed."""
    return {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES}


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


@cache
def commit() -> str | None:
    """The commit of the checkout this package lies in, with `-dirty` when it has changes; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, str | int | None]:
    """Architecture, number of cores, and memory in GiB."""
    memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": memory,
    }
