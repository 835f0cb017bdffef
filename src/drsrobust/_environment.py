"""Errors for unknown names, progress bars, threads and processes, and the versions, commit and machine for manifests."""

import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tqdm import tqdm

# Modules that take long to import. A server process imports those that this process has, and forks the workers.
_PRELOADED = ("torch", "torchrec", "pandas", "pyarrow", "drsrobust.campaign.workers", "drsrobust.training.load")
# The packages that decide the numbers.
PACKAGES = ("drsrobust", "torch", "torchrec", "fbgemm-gpu", "numpy", "pandas", "matplotlib", "seaborn")


def unknown(thing: str, name: object, choices: Iterable[str], error: type[Exception] = ValueError) -> Exception:
    """The exception for a name that is not in `known`; its message suggests the nearest one."""
    choices = list(choices)
    near = get_close_matches(str(name), choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return error(f"unknown {thing} {name!r}{hint} known: {', '.join(choices) or 'none'}")


def check_choice(kind: str, value: Any, choices: Collection[str]) -> None:
    """Raises ValueError if a value is not among the known ones; `kind` names it in the message."""
    if value not in choices:
        raise unknown(kind, value, choices)


def progress_bar(total: int, description: str, *, progress: bool = True) -> tqdm:
    """A tqdm bar on stderr; a line every 30 seconds under `$DRSROBUST_BATCH` (set by `python -m reproduce`) or into a file."""
    interactive = "ipykernel" in sys.modules or sys.stderr.isatty()
    interval = 0.5 if interactive and not os.environ.get("DRSROBUST_BATCH") else 30
    return tqdm(total=total, desc=description, disable=not progress, mininterval=interval, file=sys.stderr, ncols=84)


def count_done(what: str, number: int = 1) -> None:
    """Adds to the finished `trials` (of these `stored`, by earlier runs) or trained `models` of a batch run, in the file
    `$DRSROBUST_PROGRESS`: a line per call, with its time."""
    if number and (path := os.environ.get("DRSROBUST_PROGRESS")):
        with open(path, "a") as handle:
            handle.write(f"{what} {number} {time.time():.2f}\n")


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Sets the number of threads of PyTorch, MKL and FBGEMM inside the block, independent of OMP_NUM_THREADS."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def process_context() -> multiprocessing.context.BaseContext:
    """How worker processes start. The first one starts a server, which imports the packages of this process (5 s); the server
    forks all of them (0.1 s each). They see the environment variables of that moment."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in _PRELOADED if name in sys.modules])
    return context


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """An executor of new processes, which end at an exception in the block or with this process, even if it is killed."""
    executor = ProcessPoolExecutor(workers, mp_context=process_context(), initializer=end_with_parent)
    try:
        yield executor
    except BaseException:
        for process in list((executor._processes or {}).values()):
            process.terminate()  # shutdown would wait for unfinished tasks
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def end_with_parent() -> None:
    """In a child process: ignores Ctrl-C, which the parent handles, and ends when the parent ends."""

    def wait_for_parent() -> None:
        multiprocessing.parent_process().join()
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait_for_parent, daemon=True).start()


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def versions() -> dict[str, str]:
    """Versions of Python and of `PACKAGES` (`absent` if not installed)."""
    return {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES}


@cache
def commit() -> str | None:
    """The commit of this package's checkout, with `-dirty` if files differ from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    """Its model, as Linux names it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def machine() -> dict[str, str | int | None]:
    """Operating system, architecture, processor, number of cores, and memory in GiB."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }
