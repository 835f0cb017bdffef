"""CPU time and memory of one call, in this process."""

import ctypes
import gc
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def cpu_seconds(call: Callable[[], Result]) -> tuple[Result, float]:
    """What a call gives, and the CPU time it took, of all threads of this process: other programs do not disturb it much."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def resident() -> int:
    """Memory of this process that lies in RAM now, in KiB, after what was freed went back to the system: glibc keeps freed
    blocks, and memory that a call takes from them would look like none."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return _status("VmRSS")


def peak(call: Callable[[], Result]) -> tuple[Result, int | None]:
    """What a call gives, and the most memory that lay in RAM meanwhile, in KiB.

    The kernel keeps that high-water mark of a process (`VmHWM`); writing 5 to `clear_refs` sets it back to what is used now
    (proc(5)). None where the system does not allow that.
    """
    resident()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return call(), None
    result = call()
    return result, _status("VmHWM")


def data_kib() -> int:
    """Private memory that this process has reserved, in KiB: what RLIMIT_DATA limits."""
    return _status("VmData")


def available_kib() -> int:
    """Memory of the machine that new work can have, in KiB."""
    return int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1])


def _status(field: str) -> int:
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])
