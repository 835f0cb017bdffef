"""Chunks of trials, wherever they are computed."""

import multiprocessing
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from drsrobust.campaign.conditions import Condition
from drsrobust.campaign.schema import chunk, stored_schema
from drsrobust.campaign.shipped import Order, unpacked
from drsrobust.campaign.trials import run_trial
from drsrobust.evaluation import Evaluator

CHUNK_TRIALS, CHUNK_SECONDS = 1024, 3.0  # a chunk ends when either is reached
VERIFY_EVERY = 50  # trials take this many times a verification's time between two
VERIFY_SECONDS = 0.5  # what a verification is taken to cost before there was one


class Chunk(NamedTuple):
    """Trials of one condition (its number in the grid) that are computed together."""

    condition: int
    trials: tuple[int, ...]


def run_trials(
    judge: Evaluator, guarded: Evaluator | None, condition: Condition, work: Chunk, options: dict[str, Any]
) -> tuple[pa.Table, BaseException | None]:
    """The trials of a chunk until all are done, or CHUNK_SECONDS are over; at least one.

    Returns:
        those that are finished, as they are stored, and what interrupted the next one.
    """
    rows, since, stopped = [], time.monotonic(), None
    try:
        for trial in work.trials:
            rows.append(run_trial(judge, condition, trial, guarded=guarded, **options))
            if time.monotonic() - since > CHUNK_SECONDS:
                break
    except BaseException as error:  # finished trials are kept, also after an interrupt
        stopped = error
    return chunk(work.condition, rows, stored_schema(options["metrics"])), stopped


class Here:
    """Runs chunks in this process, on one evaluator.

    Args:
        judge: of the model as it is.
        conditions: the grid.
        options: what `run_trial` takes besides.
    """

    def __init__(self, judge: Evaluator, conditions: Sequence[Condition], options: dict[str, Any]) -> None:
        self._judge, self._conditions, self._options = judge, conditions, options
        self._guarded: dict[str, Evaluator] = {}  # by identity of the mitigation: each has golden scores of its own
        self._unverified_s, self._verify_s = 0.0, VERIFY_SECONDS

    def __call__(self, work: Chunk) -> tuple[pa.Table, BaseException | None]:
        """As `run_trials`.

        Raises:
            RuntimeError: as `verify_when_due`.
        """
        condition, start = self._conditions[work.condition], time.perf_counter()
        if condition.mitigation is None:
            table, stopped = run_trials(self._judge, None, condition, work, self._options)
        else:
            with self._judge.under(condition.mitigation, self._guarded.get(condition.identity)) as guarded:
                self._guarded[condition.identity] = guarded
                table, stopped = run_trials(self._judge, guarded, condition, work, self._options)
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
            self._judge.verify()
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
