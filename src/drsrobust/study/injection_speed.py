"""The model that is measured: the study's DLRM shape in plain PyTorch, with any number of parameters.

One method on all models at all rates. `injection_speed` starts this in a process of its own for each method, so that none is
measured in the memory, or with the loggers and hooks, that another one left:

    python -m drsrobust.study.injection_speed '{"method": "drsrobust", "models": [[100000, "float32", [1e-6, 1e-3]]], ...}'

Prints one JSON line per row.

What one injection costs, by several methods side by side (experiment E9): CPU time and memory against the bit error rate
and against the size of the model."""

import gc
import json
import logging
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from drsrobust._environment import progress_bar, unknown
from drsrobust.injection.address_space import INTEGERS
from drsrobust.study.injectors import METHODS, OURS, DenseErrorMap, ElementLoop, Method, cannot
from drsrobust.timing import available_kib, cpu_seconds, data_kib, peak, resident

if TYPE_CHECKING:
    import pandas as pd

STUDY_SIZE = 16_462_609  # 1,000,000 rows of dim 16 in 26 tables, bottom MLP 13-512-256-16, top MLP 367-512-256-1
_DENSE, _TABLES, _DIM = 13, 26, 16
_LARGE = ((512, 256), (512, 256))  # hidden layers of the bottom and the top MLP
_SMALL = ((64,), (64, 32))  # where the large ones would be more than half of the parameters
_STD = 0.01  # of float values: none is near overflow


class StudyModel(nn.Module):
    """Bottom MLP on 13 dense values, 26 tables, all pairs of dot products, top MLP.

    Args:
        rows: of each table.
        bottom, top: widths of the hidden layers.
        spare: further parameters without a use, so that any number of parameters can be had exactly.
    """

    def __init__(self, rows: list[int], bottom: tuple[int, ...], top: tuple[int, ...], spare: int) -> None:
        super().__init__()
        pairs = (_TABLES + 1) * _TABLES // 2
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, _DIM, mode="sum") for n in rows)
        self.bottom = _mlp(_DENSE, *bottom, _DIM)
        self.top = _mlp(pairs + _DIM, *top, 1)
        self.spare = nn.Parameter(torch.zeros(spare)) if spare else None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Logits [B] of [B, 13 + 26] float32: dense values, then ids, of which any number will do (some tools that are
        measured feed random numbers to learn the shapes)."""
        ids = batch[:, _DENSE:].abs().long()
        dense = self.bottom(batch[:, :_DENSE])
        pooled = [table(ids[:, i : i + 1] % table.num_embeddings) for i, table in enumerate(self.tables)]
        vectors = torch.stack([dense, *pooled], 1)  # [B, 27, 16]
        one, other = torch.tril_indices(_TABLES + 1, _TABLES + 1, offset=-1)
        pairs = (vectors @ vectors.mT)[:, one, other]  # [B, 351]
        return self.top(torch.cat([dense, pairs], 1)).squeeze(1)


def study_model(parameters: int = STUDY_SIZE, dtype: str = "float32", *, seed: int = 0) -> StudyModel:
    """A model with exactly this number of parameters; their values are drawn.

    Args:
        parameters: at least 28,017. Tables are equally long; from 925,218 parameters on the MLPs are the study's.
        dtype: `float32`, or `int8` for memory that is only held: such a model has no forward.
        seed: of the values.
    """
    bottom, top = _LARGE if parameters >= 2 * _mlp_size(*_LARGE) else _SMALL
    left = parameters - _mlp_size(bottom, top)
    if left < _TABLES * _DIM:
        raise ValueError(f"parameters is {parameters}; a model of this shape has at least {28_017:,}")
    rows, spare = divmod(left, _DIM)
    each, more = divmod(rows, _TABLES)
    with torch.device("meta"):  # the values that PyTorch would draw at first are not wanted
        model = StudyModel([each + (i < more) for i in range(_TABLES)], bottom, top, spare)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        owner, _, attribute = name.rpartition(".")
        values = torch.empty(parameter.shape, dtype=getattr(torch, dtype))
        if values.is_floating_point():
            values.normal_(std=_STD, generator=generator)
        else:
            values.random_(-128, 128, generator=generator)
        setattr(model.get_submodule(owner), attribute, nn.Parameter(values, requires_grad=values.is_floating_point()))
    return model.eval()


def _mlp(*widths: int) -> nn.Sequential:
    layers = [nn.Linear(n, m) for n, m in zip(widths, widths[1:], strict=False)]
    between = [layer for pair in ((layer, nn.ReLU()) for layer in layers) for layer in pair]
    return nn.Sequential(*between[:-1])


def _mlp_size(bottom: tuple[int, ...], top: tuple[int, ...]) -> int:
    """How many weights and biases both MLPs have."""
    widths = ((_DENSE, *bottom, _DIM), ((_TABLES + 1) * _TABLES // 2 + _DIM, *top, 1))
    return sum((n + 1) * m for one in widths for n, m in zip(one, one[1:], strict=False))


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

COLUMNS = ("method", "parameters", "dtype", "rate", "errors", "cpu_ms", "undo_cpu_ms", "peak_mib", "note")

# What `make bench BENCH=injection` measures.
SIZES = (100_000, 1_000_000, 10_000_000, STUDY_SIZE, 100_000_000)
INT8_SIZES = (1_000_000_000,)
RATES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
COUNTS = (1_000, 100_000)
_BITS = {"float32": 32, "int8": 8}


def injection_speed(
    sizes: Sequence[int] = SIZES,
    int8_sizes: Sequence[int] = INT8_SIZES,
    rates: Sequence[float] = RATES,
    counts: Sequence[int] = COUNTS,
    methods: Sequence[str] | None = None,
    *,
    limit: float = 30.0,
    seed: int = 0,
    progress: bool = True,
) -> "pd.DataFrame":
    """Measures each method on each model, one thread, each method in a process of its own.

    Args:
        sizes: parameters of the float32 models.
        int8_sizes: parameters of the models whose parameters are plain int8.
        rates: bit error rates.
        counts: numbers of errors; for each model the rate that gives this many on average is measured too.
        methods: names; None: all. Tools that are not installed are "not run".
        limit: seconds that one injection may take (the loop: 5 at most); after one that took longer, higher rates are not run,
            on larger models this one neither, and no rate at all when it was the lowest.
        seed: of the models and of the errors.
        progress: a progress bar.

    Returns:
        one row per method, model and rate: `method`, `parameters`, `dtype`, `rate`, `errors` (flipped bits of the first
        injection, counted in memory), `cpu_ms` and `undo_cpu_ms` (median of 3 to 200 calls after a first one that is left out;
        of the first two where one takes over a second, the first alone where it is over the limit), `peak_mib` (the most
        memory beyond model and program during the first injection), `note` ("not run: ..." with the reason; the numbers are
        null then).

    Raises:
        ValueError: an unknown method, a rate out of range or a model that is too small.
        RuntimeError: a measuring process failed.
    """
    import pandas as pd

    pass  # not above: as a program of its own it must not be there already

    methods = list(METHODS) if methods is None else list(methods)
    for name in methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    for rate in rates:
        if not 0 < rate <= 1:
            raise ValueError(f"rate is {rate!r}; it must be a number over 0, up to 1")
    models = []
    for parameters, dtype in [*((n, "float32") for n in sizes), *((n, "int8") for n in int8_sizes)]:
        bits = parameters * _BITS[dtype]
        counted = {count / bits for count in counts if count <= bits // 8}
        models.append((parameters, dtype, sorted({*map(float, rates), *counted})))
    models.sort(key=lambda model: model[0] * _BITS[model[1]])
    rows = []
    with progress_bar(len(methods) * sum(len(every) for *_, every in models), "injection", progress=progress) as bar:
        for method in methods:
            spec = {"method": method, "models": models, "seed": seed, "limit": limit}
            nothing = all(cannot(method, dtype) for _, dtype, _ in models)  # to be measured: all rows say why
            for row in measure(**spec) if nothing else _in_a_process(spec):
                rows.append(row)
                bar.set_postfix_str(f"{method}, {row['parameters']:,}", refresh=False)
                bar.update()
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"errors": "Int64"})


def _in_a_process(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows that the worker prints, as they come. The process ends when the caller stops to ask."""
    command = [sys.executable, "-m", "drsrobust.study.injection_speed", json.dumps(spec)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            for line in process.stdout:
                yield json.loads(line)
            if status := process.wait():
                errors.seek(0)
                reason = errors.read().strip().rpartition("\n")[2] or f"it ended with status {status}"
                raise RuntimeError(f"measuring {spec['method']} failed: {reason}")
        finally:
            process.kill()


def ratios(table: "pd.DataFrame", parameters: int = STUDY_SIZE) -> "pd.DataFrame":
    """How many times the CPU time of ours, inject and undo together, the others' injection alone takes, by rate.

    Args:
        table: as `injection_speed` gives it.
        parameters: of the float32 model to compare on.

    Returns:
        by `rate`: `drsrobust_ms`, and for each other method that ran its `<method>_ms` and `<method>_ratio`; where both ran,
        `loop_over_dense`: how many times longer the loop takes than the dense error map (the study's claim).
    """
    import pandas as pd

    here = table[(table["parameters"] == parameters) & (table["dtype"] == "float32") & table["cpu_ms"].notna()]
    ours = here[here["method"] == OURS].set_index("rate")
    found = pd.DataFrame({f"{OURS}_ms": ours["cpu_ms"] + ours["undo_cpu_ms"]})
    for method in here.loc[here["method"] != OURS, "method"].unique():
        theirs = here[here["method"] == method].set_index("rate")["cpu_ms"]
        found[f"{method}_ms"], found[f"{method}_ratio"] = theirs, theirs / found[f"{OURS}_ms"]
    if {f"{DenseErrorMap.name}_ms", f"{ElementLoop.name}_ms"} <= set(found):
        found["loop_over_dense"] = found[f"{ElementLoop.name}_ms"] / found[f"{DenseErrorMap.name}_ms"]
    return found.sort_index()


def speed_claim(table: "pd.DataFrame", *, claimed: float = 100.0, factor: float = 3.0) -> "pd.DataFrame":
    """The verdict on claim C7: how many times longer the loop takes than the dense error map.

    Args:
        table: as `injection_speed` gives it.
        claimed: the study's number.
        factor: how far from it, up or down, still counts as its like.

    Returns:
        one row (none where the two never ran on the same): `value` (the median over float32 models and rates), `verdict`
        (`reproduced` where the ratio is like the claimed one on all, `partly` where its median is, else `not`), `detail` (the
        range).
    """
    import pandas as pd

    sizes = table.loc[table["dtype"] == "float32", "parameters"].unique()
    each = [ratios(table, size).reindex(columns=["loop_over_dense"])["loop_over_dense"] for size in sizes]
    found = pd.concat(each).dropna()
    if found.empty:
        return pd.DataFrame(columns=["value", "verdict", "detail"])
    like = found.between(claimed / factor, claimed * factor)
    middle = found.median()
    verdict = "reproduced" if like.all() else "partly" if claimed / factor <= middle <= claimed * factor else "not"
    detail = f"{found.min():.3g} to {found.max():.3g} times" if len(found) > 1 else f"{middle:.3g} times"
    return pd.DataFrame([{"value": middle, "verdict": verdict, "detail": f"{detail}, by our own two of the kind"}])


def growth(table: "pd.DataFrame", counts: Sequence[int] = COUNTS, smallest: int = 1_000_000) -> "pd.DataFrame":
    """How ours, inject and undo together, grows with the model at an equal number of errors.

    Args:
        table: as `injection_speed` gives it.
        counts: expected numbers of errors.
        smallest: parameters of the model to start from; the largest measured one is the other end.

    Returns:
        by expected number of errors: `from_parameters`, `from_ms`, `to_parameters`, `to_ms`, `ratio`.
    """
    import pandas as pd

    ours = table[(table["method"] == OURS) & table["cpu_ms"].notna() & (table["parameters"] >= smallest)]
    expected = ours["rate"] * ours["parameters"] * ours["dtype"].map(_BITS)
    rows = []
    for count in counts:
        here = ours[(expected / count - 1).abs() < 1e-3].sort_values("parameters")
        if len(here) < 2:
            continue
        time = here["cpu_ms"] + here["undo_cpu_ms"]
        ends = {"from_parameters": here["parameters"].iloc[0], "from_ms": time.iloc[0]}
        ends |= {"to_parameters": here["parameters"].iloc[-1], "to_ms": time.iloc[-1]}
        rows.append({"errors": count, **ends, "ratio": time.iloc[-1] / time.iloc[0]})
    columns = ["errors", "from_parameters", "from_ms", "to_parameters", "to_ms", "ratio"]
    return pd.DataFrame(rows, columns=columns).set_index("errors")
