"""One method on all models at all rates. `injection_speed` starts this in a process of its own for each method, so that none is
measured in the memory, or with the loggers and hooks, that another one left:

    python -m drsrobust.benchmark.worker '{"method": "drsrobust", "models": [[100000, "float32", [1e-6, 1e-3]]], ...}'

Prints one JSON line per row.
"""

import gc
import json
import logging
import math
import resource
import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.benchmark.measure import available_kib, cpu_seconds, data_kib, peak, resident
from drsrobust.benchmark.methods import METHODS, Method, cannot
from drsrobust.benchmark.models import study_model
from drsrobust.injection.words import INTEGERS

_SLOW = 1.0  # seconds; a call that takes longer is measured twice, the first time included
_LEAST, _MOST, _LONG = 3, 200, 0.5  # of the others: calls, and seconds after which three are enough
_TINY = 30_000  # parameters of the model on which a method is tried first


def measure(
    method: str, models: Sequence[tuple[int, str, Sequence[float]]], *, seed: int, limit: float
) -> Iterator[dict[str, Any]]:
    """One row per model and rate.

    Args:
        method: a name in `METHODS`.
        models: number of parameters, dtype (as in `study_model`) and bit error rates over 0 of each, the smallest model first.
        seed: of the models and of the first injection.
        limit: seconds; after an injection that took longer, higher rates are not run, on larger models this one neither, and
            no rate at all when it was the lowest. A method's own limit may be shorter.
    """
    kind = METHODS[method]
    limit = min(limit, kind.limit)
    highest, why = math.inf, ""  # from which rate on nothing is run any more
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for parameters, dtype, rates in models:
            unable = cannot(method, dtype)
            bench = None  # the model before is gone when this one's memory is looked at
            for rate in sorted(rates):
                row = {"method": method, "parameters": parameters, "dtype": dtype, "rate": rate}
                if unable or rate >= highest:
                    yield row | _not_run(unable or why)
                    continue
                from_here = (
                    rate if rate > min(rates) else 0.0
                )  # who fails at the lowest rate has a cost of another kind
                try:
                    bench = bench or _Bench(kind, parameters, dtype, seed)
                    found = bench.point(rate, seed, limit)
                except Exception as error:
                    short = isinstance(error, MemoryError) or "allocate" in str(error)  # PyTorch has no class for it
                    if not short and not kind.needs:
                        raise
                    if bench:
                        bench.restore()
                    if short:
                        highest, why = from_here, f"too little memory at {parameters:,} parameters, rate {rate:.2g}"
                    yield row | _not_run(why if short else f"{type(error).__name__}: {error}")
                    continue
                if (seconds := found["cpu_ms"] / 1e3) > limit:
                    took = f"one injection took {seconds:.2g} s at {parameters:,} parameters, rate {rate:.2g}"
                    highest, why = from_here, f"{took}; limit {limit:g} s"
                yield row | found | {"note": kind.about}
    finally:
        torch.set_num_threads(threads)


def _not_run(why: str) -> dict[str, Any]:
    """The measured part of a row without numbers."""
    return dict.fromkeys(("errors", "cpu_ms", "undo_cpu_ms", "peak_mib")) | {"note": f"not run: {why}"}


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

    def restore(self) -> None:
        """Makes the model as it was, whatever happened to it."""
        with torch.no_grad():
            for parameter, golden in zip(self._model.parameters(), self._golden, strict=True):
                parameter.copy_(golden)

    def _undo(self) -> float | None:
        """Makes the model as it was; seconds of CPU time where the method has a way to do so."""
        if self._method.undo:
            return cpu_seconds(self._method.undo)[1]
        self.restore()
        return None


def flipped_bits(model: nn.Module, golden: list[torch.Tensor]) -> int:
    """In how many bits the parameters of a model differ from these."""
    count = 0
    for parameter, original in zip(model.parameters(), golden, strict=True):
        dtype = INTEGERS[original.element_size()]
        differ = parameter.detach().view(-1).view(dtype) ^ original.view(-1).view(dtype)
        count += int(np.bitwise_count(differ[differ != 0].numpy().view(f"u{original.element_size()}")).sum())
    return count


def main() -> None:
    """Runs what the first argument says, with an end in view: asking for more memory than there is fails instead of
    bringing the machine to a halt."""
    gc.freeze()  # what was imported; so a collection takes no time
    logging.disable(logging.WARNING)  # one published tool warns at each layer: that is not what is timed
    for spec in sys.argv[1:]:
        given = json.loads(spec)
        most = (data_kib() + available_kib() * 9 // 10) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        for row in measure(**given):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
