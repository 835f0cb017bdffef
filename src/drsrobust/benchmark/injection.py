"""What one injection costs, by several methods side by side (experiment E9): CPU time and memory against the bit error rate
and against the size of the model."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from drsrobust._names import unknown
from drsrobust._progress import progress
from drsrobust._versions import machine, versions
from drsrobust.benchmark.dense import DenseErrorMap
from drsrobust.benchmark.loop import ElementLoop
from drsrobust.benchmark.methods import METHODS, OURS, cannot
from drsrobust.benchmark.models import STUDY_SIZE

if TYPE_CHECKING:
    import pandas as pd

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
    show: bool = True,
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
        show: a progress bar.

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

    from drsrobust.benchmark.worker import measure  # not above: as a program of its own it must not be there already

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
    with progress(len(methods) * sum(len(every) for *_, every in models), "injection", show=show) as bar:
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
    command = [sys.executable, "-m", "drsrobust.benchmark.worker", json.dumps(spec)]
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


def caption(table: "pd.DataFrame", quantity: str = "cpu_ms") -> str:
    """What a reader must know of a figure made of this table: what was measured, how, and what was not run.

    Args:
        table: as `injection_speed` gives it.
        quantity: `cpu_ms` or `peak_mib`.

    Raises:
        ValueError: another quantity.
    """
    measured = {
        "cpu_ms": "CPU time of one injection on one thread, median of 3 to 200 calls (2 where one takes over a second); of "
        "drsrobust with its undo, which the others do not have",
        "peak_mib": "the most memory beyond model and program during the first injection, one thread; some 2 MiB are what the "
        "process takes by itself, now and then",
    }
    if quantity not in measured:
        raise unknown("quantity", quantity, measured)
    text = (
        f"Timed, so not equal from run to run: {measured[quantity]}. A model of the study's shape (26 tables of dimension 16, "
        "two MLPs); errors in all parameters. "
    )
    told = table[table["note"].notna() & (table["note"] != "")].drop_duplicates(["method", "note"])
    # Other sizes of a method are not run for the reason that stopped it first: one of them is enough.
    missing = told[told["note"].str.startswith("not run")].drop_duplicates("method")
    about = told[~told["note"].str.startswith(("not run", "no undo"))]
    for rows in (about, missing):
        text += "".join(f"{row.method}: {row.note}. " for row in rows.itertuples())
    return f"{text}{machine()['architecture']}, torch {versions()['torch']}."
