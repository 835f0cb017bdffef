"""Compares the numbers of this work tree with those of an earlier commit: `make same BASE=commit`.

The commit is unpacked into `build/base/<commit>` and runs the same profile there, on the same machine, with one thread a
process and caches of its own. Then every CSV of figures is compared in the columns that both have, bit for bit.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reproduce.notebooks import ROOT
from reproduce.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

# Measured times differ from run to run: tables that hold or quote them, and columns.
TIMED_TABLES = (
    *("07_abft_overhead", "07_abft_effects", "08_mitigation_recovery_front", "09_injection_speed"),
    *("17_training_errors_overhead", "18_probe_rows_latency", "20_stuck_unit_time", "21_checkpoints_time"),
)
TIMED_COLUMNS = ["seconds", "cpu_seconds", "overhead_percent"]
SIDES = ("base", "the work tree")


def main(arguments: list[str] | None = None) -> int:
    """Runs base and work tree and compares them.

    Returns:
        exit status: 0 when all numbers are equal, 1 when some differ or a run failed, 2 for a wrong call.
    """
    parser = argparse.ArgumentParser(prog="python -m reproduce.same", description=__doc__.splitlines()[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--profile", default="smoke", help="profile that both run (default: smoke)")
    options = parser.parse_args(arguments)
    parsed = subprocess.run(
        ["git", "rev-parse", "--verify", "-q", f"{options.base}^{{commit}}"], cwd=ROOT, capture_output=True, text=True
    )
    if parsed.returncode:
        print(f"same: {options.base!r} is not a commit of this repository", file=sys.stderr)
        return 2
    base = unpacked(parsed.stdout.strip())
    for tree, out in ((base, base / "build"), (ROOT, ROOT / "build" / "same")):
        if not run(tree, out, options.profile):
            return 1
    folders = (out / options.profile / "figures" for out in (base / "build", ROOT / "build" / "same"))
    text, differing = compared(*folders)
    print(text)
    return 1 if differing else 0


def unpacked(commit: str) -> Path:
    """The folder with the files of a commit; complete or absent."""
    folder = ROOT / "build" / "base" / commit[:12]
    if not folder.is_dir():
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        packed = part.with_suffix(".zip")
        subprocess.run(["git", "archive", "-o", packed, commit], cwd=ROOT, check=True)
        shutil.unpack_archive(packed, part)
        packed.unlink()
        part.rename(folder)
    return folder


def run(tree: Path, out: Path, profile: str) -> bool:
    """Runs a profile in a tree, unless the base has a finished run of it; returns whether the run is there."""
    record = out / profile / "run.json"
    if tree != ROOT and record.is_file() and all(one["ok"] for one in json.loads(record.read_text())["notebooks"]):
        print(f"base: {out / profile}, of an earlier call", flush=True)
        return True
    for stale in (out / profile, out / "cache"):  # cached trials would not be computed
        shutil.rmtree(stale, ignore_errors=True)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(tree))),
        "DRSROBUST_CACHE": str(out / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    print(f"{'work tree' if tree == ROOT else 'base'}: profile {profile} in {out / profile}", flush=True)
    command = [sys.executable, "-m", "reproduce", "--profile", profile, "--out", str(out)]
    done = subprocess.run(command, cwd=tree, env=environment)
    if done.returncode:
        print(f"same: the run in {tree} failed", file=sys.stderr)
    return not done.returncode


def compared(base: Path, here: Path) -> tuple[str, bool]:
    """The differences between the CSVs of two folders of figures, as text; and whether there are any.

    A table or a column that only one folder has is named and does not count, since it may be new or renamed.
    """
    lines, differing = [], set()
    names = [{str(path.relative_to(folder)) for path in folder.rglob("*.csv")} for folder in (base, here)]
    both = {name for name in names[0] & names[1] if not Path(name).name.startswith(TIMED_TABLES)}
    lines += [f"{name}: only in {SIDES[name in names[1]]}" for name in sorted(names[0] ^ names[1])]
    for name in sorted(both):
        one, other = _table(base / name), _table(here / name)
        lines += [
            f"{name}: column {c} only in {SIDES[c in other]}" for c in sorted(set(one.columns) ^ set(other.columns))
        ]
        if len(one) != len(other):
            lines.append(f"{name}: {len(one)} rows in base, {len(other)} in the work tree")
            differing.add(name)
            continue
        for column in [column for column in one if column in other and not one[column].equals(other[column])]:
            row = int((one[column] != other[column]).to_numpy().argmax())
            values = f"{one[column][row]!r} in base, {other[column][row]!r} in the work tree"
            lines.append(f"{name}: {column} differs, first in row {row}: {values}")
            differing.add(name)
    lines.append(f"{len(differing)} of {len(both)} tables differ; tables with measured times are not compared")
    return "\n".join(lines), bool(differing)


def _table(path: Path) -> "pd.DataFrame":
    """A CSV as text, without measured times."""
    table = read_table(path, dtype=str, keep_default_na=False)
    return table.drop(columns=TIMED_COLUMNS, errors="ignore")


if __name__ == "__main__":
    sys.exit(main())
