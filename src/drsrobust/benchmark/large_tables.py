"""How fast a DLRM with large tables is trained, by several methods that take turns, and how good each model is then."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from drsrobust._names import unknown
from drsrobust._processes import cores, threads
from drsrobust._progress import progress
from drsrobust.benchmark.planted import planted
from drsrobust.benchmark.steps import STEPS, cannot_step
from drsrobust.metrics import auc
from drsrobust.models import build_model, padded_batches, score

SIZES: dict[str, Any] = {"dense_mlp": [512, 256, 16], "over_mlp": [512, 256, 1]}
BATCH, ROWS, VALID, TABLE_ROWS = 2048, 819_200, 100_000, 1_000_000
TURN = 8  # steps of one method before the next one's turn


def large_tables(
    table_rows: int = TABLE_ROWS,
    rows: int = ROWS,
    valid: int = VALID,
    batch: int = BATCH,
    sizes: dict[str, Any] | None = None,
    methods: Sequence[str] | None = None,
    *,
    seed: int = 0,
    show: bool = True,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Trains the same DLRM from the same weights on the same rows in the same order, once by each method.

    Methods take turns of a few steps, so that what else the machine does meets all alike. A step's time is the wall clock's,
    with the making of its batch.

    Args:
        table_rows: of all 26 tables together.
        rows: to train on, once each.
        valid: rows of validation.
        batch: rows per step.
        sizes: of the model; None: MLPs 512-256-16 and 512-256-1.
        methods: names; None: all that this machine can run.
        seed: of data, first weights and order.
        show: a progress bar.

    Returns:
        rows of the table (`method`, `model`, `phase`, `batch`, `rows_per_s` by the median step), rows of the AUC table
        (`method`, `model`, `rows`, `valid_auc`), and remarks for a reader.
    """
    names = list(STEPS) if methods is None else list(methods)
    for name in names:
        if name not in STEPS:
            raise unknown("method", name, STEPS)
    remarks = [f"{name}: not run: {why}" for name in names if (why := cannot_step(name))]
    names = [name for name in names if cannot_step(name) is None]
    schema, train, validation, best = planted(table_rows, rows, valid, seed=seed)
    remarks.append(f"the planted teacher's own AUC on these {valid:,} validation rows is {best:.4f}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        start = build_model("dlrm", schema, **(SIZES if sizes is None else sizes))
    order = np.random.default_rng(seed).permutation(rows)
    running = {name: STEPS[name](start, schema) for name in names}
    try:
        with threads(cores()):
            times = _take_turns(running, {name: train.batches(batch, order=order) for name in names}, rows, batch, show)
            judged = padded_batches(validation)
            areas = {name: auc(validation.labels, score(one.model, judged, valid)) for name, one in running.items()}
    finally:
        for one in running.values():
            one.close()
    speeds = [
        {
            "method": name,
            "model": "dlrm",
            "phase": "train",
            "batch": batch,
            "rows_per_s": batch / float(np.median(took)),
        }
        for name, (took, _) in times.items()
    ]
    judged = [
        {"method": name, "model": "dlrm", "rows": times[name][1], "valid_auc": area} for name, area in areas.items()
    ]
    return speeds, judged, remarks


def _take_turns(running, batches, rows: int, batch: int, show: bool) -> dict[str, tuple[list[float], int]]:
    """Per method the seconds of each step on a whole batch, and how many rows it saw."""
    times: dict[str, tuple[list[float], int]] = {name: ([], 0) for name in running}
    for one in running.values():
        one.model.train()
    steps = -(-rows // batch)
    with progress(steps * len(running), "training", show=show) as bar:
        for first in range(0, steps, TURN):
            for name, one in running.items():
                took, seen = times[name]
                for _ in range(min(TURN, steps - first)):
                    start = time.perf_counter()
                    made = next(batches[name])
                    one.step(made)
                    end = time.perf_counter()
                    seen += len(made.labels)
                    if len(made.labels) == batch:
                        took.append(end - start)
                    bar.update()
                times[name] = (took, seen)
    return times
