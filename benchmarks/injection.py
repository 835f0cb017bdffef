"""One injection by this package and by other methods: CPU time and memory. (Published tools: `benchmarks.peers`.)

`drsrobust_study.injection_speed` measures; here are the targets and the table as text.
"""

from collections.abc import Iterator, Sequence

import pandas as pd

from benchmarks.common import OURS, Result, Verdict, about, at_least, at_most, text, verdict_text
from drsrobust_study.injection_speed import BITS, COUNTS, RATES, STUDY_SIZE, injection_speed, ratios

# CPU time of one injection by the study's own tool, at any rate, with a model of the same size: one thread of another machine
# (AMD EPYC, Zen 3; torch 2.13).
PUBLISHED_MS = 25_500
SPEED = {1e-6: 10_000, 1e-4: 4_000, 1e-3: 600}  # rate -> times the published tool, at least
MEMORY = {1e-4: 10, 1e-3: 60}  # rate -> MiB, at most
GROWTH = 3  # from 1e6 to 1e9 parameters at an equal number of errors, at most


def run() -> Result:
    """The benchmark `injection`."""
    table = injection_speed()
    return Result({"injection": table}, describe(table))


def verdicts(table: pd.DataFrame) -> Iterator[Verdict]:
    """The verdict on each target, on the model of the study's size.

    Args:
        table: as `injection_speed` returns it.
    """
    ours = table[(table["method"] == OURS) & (table["parameters"] == STUDY_SIZE)].set_index("rate")
    for rate in ours.index.intersection(list(SPEED)):
        took = ours.loc[rate, ["cpu_ms", "undo_cpu_ms"]].sum()
        yield at_least(f"{rate:g}: times the published tool", PUBLISHED_MS / took, SPEED[rate], note=f"{took:.3g} ms")
    for rate, limit in MEMORY.items():
        if rate in ours.index:
            yield at_most(f"up to {rate:g}: memory", ours.loc[ours.index <= rate, "peak_mib"].max(), limit, " MiB")
    for errors, row in growth(table).iterrows():
        models = f"{row['from_parameters']:,.0f} to {row['to_parameters']:,.0f} parameters"
        yield at_most(f"{errors:,} errors: growth of time", row["ratio"], GROWTH, note=models)


def describe(table: pd.DataFrame) -> str:
    """Times, memory, ratios, growth, targets, and what was not run, as text.

    Args:
        table: as `injection_speed` returns it.
    """
    by_rate = table[table["rate"].isin(RATES)]
    parts = [about("CPU time on one thread")]
    for title, column in (
        ("CPU time of one injection (ms)", "cpu_ms"),
        ("CPU time of its undo (ms)", "undo_cpu_ms"),
        ("Extra memory of one injection (MiB)", "peak_mib"),
    ):
        measured = by_rate.dropna(subset=[column])
        index = ["method", "dtype", "parameters"]
        wide = measured.pivot_table(index=index, columns="rate", values=column, sort=False).sort_index(axis=1)
        parts.append(f"{title}\n{text(wide.rename(columns='{:g}'.format))}")
    compared = ratios(table).rename(index="{:.3g}".format)
    compared["published_ratio"] = PUBLISHED_MS / compared[f"{OURS}_ms"]
    parts.append(
        f"{STUDY_SIZE:,} float32 parameters: injection by the others over {OURS}'s injection and undo; published_ratio: the "
        f"{PUBLISHED_MS / 1e3:g} s of the study's own tool on another machine\n{text(compared)}"
    )
    parts.append(f"{OURS}, injection and undo, at an equal number of errors\n{text(growth(table))}")
    parts.append(verdict_text(verdicts(table)))
    missing = table[table["note"].str.startswith("not run", na=False)]
    counts = missing.groupby(["method", "note"], sort=False).size()
    lines = [f"  {method}: {note.removeprefix('not run: ')} ({n} rows)" for (method, note), n in counts.items()]
    return "\n\n".join(parts + (["\n".join(["Not run", *lines])] if lines else []))


def growth(table: pd.DataFrame, counts: Sequence[int] = COUNTS, smallest: int = 1_000_000) -> pd.DataFrame:
    """Time of drsrobust, inject and undo together, against the size of the model at an equal number of errors.

    Args:
        table: as `injection_speed` gives it.
        counts: expected numbers of errors.
        smallest: parameters of the smallest model; the largest measured one is the other end.

    Returns:
        by expected number of errors: `from_parameters`, `from_ms`, `to_parameters`, `to_ms`, `ratio`.
    """
    ours = table[(table["method"] == OURS) & table["cpu_ms"].notna() & (table["parameters"] >= smallest)]
    expected = ours["rate"] * ours["parameters"] * ours["dtype"].map(BITS)
    rows = []
    for count in counts:
        points = ours[(expected / count - 1).abs() < 1e-3].sort_values("parameters")
        if len(points) < 2:
            continue
        time = points["cpu_ms"] + points["undo_cpu_ms"]
        ends = {"from_parameters": points["parameters"].iloc[0], "from_ms": time.iloc[0]}
        ends |= {"to_parameters": points["parameters"].iloc[-1], "to_ms": time.iloc[-1]}
        rows.append({"errors": count, **ends, "ratio": time.iloc[-1] / time.iloc[0]})
    columns = ["errors", "from_parameters", "from_ms", "to_parameters", "to_ms", "ratio"]
    return pd.DataFrame(rows, columns=columns).set_index("errors")
