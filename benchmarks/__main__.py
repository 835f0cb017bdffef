"""Command line of the benchmarks: `python -m drsrobust.benchmark injection`, or `make bench BENCH=injection`; `criteo`,
`training`, `quality`, `campaign` and `mitigation` too."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from drsrobust._environment import machine, unknown, versions
from drsrobust._files import new_file

if TYPE_CHECKING:
    import pandas as pd

# Of the study's own tool on a model of the same size, one thread, on another machine (AMD EPYC, Zen 3; torch 2.13): the CPU
# time of one injection, whatever the rate.
_PUBLISHED_MS = 25_500


def main(arguments: list[str] | None = None) -> int:
    """Runs a benchmark, writes `<out>/<name>.csv` and prints what is in it.

    Returns:
        exit status: 0, 2 for a wrong call, 130 when interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m drsrobust.benchmark", description="Measures time and memory.")
    parser.add_argument("name", help=f"what to measure: {', '.join(_BENCHMARKS)}")
    parser.add_argument("--out", metavar="DIR", default="build/bench", help="where the CSV goes (default: build/bench)")
    options = parser.parse_args(arguments)
    try:
        if options.name not in _BENCHMARKS:
            raise unknown("benchmark", options.name, _BENCHMARKS)
        table, text, *more = _BENCHMARKS[options.name]()
    except (ValueError, FileNotFoundError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nbench: stopped; nothing was written", file=sys.stderr)
        return 130
    print(f"{text}\n")
    tables = {options.name: table, **(more[0] if more else {})}
    for name, one in tables.items():
        path = Path(options.out) / f"{name}.csv"
        write(one, path)
        print(f"wrote {path}")
    if options.name in _FIGURES:
        figure, *names = _FIGURES[options.name]
        path = draw(figure, [tables[name] for name in names], Path(options.out) / f"{options.name}.png")
        print(f"wrote {path}")
    return 0


def write(table: "pd.DataFrame", path: Path) -> None:
    """Writes a table as CSV, whole or not at all; what is null is an empty field."""
    with new_file(path) as part:
        table.to_csv(part, index=False, float_format="%.6g", lineterminator="\n")


def draw(figure: str, tables: "list[pd.DataFrame]", path: Path) -> Path:
    """Draws tables with the function of that name in `drsrobust.plots` into a PNG file, and gives its path."""
    import matplotlib.pyplot as plt

    from drsrobust import plots

    axes = getattr(plots, figure)(*tables)
    with new_file(path) as part:
        axes.figure.savefig(part, format="png", dpi=160)
    plt.close(axes.figure)
    return path


def _injection() -> tuple["pd.DataFrame", str]:
    from drsrobust.study.injection_speed import injection_speed

    table = injection_speed()
    return table, describe_injection(table)


def describe_injection(table: "pd.DataFrame") -> str:
    """The table as text: times, memory, ratios, growth, and what was not run."""
    from drsrobust.study.injection_speed import OURS, RATES, STUDY_SIZE, growth, ratios

    by_rate = table[table["rate"].isin(RATES)]
    index = ["method", "dtype", "parameters"]
    parts = [f"{machine()['cores']} cores {machine()['architecture']}, torch {versions()['torch']}; one thread"]
    for title, column in (
        ("CPU time of one injection (ms)", "cpu_ms"),
        ("CPU time of its undo (ms)", "undo_cpu_ms"),
        ("Extra memory of one injection (MiB)", "peak_mib"),
    ):
        wide = by_rate.dropna(subset=[column]).pivot_table(index=index, columns="rate", values=column, sort=False)
        parts.append(f"{title}\n{_text(wide.sort_index(axis=1).rename(columns='{:g}'.format))}")
    compared = ratios(table)
    compared = compared.rename(index="{:.3g}".format)
    compared[f"{_PUBLISHED_MS / 1e3:g} s_ratio"] = _PUBLISHED_MS / compared[f"{OURS}_ms"]
    parts.append(
        f"{STUDY_SIZE:,} float32 parameters: the others' inject over {OURS}'s inject and undo; at last, over it, the "
        f"{_PUBLISHED_MS / 1e3:g} s that the study's own tool took on another machine\n{_text(compared)}"
    )
    parts.append(f"{OURS}, inject and undo, at an equal number of errors\n{_text(growth(table))}")
    missing = table[table["note"].str.startswith("not run", na=False)]
    counted = missing.groupby(["method", "note"], sort=False).size()
    lines = [f"  {method}: {note.removeprefix('not run: ')} ({n} rows)" for (method, note), n in counted.items()]
    return "\n\n".join(parts) + ("\n\nNot run\n" + "\n".join(lines) if lines else "")


def _text(frame: "pd.DataFrame") -> str:
    return frame.to_string(float_format=lambda value: f"{value:,.3g}" if value < 1e3 else f"{value:,.0f}", na_rep="-")


def _criteo() -> tuple["pd.DataFrame", str]:
    from benchmarks.encoding import encoding_memory

    table = encoding_memory()
    return table, describe_criteo(table)


def describe_criteo(table: "pd.DataFrame") -> str:
    """The table as text, and what the whole Kaggle file would take by a straight line through it."""
    from benchmarks.encoding import WHOLE, extrapolated

    whole = extrapolated(table)
    return (
        f"{machine()['cores']} cores {machine()['architecture']}; one thread; generated lines\n"
        f"{table.to_string(index=False, float_format=lambda value: f'{value:,.0f}', formatters={'lines': '{:,}'.format})}\n\n"
        f"A straight line through them gives, for the {WHOLE:,} lines of the Kaggle file: {whole['peak_rss_mib']:,.0f} MiB "
        f"({whole['peak_anon_mib']:,.0f} MiB without pages of files), {whole['seconds'] / 60:.0f} minutes"
    )


def _training() -> tuple["pd.DataFrame", str, dict[str, "pd.DataFrame"]]:
    from benchmarks.training import describe, training_speed

    table, areas, looked, remarks = training_speed()
    return table, describe(table, areas, looked, remarks), {"training_auc": areas}


def _quality() -> tuple["pd.DataFrame", str, dict[str, "pd.DataFrame"]]:
    from benchmarks.quality import describe, quality

    table, differences, remarks = quality()
    return table, describe(table, differences, remarks), {"quality_delong": differences}


def _campaign() -> tuple["pd.DataFrame", str, dict[str, "pd.DataFrame"]]:
    from benchmarks.campaign import campaign_cost, describe

    table, growth, parts, remarks = campaign_cost()
    more = {"campaign_growth": growth, "campaign_profile": parts}
    return table, describe(table, growth, parts, remarks), more


def _mitigation() -> tuple["pd.DataFrame", str, dict[str, "pd.DataFrame"]]:
    from benchmarks.mitigation import describe, mitigation_cost

    tables = mitigation_cost()
    return tables["mitigation"], describe(tables), {name: one for name, one in tables.items() if name != "mitigation"}


_BENCHMARKS = {
    "injection": _injection,
    "criteo": _criteo,
    "training": _training,
    "quality": _quality,
    "campaign": _campaign,
    "mitigation": _mitigation,
}
_FIGURES = {  # name in drsrobust.plots, and the tables that it draws
    "criteo": ("encoding_memory", "criteo"),
    "campaign": ("campaign_cost", "campaign", "campaign_growth"),
}

if __name__ == "__main__":
    sys.exit(main())
