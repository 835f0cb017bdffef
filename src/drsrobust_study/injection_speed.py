"""CPU time and memory of one injection by several methods, and the benchmark of published tools by which S19 is judged.

Each method is measured in a process of its own, free of the memory, loggers and hooks of others.
"""

import gc
import math
import resource
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from drsrobust.extend import process_context, progress_bar, unknown
from drsrobust.injection import INTEGER_OF_BYTES
from drsrobust_extras.risk.timing import available_kib, cpu_seconds, data_kib, peak, resident
from drsrobust_study.injectors import METHODS, OURS, Method, cannot
from drsrobust_study.statements import values

COLUMNS = ("method", "parameters", "dtype", "rate", "errors", "cpu_ms", "undo_cpu_ms", "peak_mib", "note")
PEERS, STUDY_TOOL = Path(__file__).parents[2] / "reproduce" / "peers.csv", "PyTEI"
STUDY_SIZE = 16_462_609  # 1,000,000 rows of dim 16 in 26 tables, bottom MLP 13-512-256-16, top MLP 367-512-256-1
# What `make bench BENCH=injection` measures.
SIZES = (100_000, 1_000_000, 10_000_000, STUDY_SIZE, 100_000_000)
INT8_SIZES = (1_000_000_000,)
RATES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
COUNTS = (1_000, 100_000)
BITS = {"float32": 32, "int8": 8}
_DENSE, _TABLES, _DIM = 13, 26, 16
_LARGE = ((512, 256), (512, 256))  # hidden layers of the bottom and the top MLP
_SMALL = ((64,), (64, 32))  # where the large ones would be more than half of the parameters
_STD = 0.01  # of float values: none is near overflow
_SLOW = 1.0  # seconds; a call that takes longer is measured twice, the first time included
_LEAST, _MOST, _LONG = 3, 200, 0.5  # of other calls: least and most, and seconds after which the least is enough
_TINY = 30_000  # parameters of the model for a first call


def injection_speed(
    sizes: Sequence[int] = SIZES,
    int8_sizes: Sequence[int] = INT8_SIZES,
    rates: Sequence[float] = RATES,
    counts: Sequence[int] = COUNTS,
    methods: Sequence[str] | None = None,
    *,
    limit: float = 30.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Measures each method on each model, on one thread.

    Args:
        sizes: parameters of the float32 models.
        int8_sizes: parameters of the models whose parameters are plain int8.
        rates: bit error rates.
        counts: numbers of errors; for each model the rate that gives this many on average is measured too.
        methods: names; None: all.
        limit: seconds that one injection may take; after one that took longer, higher rates are not run,
            on larger models this one neither, and no rate at all when it was the lowest.
        seed: of the models and of the errors.

    Returns:
        one row per method, model and rate: `method`, `parameters`, `dtype`, `rate`, `errors` (flipped bits of the first
        injection, counted in memory), `cpu_ms` and `undo_cpu_ms` (median of 3 to 200 calls after a first one; of the first two
        where one takes over a second, the first alone where it is over the limit), `peak_mib` (the most memory beyond model and
        program during the first injection), `note` ("not run: ..." with the reason; the numbers are null then).

    Raises:
        ValueError: an unknown method, a rate out of range or a model that is too small.
        RuntimeError: a measuring process failed.
    """
    methods = list(METHODS) if methods is None else list(methods)
    for name in methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    for rate in rates:
        if not 0 < rate <= 1:
            raise ValueError(f"rate must be over 0 and at most 1, got {rate!r}")
    models = []
    for parameters, dtype in [*((n, "float32") for n in sizes), *((n, "int8") for n in int8_sizes)]:
        bits = parameters * BITS[dtype]
        by_count = {count / bits for count in counts if count <= bits // 8}
        models.append((parameters, dtype, sorted({*map(float, rates), *by_count})))
    models.sort(key=lambda model: model[0] * BITS[model[1]])
    rows = []
    with progress_bar(len(methods) * sum(len(every) for *_, every in models), "injection") as bar:
        for method in methods:
            spec = {"method": method, "models": models, "seed": seed, "limit": limit}
            not_run = all(cannot(method, dtype) for _, dtype, _ in models)
            for row in measure(**spec) if not_run else _in_a_process(spec):
                rows.append(row)
                bar.set_postfix_str(f"{method}, {row['parameters']:,}", refresh=False)
                bar.update()
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"errors": "Int64"})


def _in_a_process(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows that a process of its own measures, as they come. It ends when the caller stops iterating.

    Raises:
        RuntimeError: the process failed or was killed.
    """
    context = process_context()
    rows, sent = context.Pipe(duplex=False)
    process = context.Process(target=_send_rows, args=(sent, spec), daemon=True)
    process.start()
    sent.close()
    try:
        while (row := rows.recv()) is not None:
            if isinstance(row, str):
                raise RuntimeError(f"measuring {spec['method']} failed: {row}")
            yield row
    except EOFError:
        process.join()
        ended = f"it ended with status {process.exitcode}"
        raise RuntimeError(f"measuring {spec['method']} failed: {ended}") from None
    finally:
        process.kill()
        process.join()


def _send_rows(connection: Connection, spec: dict[str, Any]) -> None:
    """In the process: sends its rows and None, or the error in one line. Its memory has a limit, so that an allocation fails
    rather than the machine."""
    gc.freeze()  # imported objects, so that a collection takes no time
    most = (data_kib() + available_kib() * 9 // 10) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        for row in measure(**spec):
            connection.send(row)
        connection.send(None)
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}".splitlines()[0])


def measure(
    method: str, models: Sequence[tuple[int, str, Sequence[float]]], *, seed: int, limit: float
) -> Iterator[dict[str, Any]]:
    """One row per model and rate.

    Args:
        method: a name in `METHODS`.
        models: number of parameters, dtype (as in `study_model`) and bit error rates over 0 of each, the smallest model first.
        seed: of the models and of the first injection.
        limit: seconds; after an injection that took longer, higher rates are not run, on larger models this one neither, and
            no rate at all when it was the lowest.
    """
    kind = METHODS[method]
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
                bench = bench or _Bench(kind, parameters, dtype, seed)
                point = bench.point(rate, seed, limit)
                if (seconds := point["cpu_ms"] / 1e3) > limit:
                    took = f"one injection took {seconds:.2g} s at {parameters:,} parameters, rate {rate:.2g}"
                    why = f"{took}; limit {limit:g} s"
                    highest = rate if rate > min(rates) else 0.0  # at the lowest rate the cost is of another kind
                yield row | point | {"note": kind.about}
    finally:
        torch.set_num_threads(threads)


def _not_run(why: str) -> dict[str, Any]:
    return dict.fromkeys(("errors", "cpu_ms", "undo_cpu_ms", "peak_mib")) | {"note": f"not run: {why}"}


class _Bench:
    """A method, a model and a copy of its parameters without errors."""

    def __init__(self, kind: type[Method], parameters: int, dtype: str, seed: int) -> None:
        self._model = study_model(parameters, dtype, seed=seed)
        self._golden = [parameter.detach().clone() for parameter in self._model.parameters()]
        # A first call loads code that stays in memory; it must not count for the injection.
        tiny = kind(study_model(_TINY, dtype, seed=seed))
        tiny.inject(1e-3, seed)
        if tiny.undo:
            tiny.undo()
        del tiny
        # Before the method is made, so that copies which it keeps count.
        self._before = resident()
        self._method = kind(self._model)

    def point(self, rate: float, seed: int, limit: float) -> dict[str, Any]:
        """The measured columns at one rate. The first call gives memory and errors; it is timed only if it is slow, because it
        takes its memory from the system, and later calls, as in a campaign, memory that was freed."""
        (faulted, first), high = peak(partial(cpu_seconds, partial(self._method.inject, rate, seed)))
        errors = flipped_bits(faulted, self._golden)
        del faulted
        undone = self._undo()
        if n_flipped := flipped_bits(self._model, self._golden):
            raise AssertionError(f"{self._method.name} at rate {rate}: {n_flipped} wrong bits after undo")
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
        """Restores the model; seconds of CPU time if the method has an undo of its own."""
        if self._method.undo:
            return cpu_seconds(self._method.undo)[1]
        with torch.no_grad():
            for parameter, golden in zip(self._model.parameters(), self._golden, strict=True):
                parameter.copy_(golden)
        return None


def flipped_bits(model: nn.Module, golden: list[torch.Tensor]) -> int:
    """The number of bits in which the parameters of a model differ from these."""
    count = 0
    for parameter, original in zip(model.parameters(), golden, strict=True):
        dtype = INTEGER_OF_BYTES[original.element_size()]
        differ = parameter.detach().view(-1).view(dtype) ^ original.view(-1).view(dtype)
        count += int(np.bitwise_count(differ[differ != 0].numpy().view(f"u{original.element_size()}")).sum())
    return count


class StudyModel(nn.Module):
    """Bottom MLP on 13 dense values, 26 tables, all pairs of dot products, top MLP.

    Args:
        rows: of each table.
        bottom, top: widths of the hidden layers.
        spare: unused parameters, so that the model has exactly the number asked for.
    """

    def __init__(self, rows: list[int], bottom: tuple[int, ...], top: tuple[int, ...], spare: int) -> None:
        super().__init__()
        pairs = (_TABLES + 1) * _TABLES // 2
        tables = (torch.empty(n, _DIM) for n in rows)  # drawing values on the meta device would import torch._dynamo
        self.tables = nn.ModuleList(nn.EmbeddingBag(len(t), _DIM, mode="sum", _weight=t) for t in tables)
        self.bottom = _mlp(_DENSE, *bottom, _DIM)
        self.top = _mlp(pairs + _DIM, *top, 1)
        self.spare = nn.Parameter(torch.zeros(spare)) if spare else None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Logits [B] of [B, 13 + 26] float32: dense values, then ids. Any number is an id: some tools feed random ones."""
        ids = batch[:, _DENSE:].abs().long()
        dense = self.bottom(batch[:, :_DENSE])
        pooled = [table(ids[:, i : i + 1] % table.num_embeddings) for i, table in enumerate(self.tables)]
        vectors = torch.stack([dense, *pooled], 1)  # [B, 27, 16]
        row, other = torch.tril_indices(_TABLES + 1, _TABLES + 1, offset=-1)
        pairs = (vectors @ vectors.mT)[:, row, other]  # [B, 351]
        return self.top(torch.cat([dense, pairs], 1)).squeeze(1)


def study_model(parameters: int = STUDY_SIZE, dtype: str = "float32", *, seed: int = 0) -> StudyModel:
    """A model with exactly this number of parameters, with random values.

    Args:
        parameters: at least 28,017. Tables are equally long; from 925,218 parameters on the MLPs are the study's.
        dtype: `float32`, or `int8`; an int8 model has no forward.
        seed: of the values.
    """
    bottom, top = _LARGE if parameters >= 2 * _mlp_size(*_LARGE) else _SMALL
    remaining = parameters - _mlp_size(bottom, top)
    if remaining < _TABLES * _DIM:
        raise ValueError(f"parameters must be at least 28,017 for a model of this shape, got {parameters}")
    rows, spare = divmod(remaining, _DIM)
    rows_each, extra = divmod(rows, _TABLES)
    with torch.device("meta"):  # without the first values that PyTorch would draw
        model = StudyModel([rows_each + (i < extra) for i in range(_TABLES)], bottom, top, spare)
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
    widths = ((_DENSE, *bottom, _DIM), ((_TABLES + 1) * _TABLES // 2 + _DIM, *top, 1))
    return sum((n + 1) * m for widths_of in widths for n, m in zip(widths_of, widths_of[1:], strict=False))


def ratios(table: pd.DataFrame, parameters: int = STUDY_SIZE) -> pd.DataFrame:
    """CPU time of the other methods' injection over that of drsrobust, inject and undo together, by rate.

    Args:
        table: as `injection_speed` returns it.
        parameters: of the float32 model to compare on.

    Returns:
        by `rate`: `drsrobust_ms`, and for each other method that ran its `<method>_ms` and `<method>_ratio`.
    """
    measured = table[(table["parameters"] == parameters) & (table["dtype"] == "float32") & table["cpu_ms"].notna()]
    by_method = {name: rows.set_index("rate") for name, rows in measured.groupby("method", sort=False)}
    ours = by_method.pop(OURS, measured[:0].set_index("rate"))
    times = pd.DataFrame({f"{OURS}_ms": ours["cpu_ms"] + ours["undo_cpu_ms"]})
    for method, rows in by_method.items():
        times[f"{method}_ms"], times[f"{method}_ratio"] = rows["cpu_ms"], rows["cpu_ms"] / times[f"{OURS}_ms"]
    return times.sort_index()


def peers() -> pd.DataFrame:
    """The committed run of `make bench BENCH=peers`, a row per published tool and call; `benchmarks.peers` has the columns."""
    whole = {"version": str, "repetition": "Int64", "errors": "Int64"}
    return pd.read_csv(PEERS, dtype=whole).fillna({"version": "", "note": ""})


def statement_values(table: pd.DataFrame) -> pd.DataFrame:
    """What S19 is judged by: how many times as long as the study's tool each published tool takes, a row per call.

    Args:
        table: as `peers` returns it.
    """
    others = table[table["factor"].notna() & ~table["tool"].isin([OURS, STUDY_TOOL])]
    named = others.assign(part=others["tool"], item=others["tool"], unit=others["repetition"], value=others["factor"])
    return values(named.assign(statement="S19", dataset="", what="factor").to_dict("records"))
