"""What a trial, a pass and a step of training cost on this machine: measured on untrained models and a few rows."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

RATES = (1e-8, 1e-6, 1e-4, 1e-2)  # bit error rates at which trials are timed
ROWS = (512, 2048)  # of trials and passes
BATCHES = (256, 1024)  # of steps
SLOW = 0.15  # seconds of a pass over the fewer rows, beyond which the more are not tried
# Rows and ids (rows of tables) of the study's sets where their files are not there: MovieLens-20M by its README; Criteo
# by its challenge, its ids an estimate (categories seen 10 times or more).
KNOWN = {"movielens-20m": (20_000_263, 165_000), "criteo-kaggle": (45_840_617, 1_100_000)}
FAMILIES = {"movielens": ("movielens-1m", "movielens-latest-small"), "criteo": ("criteo-sample",)}

Line = tuple[float, float]  # seconds: for nothing, and per row


@dataclass(frozen=True)
class Cost:
    """What a model costs on data of one form; times in seconds on one core."""

    parts: int
    strata: int
    parameters: int
    in_tables: int  # of these
    ids: int
    forward: Line
    one: Line
    at: dict[float, Line]
    step: Line

    def weights(self, ids: int) -> float:
        """Parameters with tables of so many rows instead."""
        return self.parameters + self.in_tables * (max(1.0, ids / self.ids) - 1)

    def trial(self, rate: float | str, rows: int) -> float:
        """Seconds of a trial at a rate, or of one error: between measured rates linear in the rate's logarithm."""
        if isinstance(rate, str):
            return _at(self.one, rows)
        return float(np.interp(np.log10(rate), np.log10(RATES), [_at(self.at[one], rows) for one in RATES]))


def stand_in(dataset: str, root: Path | None) -> str:
    """The data set on which another one's costs are measured: itself where it is there and small, one of its family, else a
    generated one."""
    from drsrobust.data.registry import SOURCES, find_files, split_name

    name, schema = split_name(dataset)
    if not SOURCES[name].files:
        return dataset
    family = name.split("-")[0]
    for other in FAMILIES.get(family, ()):
        try:
            find_files(f"{other}/{schema}", root)
        except FileNotFoundError:
            continue
        return f"{other}/{schema}"
    return f"synthetic-movielens/{schema}" if family == "movielens" else "synthetic-criteo/dlrm"


@cache
def rows_and_ids(dataset: str, root: Path | None) -> tuple[int, int]:
    """How many rows a data set has, and how many ids in all: read where it is there and small, else as it is known."""
    from drsrobust import load_dataset
    from drsrobust.data.registry import split_name

    name, _ = split_name(dataset)
    if name in KNOWN:
        return KNOWN[name]
    data = load_dataset(dataset, root)
    return sum(len(part) for part in (data.train, data.valid, data.test)), _ids(data)


@cache
def measure(model: str, dataset: str, sizes: tuple[tuple[str, int], ...], root: Path | None) -> Cost:
    """Times a model on a stand-in (see there); some seconds.

    Args:
        model: its name.
        dataset: name of the stand-in.
        sizes: of the model, name and value, where they are not its default.
        root: folder of the real data.
    """
    import torch

    from drsrobust import BitFlip, Evaluator, FixedCount, components, inject, load_dataset
    from drsrobust.models import build_model, default_sizes, padded_batches, score
    from drsrobust.study.components import layer_strata

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data = load_dataset(dataset, root)
        made = build_model(model, data.schema, **(default_sizes(model, dataset) | dict(sizes))).eval()
        sizes_of = components(made).query("parameters > 0").set_index("component")["parameters"]
        parts = list(sizes_of.index)
        forward, one, at = [], [], {rate: [] for rate in RATES}
        for rows in ROWS:
            split = data.test.head(rows)
            forward.append(_timed(lambda split=split: score(made, padded_batches(split), len(split))))
            judge = Evaluator(made, split)

            def trial(error, target, seed, judge=judge) -> None:
                with inject(made, error, target=target, seed=seed) as error_map:
                    judge.rerun(error_map)

            one.append(float(np.mean([_timed(lambda p=p, t=trial: t(FixedCount(1), p, 1)) for p in parts])))
            for rate in RATES:
                at[rate].append(_timed(lambda r=rate, t=trial: t(BitFlip(r), "all", 1)))
            if forward[0] > SLOW:
                break
        step = _steps(model, made, data)
        return Cost(
            parts=len(parts),
            strata=len(layer_strata(made)),
            parameters=sum(parameter.numel() for parameter in made.parameters()),
            in_tables=int(sizes_of["embedding"]),
            ids=_ids(data),
            forward=_line(ROWS, forward),
            one=_line(ROWS, one),
            at={rate: _line(ROWS, seconds) for rate, seconds in at.items()},
            step=step,
        )
    finally:
        torch.set_num_threads(threads)


def peak_bytes(cost: Cost, ids: int, *, training: bool) -> float:
    """Memory of one process: the libraries, weights (with gradients and two moments while training; a second copy and what
    reruns keep, 2 GB at most, while trials run)."""
    weights = 4 * cost.weights(ids)
    return 0.7e9 + (4 * weights + 0.5e9 if training else 2 * weights + 2e9)


def memory_of_machine() -> int:
    """Bytes of memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _steps(name: str, model: Any, data: Any) -> Line:
    from drsrobust.training import default_settings
    from drsrobust.training.fit import Trainer
    from drsrobust.training.fused import fused_tables

    settings, seconds = default_settings(name, data.name), []
    model.train()
    with fused_tables(model, settings) as fused:
        trainer = Trainer(model, settings, fused)
        for size in BATCHES:
            batch = data.train.head(size).batch()
            seconds.append(_timed(lambda batch=batch: trainer.step(batch)))
    model.eval()
    return _line(BATCHES, seconds)


def _timed(run: Callable[[], Any]) -> float:
    """CPU seconds of a call, the quicker of two after a first one; of one alone where that is slow."""
    found = []
    for _ in range(3):
        start = time.thread_time()
        run()
        found.append(time.thread_time() - start)
        if found[0] > SLOW:
            return found[0]
    return min(found[1:])


def _line(sizes: tuple[int, ...], seconds: list[float]) -> Line:
    if len(seconds) == 1:
        return 0.0, seconds[0] / sizes[0]
    slope = max(0.0, (seconds[1] - seconds[0]) / (sizes[1] - sizes[0]))
    return max(0.0, seconds[0] - slope * sizes[0]), slope


def _at(line: Line, rows: int) -> float:
    return line[0] + line[1] * rows


def _ids(data: Any) -> int:
    return sum(feature.cardinality for feature in data.schema.features)
