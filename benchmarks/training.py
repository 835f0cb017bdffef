"""How fast models are trained and scored, and how good they are then: ours and others' in turns, in one run.

A DLRM with large tables: TorchRec's own classes, its fused tables, ours, from the same weights. The study's five models: ours,
and torchfm's classes with torchfm's way of feeding them.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.common import NOT_INSTALLED, OURS, Result, about, default_dataset, text
from benchmarks.op_profile import parts
from benchmarks.quality import NAME, installed
from benchmarks.quality import TORCHFM_MODELS as MODELS
from benchmarks.training_methods import STEP_KINDS, Ours, Torchfm, cannot_step
from drsrobust._choices import unknown
from drsrobust._processes import cores, threads
from drsrobust._progress import progress_bar
from drsrobust.metrics import auc
from drsrobust.models import build_model, padded_batches, score
from drsrobust.models.scoring import BATCH
from drsrobust.training.settings import Settings
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.synthetic import planted
from drsrobust_study.mitigations import LARGE, SIZES, TABLE_ROWS

if TYPE_CHECKING:
    import pandas as pd

STEPS, SCORED, SCORE_BATCH, REPEATS = 40, 100_000, 2048, 2


def study_models(
    dataset: str,
    models: Sequence[str] = MODELS,
    *,
    steps: int = STEPS,
    scored: int = SCORED,
    settings: Settings | None = None,
    repeats: int = REPEATS,
    workers: int | None = None,
    progress: bool = True,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Trains and scores each model by each method, in turns; of the repeats the fastest counts, for all alike.

    Args:
        dataset: `movielens-1m/ids` or `synthetic-movielens/ids`.
        models: of the study's five.
        steps: of training that are counted, in each repeat.
        scored: rows that are scored, in each repeat.
        settings: of training; None: the study's.
        repeats: how often all is measured.
        workers: of torchfm's loader, in addition to a measurement with none; None: one per core.
        progress: a progress bar.

    Returns:
        rows of the table (`method`, `model`, `phase`, `batch`, `rows_per_s`), and remarks for a reader.
    """
    data, settings = load_dataset(dataset), settings or Settings()
    split = data.train.head(scored)  # of these there are enough in either data set
    workers = cores() if workers is None else workers
    remarks = [f"{', '.join(models)} on {dataset}; scored: {len(split):,} rows in batches of {SCORE_BATCH}"]
    methods: dict[str, Callable[[str], Any]] = {OURS: lambda name: Ours(name, data, settings)}
    if installed():
        for number, words in ((0, "0 workers"), (workers, f"{workers} worker{'s' if workers != 1 else ''}")):
            methods[f"{NAME}, {words}"] = lambda name, number=number: Torchfm(name, data, settings, number)
    else:
        remarks.append(f"{NAME} not run: {NOT_INSTALLED}")
    rows = []
    with (
        threads(cores()),
        torch.random.fork_rng(devices=[]),
        progress_bar(len(models) * len(methods) * repeats, "models", progress=progress) as bar,
    ):
        torch.manual_seed(settings.seed)
        for name in models:
            made = {method: make(name) for method, make in methods.items()}
            rates: dict[tuple[str, str], list[float]] = {}
            for _ in range(repeats):
                for method, one in made.items():
                    rates.setdefault((method, "train"), []).append(one.train(steps))
                    rates.setdefault((method, "score"), []).append(one.score(split, SCORE_BATCH)[1])
                    bar.update()
            for (method, phase), found in rates.items():
                batch = settings.batch_size if phase == "train" else SCORE_BATCH
                rows.append({"method": method, "model": name, "phase": phase, "batch": batch, "rows_per_s": max(found)})
    return rows, remarks


TABLE_BATCH, TRAINED_ROWS, VALID = 2048, 819_200, 100_000
TURN = 8  # steps of one method before the next one's turn


def large_tables(
    table_rows: int = TABLE_ROWS,
    rows: int = TRAINED_ROWS,
    valid: int = VALID,
    batch: int = TABLE_BATCH,
    sizes: dict[str, Any] | None = None,
    methods: Sequence[str] | None = None,
    *,
    seed: int = 0,
    progress: bool = True,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Trains the same DLRM from the same weights on the same rows in the same order, once by each method.

    Methods take turns of a few steps, so that other load on the machine affects all alike. A step's time is wall time, its
    batch included.

    Args:
        table_rows: of all 26 tables together.
        rows: to train on, once each.
        valid: rows of validation.
        batch: rows per step.
        sizes: of the model; None: MLPs 512-256-16 and 512-256-1.
        methods: names; None: all that this machine can run.
        seed: of data, first weights and order.
        progress: a progress bar.

    Returns:
        rows of the table (`method`, `model`, `phase`, `batch`, `rows_per_s` by the median step), rows of the AUC table
        (`method`, `model`, `rows`, `valid_auc`), and remarks for a reader.
    """
    names = list(STEP_KINDS) if methods is None else list(methods)
    for name in names:
        if name not in STEP_KINDS:
            raise unknown("method", name, STEP_KINDS)
    remarks = [f"{name}: not run: {why}" for name in names if (why := cannot_step(name))]
    names = [name for name in names if cannot_step(name) is None]
    schema, train, validation, best = planted(table_rows, rows, valid, seed=seed)
    remarks.append(f"the planted teacher's own AUC on these {valid:,} validation rows is {best:.4f}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        start = build_model("dlrm", schema, **(SIZES if sizes is None else sizes))
    order = np.random.default_rng(seed).permutation(rows)
    running = {name: STEP_KINDS[name](start, schema) for name in names}
    try:
        with threads(cores()):
            times = _take_turns(
                running, {name: train.batches(batch, order=order) for name in names}, rows, batch, progress
            )
            batches = padded_batches(validation)
            areas = {name: auc(validation.labels, score(one.model, batches, valid)) for name, one in running.items()}
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
    quality = [
        {"method": name, "model": "dlrm", "rows": times[name][1], "valid_auc": area} for name, area in areas.items()
    ]
    return speeds, quality, remarks


def _take_turns(running, batches, rows: int, batch: int, progress: bool) -> dict[str, tuple[list[float], int]]:
    """Per method the seconds of each step on a whole batch, and how many rows it saw."""
    times: dict[str, tuple[list[float], int]] = {name: ([], 0) for name in running}
    for one in running.values():
        one.model.train()
    steps = -(-rows // batch)
    with progress_bar(steps * len(running), "training", progress=progress) as bar:
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


COLUMNS = ("method", "model", "phase", "batch", "rows_per_s")
AUC_COLUMNS = ("method", "model", "rows", "valid_auc")
PARTS_OF = ("deepfm", "afm")  # of the study's models


def run() -> Result:
    """The benchmark `training`."""
    table, areas, parts_by_model, remarks = training_speed()
    return Result({"training": table, "training_auc": areas}, describe(table, areas, parts_by_model, remarks))


def training_speed(
    large: dict[str, Any] | None = None,
    small: dict[str, Any] | None = None,
    dataset: str | None = None,
    *,
    table_rows: int = 1_000_000,
    parts_of: tuple[str, ...] = PARTS_OF,
    progress: bool = True,
) -> tuple["pd.DataFrame", "pd.DataFrame", dict[str, "pd.DataFrame"], list[str]]:
    """Measures both.

    Args:
        large: arguments of `large_tables` other than its defaults.
        small: arguments of `study_models` other than its defaults.
        dataset: for the study's models; None: MovieLens-1M where DRSROBUST_DATA is set, else generated ratings.
        table_rows: of the DLRM whose scoring is looked at in parts.
        parts_of: models of the study whose scoring is looked at in parts.
        progress: progress bars.

    Returns:
        speeds (`COLUMNS`), AUC after training of the DLRM (`AUC_COLUMNS`), the parts of scoring by model, and remarks.
    """
    import pandas as pd

    dataset = dataset or default_dataset("ids")
    remarks = [about(f"{cores()} threads")]
    speeds, areas, said = large_tables(**(large or {}), progress=progress)
    more, heard = study_models(dataset, **(small or {}), progress=progress)
    remarks += said + heard
    table = pd.DataFrame(speeds + more, columns=list(COLUMNS))
    sizes = (large or {}).get("sizes") or SIZES
    schema, rows, *_ = planted(table_rows, BATCH, 64)
    data = load_dataset(dataset)
    with threads(cores()):
        looked = {LARGE: parts(build_model("dlrm", schema, **sizes), rows.batch())}
        for name in parts_of:
            looked[f"{name}, {dataset}"] = parts(build_model(name, data.schema), data.test.head(BATCH).batch())
    return table, pd.DataFrame(areas, columns=list(AUC_COLUMNS)), looked, remarks


def ratios(table: "pd.DataFrame") -> "pd.DataFrame":
    """How many times the rows per second of each other method ours reaches.

    Args:
        table: as `training_speed` gives it.

    Returns:
        by `model` and `phase`: a column for each other method, and `best`, the least of them (without `drsrobust, bfloat16`,
        which is ours).
    """
    wide = table.pivot_table(index=["model", "phase"], columns="method", values="rows_per_s", sort=False)
    others = [method for method in wide if not method.startswith(OURS)]
    found = wide[others].rdiv(wide[OURS], axis=0)
    return found.assign(best=found.min(axis=1))


def describe(table: "pd.DataFrame", areas: "pd.DataFrame", parts: dict[str, "pd.DataFrame"], remarks: list[str]) -> str:
    """All of it as text."""
    sections = ["\n  ".join(remarks)]
    sections.append(f"Rows per second\n{table.to_string(index=False, float_format='{:,.0f}'.format)}")
    sections.append(
        f"{OURS}'s rows per second over the others' (best: over the best of them)\n{text(ratios(table), '{:.2f}')}"
    )
    sections.append(f"AUC on validation rows after the same training rows\n{areas.to_string(index=False)}")
    for name, frame in parts.items():
        frame = frame.assign(share=frame["share"].map(lambda share: "" if share != share else f"{share:.0%}"))
        sections.append(f"Scoring {BATCH:,} rows: {name}\n{text(frame, '{:,.1f}')}")
    return "\n\n".join(sections)
