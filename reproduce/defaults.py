"""How long every notebook takes with its defaults, on generated data and from an empty cache: `make bench BENCH=defaults`."""

import argparse
import csv
import os
import shutil
import sys
from pathlib import Path

from drsrobust._environment import machine, unknown
from drsrobust._files import new_file
from reproduce.lock import locked
from reproduce.notebooks import ROOT, Notebook, all_notebooks

LIMIT = 300  # seconds: what a person opens and runs should be done in five minutes
COLUMNS = ["notebook", "seconds", "peak_mib", "machine", "error"]


def main(arguments: list[str] | None = None) -> int:
    """Runs the notebooks one after the other; writes `<out>/defaults.csv` after each, in which rows of others stay.

    Returns:
        exit status: 0, 1 when a notebook failed or took over the limit, 2 for a wrong call and while another one measures
        into the same folder, 130 when interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m reproduce.defaults", description="Times notebooks with defaults.")
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="which to run (default: all)")
    parser.add_argument("--out", metavar="DIR", default=str(ROOT / "build" / "bench"), help="where the CSV goes")
    options = parser.parse_args(arguments)
    known, out = all_notebooks(), Path(options.out).resolve()
    for name in options.notebooks:
        if name not in known:
            print(f"bench: {unknown('notebook', name, known)}", file=sys.stderr)
            return 2
    rows = {row["notebook"]: row for row in read_times(out / "defaults.csv")}
    slow = []
    try:
        with locked(out / "defaults"):
            for name in options.notebooks or known:
                row = rows[name] = _timed(known[name], out)
                write_times([rows[one] for one in known if one in rows], out / "defaults.csv")
                verdict = row["error"] or ("" if row["seconds"] < LIMIT else f"over the limit of {LIMIT} s")
                slow += [name] if verdict else []
                print(f"{name}: {row['seconds']:.0f} s, {row['peak_mib']:,} MiB {verdict}".rstrip(), flush=True)
    except BlockingIOError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nbench: stopped; what was measured is in {out / 'defaults.csv'}", file=sys.stderr)
        return 130
    print(f"wrote {out / 'defaults.csv'}")
    return 1 if slow else 0


def _timed(notebook: Notebook, out: Path) -> dict:
    from reproduce.runner import run_notebook

    cache = out / "defaults-cache"
    shutil.rmtree(cache, ignore_errors=True)
    before = os.environ.get("DRSROBUST_CACHE")
    os.environ["DRSROBUST_CACHE"] = str(cache)
    try:
        outcome = run_notebook(notebook, {}, out / "defaults")
    finally:
        shutil.rmtree(cache, ignore_errors=True)
        if before is None:
            del os.environ["DRSROBUST_CACHE"]
        else:
            os.environ["DRSROBUST_CACHE"] = before
    where = f"{machine()['cores']} cores {machine()['architecture']}"
    values = (notebook.name, round(outcome.seconds, 1), outcome.peak_mib, where, outcome.error)
    return dict(zip(COLUMNS, values, strict=True))


def read_times(path: Path) -> list[dict[str, str]]:
    """The rows of a table of times; none where it is missing."""
    if not path.is_file():
        return []
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def write_times(rows: list[dict], path: Path) -> None:
    """Writes a table of times, whole or not at all."""
    with new_file(path) as part, open(part, "w", newline="") as handle:
        writer = csv.DictWriter(handle, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
