"""CPU time and memory of one call; the time that a mitigation adds to inference, measured in turns."""

import ctypes
import gc
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch import nn

from drsrobust.extend import evaluating, threads
from drsrobust.introspection import named_modules
from drsrobust.mitigation import Mitigation

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch


def overhead(
    model: nn.Module,
    batches: Sequence["Batch"],
    mitigation: Mitigation,
    *,
    modules: Sequence[str] | None = None,
    turns: int = 15,
) -> dict[str, Any]:
    """CPU time of passes over some batches, one thread; each protected pass is between two plain ones, so that other load on
    the machine affects both alike.

    Args:
        model: any.
        batches: of one size; enough of them for a pass of some 50 ms.
        mitigation: attached for each protected pass; attaching is not timed.
        modules: names of modules that are called by themselves, with what the model gives them on these batches: the operators
            that are protected. None: the model.
        turns: protected passes.

    Returns:
        `scope` (`model` or `operator`), `batch` (rows of one), `plain_ms` and `protected_ms` (per batch, medians) and
        `overhead_percent` (the median of the turns' ratios, less 1).
    """
    calls = _calls(model, batches, modules)
    with threads(1), evaluating(model):

        def passed() -> float:
            return cpu_seconds(lambda: [call() for call in calls])[1]

        passed()
        plain, protected, ratios = [passed()], [], []
        for turn in range(turns + 1):
            with mitigation.attach(model):
                during = passed()
            plain.append(passed())
            if turn:  # the first turn includes initialisation
                protected.append(during)
                ratios.append(2 * during / (plain[-1] + plain[-2]))
    return {
        "scope": "model" if modules is None else "operator",
        "batch": len(batches[0].labels),
        "plain_ms": 1e3 * float(np.median(plain)) / len(batches),
        "protected_ms": 1e3 * float(np.median(protected)) / len(batches),
        "overhead_percent": 100 * (float(np.median(ratios)) - 1),
    }


def _calls(model: nn.Module, batches: Sequence["Batch"], modules: Sequence[str] | None) -> list[Callable[[], Any]]:
    """What a pass calls."""

    def whole(batch: "Batch") -> Callable[[], Any]:
        return lambda: model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)

    if modules is None:
        return [whole(batch) for batch in batches]
    by_name, calls, hooks = dict(named_modules(model)), [], []

    def note(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        calls.append(lambda: module(*args, **kwargs))

    try:
        for name in modules:
            hooks.append(by_name[name].register_forward_pre_hook(note, with_kwargs=True))
        with evaluating(model):
            for batch in batches:
                whole(batch)()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


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
