"""Command line of the benchmarks: `python -m benchmarks injection`, or `make bench BENCH=injection`."""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from drsrobust._choices import unknown
from drsrobust._files import new_file

if TYPE_CHECKING:
    import pandas as pd

BENCHMARKS = (
    "injection",
    "peers",
    "maps",
    "encoding",
    "training",
    "quality",
    "campaign",
    "mitigation",
    "coverage",
    "memory_faults",
    "planning",
    "cluster",
    "rows",
    "sharding",
    "gpu",
)  # modules with a function `run`


def main(arguments: list[str] | None = None) -> int:
    """Runs a benchmark, writes its tables as CSV files and prints them.

    Returns:
        exit status: 0, 2 for a wrong call, 130 when interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures time and memory.")
    parser.add_argument("name", help=f"the benchmark: {', '.join(BENCHMARKS)}")
    parser.add_argument("--out", metavar="DIR", default="build/bench", help="folder of the CSV files (build/bench)")
    options = parser.parse_args(arguments)
    try:
        if options.name not in BENCHMARKS:
            raise unknown("benchmark", options.name, BENCHMARKS)
        result = import_module(f"benchmarks.{options.name}").run()
    except (ValueError, FileNotFoundError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nbench: stopped; nothing was written", file=sys.stderr)
        return 130
    print(f"{result.text}\n")
    for name, table in result.tables.items():
        path = Path(options.out) / f"{name}.csv"
        write(table, path)
        print(f"wrote {path}")
    return 0


def write(table: "pd.DataFrame", path: Path) -> None:
    """Writes a table as a CSV file, complete or not at all; null is an empty field."""
    with new_file(path) as part:
        table.to_csv(part, index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    sys.exit(main())
