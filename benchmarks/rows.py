"""Rows larger than memory: time and own memory (without pages of files) of what is done with a file in Criteo's format.

The file is generated (`encoding.write_lines`). `generate` writes it, `encode` loads it, `golden` makes an evaluator of a DLRM
with its first weights and without cached outputs on the training rows, 80 % of the lines, `rerun` evaluates a flip in a table
for the first time (indexes are made), `again` once more, `campaign` runs 20 trials of 1 to 100 flips in the tables. `stream`
computes the metrics of as many generated scores as there are lines, which are never in memory together.

Each step that is finished is noted, so that a run that was stopped goes on after it; the last one deletes the folder, which
takes 530 bytes a line. `make bench BENCH=rows ROWS=10000000` sets the number of lines.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import Result, about, at_most, seeded, text, verdict_text
from benchmarks.encoding import resident_kib, write_lines
from drsrobust import Campaign, Evaluator, FixedCount, inject
from drsrobust._files import cache_folder
from drsrobust.metrics import StreamedMetrics
from drsrobust.models import build_model
from drsrobust_extras.data.load import load_dataset

LINES = 200_000
FLIPS = (1, 3, 10, 30, 100)
TRIALS = 4  # of each number of flips
STEPS = ("generate", "encode", "golden", "rerun", "again", "campaign", "stream")
COLUMNS = ("step", "rows", "seconds", "own_gib")
BYTES_PER_ROW = 60  # of an evaluator, and 1 GiB
_INTERVAL = 0.02  # seconds between two readings of a process's memory
_BLOCK = 1 << 20


def run() -> Result:
    """The benchmark `rows`."""
    table = large_rows(int(os.environ.get("ROWS", LINES)))
    return Result({"rows": table}, describe(table))


def describe(table: pd.DataFrame) -> str:
    """The table as text, and its targets."""
    own, rows = table.set_index("step")["own_gib"], table.set_index("step")["rows"]
    bound = rows["golden"] * BYTES_PER_ROW / 2**30 + 1
    verdicts = [at_most(f"evaluator: {step}", own[step], bound, " GiB") for step in ("golden", "rerun", "campaign")]
    verdicts += [at_most("all", own.max(), 8, " GiB"), at_most("stream", own["stream"], 4, " GiB")]
    return "\n\n".join([about("one thread; generated lines"), text(table.set_index("step")), verdict_text(verdicts)])


def large_rows(lines: int = LINES, steps: Sequence[str] = STEPS) -> pd.DataFrame:
    """Runs the steps that are not finished, in a process that ends with them.

    Args:
        lines: of the file.
        steps: some of `STEPS`, in their order.

    Returns:
        one row per step: `step`, `rows`, `seconds`, `own_gib` (the most anonymous memory, read every 20 ms).

    Raises:
        RuntimeError: the process failed.
    """
    folder = cache_folder("bench", f"rows-{lines}")
    folder.mkdir(parents=True, exist_ok=True)
    notes, peaks = folder / "steps.jsonl", folder / "peaks.json"
    peak = json.loads(peaks.read_text()) if peaks.exists() else {}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DRSROBUST_CACHE": str(folder)}
    while left := [step for step in steps if step not in _noted(notes)]:
        # In processes of their own, except what needs the same evaluator: a process may keep memory that it freed.
        now = left[:1] if left[0] in ("generate", "encode", "stream") else [step for step in left if step != "stream"]
        command = [sys.executable, "-m", "benchmarks.rows", str(folder), str(lines), *now]
        memory = 0
        with subprocess.Popen(command, env=environment) as process:
            try:
                while process.poll() is None:
                    done, memory = set(_noted(notes)), resident_kib(process.pid)[1] or memory
                    seen = [step for step in now if step in done and step not in peak]  # shorter than the interval
                    for step in [*seen, *[step for step in now if step not in done][:1]]:
                        peak[step] = max(peak.get(step, 0), memory)
                    peaks.write_text(json.dumps(peak))
                    time.sleep(_INTERVAL)
            finally:
                process.kill()
        peak = dict.fromkeys(now, memory) | peak
        if process.returncode or now[-1] not in _noted(notes):
            raise RuntimeError(f"{now[0]} failed with status {process.returncode}; what is finished is in {folder}")
    table = pd.DataFrame([_noted(notes)[step] for step in steps])
    table["own_gib"] = [peak.get(step, float("nan")) / 2**20 for step in steps]
    shutil.rmtree(folder)
    return table[list(COLUMNS)]


def _noted(notes: Path) -> dict[str, dict]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    return {note["step"]: note for note in map(json.loads, lines)}


def _work(folder: Path, lines: int, steps: Sequence[str]) -> None:
    """Does the steps in this process, and notes each."""
    file, start = folder / "criteo.txt", time.perf_counter()

    def note(step: str, rows: int) -> None:
        nonlocal start
        if step in steps:
            line = json.dumps({"step": step, "rows": rows, "seconds": time.perf_counter() - start})
            with open(folder / "steps.jsonl", "a") as notes:
                notes.write(f"{line}\n")
            print(line, flush=True)
        start = time.perf_counter()

    if steps[0] == "generate":
        write_lines(file, lines)
        return note("generate", lines)
    if steps[0] == "stream":
        _streamed(folder, lines)
        return note("stream", lines)
    data = load_dataset("criteo-sample/dlrm", path=file)
    note("encode", lines)
    if steps == ["encode"]:
        return None
    model, rows = seeded(partial(build_model, "dlrm", data.schema)), data.train
    start = time.perf_counter()
    evaluator = Evaluator(model, rows, memory=0)
    note("golden", len(rows))
    for step in ("rerun", "again"):
        if step in steps:
            with inject(model, FixedCount(1), "embedding", seed=1) as error_map:
                reached = evaluator.rerun(error_map).rows_reached
            note(step, reached)
    if "campaign" in steps:
        options = {"targets": ["embedding"], "trials": TRIALS, "sampling": "plain", "store": folder / "campaign"}
        campaign = Campaign(evaluator, errors=[FixedCount(flips) for flips in FLIPS], **options)
        note("campaign", int(campaign.run(workers=1, progress=False)["rows_reached"].sum()))
    return None


def _streamed(folder: Path, n: int) -> None:
    rng = np.random.default_rng(0)
    with StreamedMetrics(0.25, "probability", folder) as metrics:
        for start in range(0, n, _BLOCK):
            labels = (rng.random(min(_BLOCK, n - start)) < 0.25).astype(np.float32)
            metrics.add(labels, rng.standard_normal(len(labels), np.float32) + labels / 2)
        metrics.of_clicks()


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
