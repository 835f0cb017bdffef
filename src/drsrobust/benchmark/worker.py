"""One method on one model, at several rates. `injection_speed` starts this in a process of its own for each, so that no
method is measured in the memory, or with the loggers and hooks, that another one left:

    python -m drsrobust.benchmark.worker '{"method": "drsrobust", "parameters": 100000, "dtype": "float32", ...}'

Prints one JSON line per rate, and at the end one with the reason for which larger models need not be tried, or null.
"""

import gc
import json
import resource
import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.benchmark.measure import available_kib, cpu_seconds, data_kib, peak, resident
from drsrobust.benchmark.methods import METHODS, OURS, Method
from drsrobust.benchmark.models import study_model

_SLOW = 1.0  # seconds; a call that takes longer is measured twice, the first time included
_LEAST, _MOST, _LONG = 3, 30, 1.0  # of the others: calls, and seconds after which three are enough
_WORDS = {1: torch.uint8, 4: torch.int32}
_TINY = 30_000  # parameters of the model on which a method is tried first


def measure(
    method: str, parameters: int, dtype: str, rates: Sequence[float], *, seed: int, limit: float
) -> Iterator[dict[str, Any]]:
    """One row per rate, ascending; then {"stopped": why larger models need not be tried, or None}.

    Args:
        method: a name in `METHODS`.
        parameters, dtype: of the model, as in `study_model`.
        rates: bit error rates over 0.
        seed: of the model and of the first injection.
        limit: seconds; after an injection that took longer the higher rates are not run. A method's own limit may be shorter.
    """
    kind = METHODS[method]
    frame = {"method": method, "parameters": parameters, "dtype": dtype}
    limit, stopped = min(limit, kind.limit), cannot(kind, dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        bench = None if stopped else _Bench(kind, parameters, dtype, seed)
        for rate in sorted(rates):
            row = {**frame, "rate": rate, "errors": None, "cpu_ms": None, "undo_cpu_ms": None, "peak_mib": None}
            if stopped:
                yield {**row, "note": f"not run: {stopped}"}
                continue
            try:
                found = bench.point(rate, seed, limit)
            except Exception as error:
                if "allocate" in str(error) or isinstance(error, MemoryError):
                    stopped = f"not enough memory at {parameters:,} parameters and rate {rate:.2g}"
                elif kind.needs is None:
                    raise
                yield {**row, "note": f"not run: {stopped or f'{type(error).__name__}: {error}'}"}
                continue
            slowest = found["cpu_ms"] / 1e3
            if slowest > limit:
                stopped = f"an injection took {slowest:.0f} s at {parameters:,} parameters, limit {limit:g} s"
            yield {**row, "note": kind.about, **found}
    finally:
        torch.set_num_threads(threads)
    yield {"stopped": stopped}


def cannot(method: type[Method], dtype: str) -> str | None:
    """Why a method cannot hit this dtype on this machine; None when it can."""
    if method.needs and find_spec(method.needs) is None:
        return "not installed (pip install 'drsrobust[benchmark]')"
    if method.dtypes and dtype not in method.dtypes:
        return f"hits {' and '.join(method.dtypes)} only"
    return None


class _Bench:
    """A method, a model and a copy of it without errors."""

    def __init__(self, kind: type[Method], parameters: int, dtype: str, seed: int) -> None:
        self._model = study_model(parameters, dtype, seed=seed)
        self._golden = [parameter.detach().clone() for parameter in self._model.parameters()]
        # What is loaded at a first call, and kept for ever, is not what an injection takes.
        tiny = kind(study_model(_TINY, dtype, seed=seed))
        tiny.inject(1e-3, seed)
        if tiny.undo:
            tiny.undo()
        del tiny
        # From here on, so that copies which a method keeps are counted too.
        self._before = resident()
        self._method = kind(self._model)

    def point(self, rate: float, seed: int, limit: float) -> dict[str, Any]:
        """What is measured at one rate. The first call gives memory and errors; it is timed only when it is slow: it takes its
        memory from the system anew, the others as in a campaign from what the one before freed."""
        (faulted, first), high = peak(partial(cpu_seconds, partial(self._method.inject, rate, seed)))
        errors = flipped_bits(faulted, self._golden)
        del faulted
        undone = self._undo()
        if left := flipped_bits(self._model, self._golden):
            raise AssertionError(f"{self._method.name} at rate {rate}: {left} wrong bits are left after undo")
        slow = first > min(_SLOW, limit)
        injections, undoings = ([first], [undone]) if slow else ([], [])
        least = 2 if slow else _LEAST
        while first <= limit and len(injections) < _MOST and (len(injections) < least or sum(injections) < _LONG):
            _, time = cpu_seconds(partial(self._method.inject, rate, seed + 1 + len(injections)))
            injections.append(time)
            undoings.append(self._undo())
        extra = None if high is None else max(0, high - self._before) / 1024
        return {
            "errors": errors,
            "cpu_ms": 1e3 * statistics.median(injections),
            "undo_cpu_ms": None if undone is None else 1e3 * statistics.median(undoings),
            "peak_mib": extra,
        }

    def _undo(self) -> float | None:
        """Makes the model as it was; seconds of CPU time where the method has a way to do so."""
        if self._method.undo:
            return cpu_seconds(self._method.undo)[1]
        with torch.no_grad():
            for parameter, golden in zip(self._model.parameters(), self._golden, strict=True):
                parameter.copy_(golden)
        return None


def flipped_bits(model: nn.Module, golden: list[torch.Tensor]) -> int:
    """In how many bits the parameters of a model differ from these."""
    count = 0
    for parameter, original in zip(model.parameters(), golden, strict=True):
        dtype = _WORDS[original.element_size()]
        differ = parameter.detach().view(-1).view(dtype) ^ original.view(-1).view(dtype)
        count += int(np.bitwise_count(differ[differ != 0].numpy().view(f"u{original.element_size()}")).sum())
    return count


def main() -> None:
    """Runs what the first argument says, with an end in view: asking for more memory than there is fails instead of
    bringing the machine to a halt."""
    gc.freeze()  # what was imported; so a collection takes no time
    for spec in sys.argv[1:]:
        given = json.loads(spec)
        most = (data_kib() + available_kib() * 9 // 10) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        for row in measure(**given):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
