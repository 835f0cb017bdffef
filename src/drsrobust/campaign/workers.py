"""What a worker process needs to run trials: model, rows and conditions, in files that it maps into its memory.

Chunks of trials, wherever they are computed.

Computing a schedule's trials: in this process, or by any executor of `concurrent.futures`."""

import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from drsrobust._environment import pool
from drsrobust.campaign.conditions import Condition, Named, resolved
from drsrobust.campaign.queue import CHUNK_SECONDS, CHUNK_TRIALS, Chunk, Schedule
from drsrobust.campaign.table import chunk, stored_schema
from drsrobust.campaign.trial import run_trial
from drsrobust.data.cache import read_split, write_split
from drsrobust.evaluation import Evaluator
from drsrobust.evaluation.affected import BOUND
from drsrobust.evaluation.evaluator import amount
from drsrobust.injection import ErrorModel, Transient
from drsrobust.introspection.tensors import listed
from drsrobust.models import build_model, model_name

MAPPED = 4 << 20  # bytes: larger tables stay in the file that workers share; smaller tensors are copied
_STATE, _SPLIT, _GOLDEN = "state.safetensors", "split", "golden.npy"


@dataclass(frozen=True)
class Cell:
    """A condition as it travels: the target by what it resolved to, its rows in a file."""

    error_model: ErrorModel
    target: str
    rows: "Transient | tuple[tuple[str, str | None], ...]"
    mitigation: Any


@dataclass(frozen=True)
class Order:
    """All that a worker needs besides the numbers of the trials. It can be pickled, and is small.

    Attributes:
        folder: where the files are; every worker must see it.
        key: tells this order from others.
        factory: makes the model.
        options: of the evaluator.
        cells: the conditions.
        trial: what `run_trial` takes besides.
        full_run: why every rerun is a full run; None where it is not.
    """

    folder: Path
    key: str
    factory: Callable[[], nn.Module]
    options: dict[str, Any]
    cells: tuple[Cell, ...]
    trial: dict[str, Any]
    full_run: str | None


class NotPicklable(ValueError):
    """A model that other processes cannot make."""


def factory_of(evaluator: Evaluator) -> Callable[[], nn.Module]:
    """What makes the judge's model in another process.

    Raises:
        NotPicklable: with the reason and what would help.
    """
    if evaluator.factory is not None:
        home = evaluator.factory.func if isinstance(evaluator.factory, partial) else evaluator.factory
        if getattr(home, "__module__", None) == "__main__":
            name = getattr(home, "__qualname__", home)
            raise NotPicklable(
                f"{name} is defined in this notebook or script; put it into a module that can be imported"
            )
        return evaluator.factory
    manifest = getattr(evaluator.model, "manifest", None)
    if isinstance(manifest, dict) and manifest.get("model") == model_name(evaluator.model) and "sizes" in manifest:
        return partial(_rebuilt, manifest["model"], manifest["schema"], manifest["sizes"])
    raise NotPicklable(
        f"how to make a {type(evaluator.model).__name__} is not known there; give Evaluator(..., factory=...)"
    )


def _rebuilt(name: str, schema: dict[str, Any], sizes: dict[str, Any]) -> nn.Module:
    from drsrobust.data.dataset import Feature, Schema

    features = tuple(Feature(**feature) for feature in schema["features"])
    return build_model(name, Schema(tuple(schema["dense"]), features), **sizes)


@contextmanager
def shipped(
    evaluator: Evaluator, conditions: Sequence[Condition], folder: Path, key: str, trial: dict[str, Any], share: int = 1
) -> Iterator[Order]:
    """Writes model and rows into a new folder, which is gone when the block ends.

    Args:
        evaluator, conditions: of the campaign.
        folder: made here.
        key: tells the order from others.
        trial: what `run_trial` takes besides.
        share: how many workers divide the evaluator's `memory` among them.

    Raises:
        NotPicklable: workers could not make the model.
    """
    from safetensors.torch import save_file

    factory = factory_of(evaluator)
    shutil.rmtree(folder, ignore_errors=True)  # of a killed run
    folder.mkdir(parents=True)
    try:
        state = {one.name: one.tensor.detach().cpu().contiguous().clone() for one in listed(evaluator.model)}
        save_file(state, folder / _STATE)
        del state
        write_split(evaluator.rows, folder / _SPLIT)
        np.save(folder / _GOLDEN, evaluator.golden.scores)
        cells = []
        for number, condition in enumerate(conditions):
            if isinstance(condition.hits, Transient):
                rows: Any = condition.hits
            else:
                rows = []
                for place, tensor in enumerate(condition.hits.tensors):
                    file = None
                    if tensor.rows is not None:
                        file = f"rows-{number}-{place}.npy"
                        np.save(folder / file, tensor.rows)
                    rows.append((tensor.name, file))
                rows = tuple(rows)
            cells.append(Cell(condition.error_model, str(condition.target), rows, condition.mitigation))
        options = evaluator.options | {"memory": amount(evaluator.options["memory"]) // share}
        key += "" if evaluator.full_run is None else " full"  # a worker that stays must make another evaluator
        yield Order(folder, key, factory, options, tuple(cells), trial, evaluator.full_run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpacked(order: Order) -> tuple[Evaluator, list[Condition]]:
    """The evaluator and the conditions, in this process.

    Raises:
        RuntimeError: the model made here is not the one that was shipped: other tensors, or other scores.
    """
    from safetensors import safe_open

    model = order.factory()
    there = {one.name: one for one in listed(model)}
    with safe_open(order.folder / _STATE, framework="pt") as state, torch.no_grad():
        if set(there) != set(state.keys()):
            differing = sorted(set(there) ^ set(state.keys()))
            raise RuntimeError(f"the factory made another model: tensors {', '.join(differing)} are not in both")
        for name, one in there.items():
            given, own = state.get_tensor(name), one.tensor
            if given.shape != own.shape or given.dtype != own.dtype:
                raise RuntimeError(
                    f"the factory made another model: {name} is {own.dtype} {list(own.shape)}, "
                    f"it should be {given.dtype} {list(given.shape)}"
                )
            alone = own.is_contiguous() and own.untyped_storage().nbytes() == own.numel() * own.element_size()
            if one.parameter and one.table is None and alone and own.device.type == "cpu" and given.nbytes >= MAPPED:
                own.data = given  # private pages of the file: what is written stays in this process
            else:
                own.data.copy_(given)
    evaluator = Evaluator(model.eval(), read_split(order.folder / _SPLIT), order.factory, **order.options)
    golden = np.load(order.folder / _GOLDEN)
    if not np.allclose(evaluator.golden.scores, golden, rtol=BOUND, atol=BOUND):
        raise RuntimeError("the model made here gives other scores than the one that was shipped")
    if order.full_run:
        evaluator.use_full_runs(order.full_run)
    return evaluator, [_condition(order, cell, model) for cell in order.cells]


def _condition(order: Order, cell: Cell, model: nn.Module) -> Condition:
    target = cell.rows
    if not isinstance(target, Transient):
        rows = {name: None if file is None else np.load(order.folder / file) for name, file in cell.rows}
        target = Named(cell.target, rows)
    return Condition(cell.error_model, target, resolved(model, target), cell.mitigation)


VERIFY_EVERY = 50  # trials take this many times a verification's time between two
VERIFY_SECONDS = 0.5  # what a verification is taken to cost before there was one


def run_trials(
    evaluator: Evaluator, guarded: Evaluator | None, condition: Condition, work: Chunk, options: dict[str, Any]
) -> tuple[pa.Table, BaseException | None]:
    """The trials of a chunk until all are done, or CHUNK_SECONDS are over; at least one.

    Returns:
        those that are finished, as they are stored, and what interrupted the next one.
    """
    rows, since, stopped = [], time.monotonic(), None
    try:
        for trial in work.trials:
            rows.append(run_trial(evaluator, condition, trial, guarded=guarded, **options))
            if time.monotonic() - since > CHUNK_SECONDS:
                break
    except BaseException as error:  # finished trials are kept, also after an interrupt
        stopped = error
    return chunk(work.condition, rows, stored_schema(options["metrics"])), stopped


class Here:
    """Runs chunks in this process, on one evaluator.

    Args:
        evaluator: of the model as it is.
        conditions: the grid.
        options: what `run_trial` takes besides.
    """

    def __init__(self, evaluator: Evaluator, conditions: Sequence[Condition], options: dict[str, Any]) -> None:
        self._evaluator, self._conditions, self._options = evaluator, conditions, options
        self._guarded: dict[str, Evaluator] = {}  # by identity of the mitigation: each has golden scores of its own
        self._unverified_s, self._verify_s = 0.0, VERIFY_SECONDS

    def __call__(self, work: Chunk) -> tuple[pa.Table, BaseException | None]:
        """As `run_trials`.

        Raises:
            RuntimeError: as `verify_when_due`.
        """
        condition, start = self._conditions[work.condition], time.perf_counter()
        if condition.mitigation is None:
            table, stopped = run_trials(self._evaluator, None, condition, work, self._options)
        else:
            with self._evaluator.under(condition.mitigation, self._guarded.get(condition.identity)) as guarded:
                self._guarded[condition.identity] = guarded
                table, stopped = run_trials(self._evaluator, guarded, condition, work, self._options)
        self._unverified_s += time.perf_counter() - start
        if stopped is None:
            self.verify_when_due()
        return table, stopped

    def verify_when_due(self) -> None:
        """Verifies the evaluator, so that this takes about 2 % of the time of the trials.

        Raises:
            RuntimeError: something other than errors changed the model, or what is kept of its golden run.
        """
        if self._unverified_s > VERIFY_EVERY * self._verify_s:
            start = time.perf_counter()
            self._evaluator.verify()
            self._unverified_s, self._verify_s = 0.0, time.perf_counter() - start


_MINE = threading.local()  # a thread's order, and what runs it: errors go into a model that no other thread uses


def run_chunk(order: Order, work: Chunk) -> pa.Table:
    """The trials of a chunk, all of them, in a worker process: what is sent to an executor.

    The first chunk of an order makes the model and the evaluator; they stay for the next ones.
    """
    if getattr(_MINE, "key", None) != order.key:
        _MINE.key = None
        if multiprocessing.parent_process() is not None:
            torch.set_num_threads(1)  # several processes with several threads each are far slower
        _MINE.runner, _MINE.key = Here(*unpacked(order), order.trial), order.key
    tables, left = [], work.trials
    while left:
        table, stopped = _MINE.runner(Chunk(work.condition, left))
        if stopped is not None:
            raise stopped
        tables.append(table)
        left = left[len(table) :]
    return pa.concat_tables(tables).combine_chunks()


SOON = 60.0  # seconds: campaigns that end sooner are not worth starting processes for, which takes some ten
TRIED = 3.0  # seconds of work here before that is judged
RETRIES = 3  # how often workers may die before the campaign gives up

Finished = Callable[[pa.Table], None]  # stores trials and notes them in the schedule


class WorkersDied(RuntimeError):
    """Worker processes ended again and again. What was finished is stored."""


def run_here(schedule: Schedule, runner: Here, finished: Finished, *, worth_moving: Callable[[], bool]) -> bool:
    """Computes trials in this process.

    Args:
        schedule: of the campaign.
        runner: computes a chunk.
        finished: is given every chunk.
        worth_moving: asked between chunks, after TRIED seconds: whether to stop and let other processes go on.

    Returns:
        whether all are computed.
    """
    began = time.monotonic()
    while not schedule.done:
        for work in schedule.pending(CHUNK_TRIALS):
            left = work.trials
            while left:
                table, stopped = runner(Chunk(work.condition, left))
                left = left[len(table) :]
                if len(table):
                    finished(table)
                if stopped is not None:
                    raise stopped
                if time.monotonic() - began > TRIED and worth_moving():
                    schedule.take_back(Chunk(work.condition, left))
                    return False
    return True


def run_there(
    schedule: Schedule, order: Order, executor: Executor, finished: Finished, *, workers: int | None = None
) -> None:
    """Computes trials by an executor; its processes see the order's folder.

    Args:
        schedule: of the campaign.
        order: what is to be computed.
        executor: of `concurrent.futures`, or one that behaves so.
        finished: is given every chunk as it comes.
        workers: how many the executor has; None: it is asked, else 4 are assumed.
    """
    workers = workers or getattr(executor, "_max_workers", None) or 4
    running: dict[Future, Chunk] = {}
    chunks = schedule.pending(1)
    began = time.monotonic()
    try:
        while True:
            while len(running) < 2 * workers:
                work = next(chunks, None)
                if work is None:
                    size = _size(schedule, time.monotonic() - began)
                    chunks = schedule.pending(size)
                    work = next(chunks, None)
                if work is None:
                    break
                running[executor.submit(run_chunk, order, work)] = work
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                work = running.pop(future)
                try:
                    finished(future.result())
                except BaseException:
                    schedule.take_back(work)
                    raise
            chunks = schedule.pending(_size(schedule, time.monotonic() - began))
    except BaseException:
        _drain(running, schedule, finished)
        raise


def _size(schedule: Schedule, elapsed: float) -> int:
    """Trials of a chunk: few at first, then some CHUNK_SECONDS of work."""
    seconds = schedule.seconds_per_trial()
    if seconds is None or elapsed < CHUNK_SECONDS:
        return 8
    return max(1, min(CHUNK_TRIALS, int(CHUNK_SECONDS / max(seconds, 1e-6))))


def _drain(running: dict[Future, Chunk], schedule: Schedule, finished: Finished) -> None:
    """Keeps what is finished of what was given out, and gives the rest back."""
    for future, work in running.items():
        if future.cancel():
            schedule.take_back(work)
            continue
        try:
            finished(future.result(timeout=0))
        except (Exception, CancelledError):  # not finished, or gone with its worker
            schedule.take_back(work)


def run_in_processes(schedule: Schedule, order: Order, workers: int, finished: Finished) -> None:
    """Computes trials in fresh processes of one thread each. Processes that die are replaced.

    Raises:
        WorkersDied: they died RETRIES times.
    """
    for _ in range(RETRIES):
        with pool(workers) as executor:
            try:
                run_there(schedule, order, executor, finished, workers=workers)
                return
            except BrokenProcessPool as error:
                died = error
    raise WorkersDied(
        f"worker processes died {RETRIES} times (killed, or out of memory?); all finished trials are stored, and run() goes "
        "on from there: workers=1 computes in this process"
    ) from died
