"""A trial: a pure function of checkpoint, data, condition and trial number; and trials in this process."""

import hashlib
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from drsrobust._hashing import canonical_json
from drsrobust._registrations import load_registrations
from drsrobust.campaign.conditions import Condition
from drsrobust.campaign.schedule import CHUNK_TRIALS, SHORTEST_CHUNK, Chunk, Schedule, chunk_seconds
from drsrobust.campaign.table import BIT_COUNT, SCHEMA, chunk, stored_schema
from drsrobust.evaluation import CoupledRowsError, Evaluation, Evaluator
from drsrobust.injection import ErrorMap, Injection
from drsrobust.injection.error_models import drawing_order
from drsrobust.metrics.own import OwnMetric
from drsrobust.mitigation.base import CombinedDetection, Detection, Screened

Finished = Callable[[pa.Table], None]  # stores trials and adds them to the schedule
# Computes a chunk for so many seconds, and at least one trial: the finished ones, and what interrupted the next one.
Runner = Callable[..., tuple[pa.Table, BaseException | None]]
VERIFY_EVERY = 50  # the evaluator is verified when trials have taken so many times the duration of a verification
VERIFY_SECONDS = 0.5  # the duration before the first one
ROW_TRIALS = (
    32  # of a condition and stratum, the first ones: they have draws over rows, which cost as much as an AUC of all
)
TRIED = 3.0  # seconds of work here before a campaign may switch to several processes
_BLOCK = 1 << 16  # words counted at a time: their widened copies stay in the processor's cache
_FEW = 256  # words of a tensor of which each bit is unpacked, which takes less than histograms
_FEW_IN_ALL = 1 << 14  # words of a map that are counted together
_FEW_ENTRIES = 16  # of an audit that one call turns into an array
_BITS_OF_BYTE = (np.arange(256)[:, None] >> np.arange(8)) & 1  # [256, 8]


def errors_by_bit(error_map: ErrorMap) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flipped bits of each number in each tensor at rest; the map's log holds transient errors.

    Returns:
        tensor: int64 [n], index into `error_map.targets`, ascending.
        bit: uint8 [n], 0 the lowest of its word, ascending within a tensor.
        count: int64 [n], at least 1.
    """
    if error_map.on_device is not None:
        counts = error_map.on_device.counts()
        row, bit = np.nonzero(counts)
        return row, bit.astype(np.uint8), counts[row, bit]
    if len(error_map) <= _FEW_IN_ALL:
        mask, tensor = error_map.mask, 64 * error_map.tensor.astype(np.int64)
        several = np.flatnonzero(mask & (mask - np.uint64(1)))  # words with more than one wrong bit
        place = tensor + np.frexp(mask.astype(np.float64))[1] - 1
        if len(several):
            entry, bits = np.nonzero(_bits(mask[several]))
            place = np.append(np.delete(place, several), tensor[several][entry] + bits)
        counts = np.bincount(place)
        place = np.flatnonzero(counts)
        return place // 64, (place % 64).astype(np.uint8), counts[place]
    hit = [(number, count_bits(error_map.mask[entries])) for number, entries in list(error_map.by_tensor())]
    counts = np.array([count for _, count in hit], np.int64).reshape(-1, 64)
    row, bit = np.nonzero(counts)
    numbers = np.array([number for number, _ in hit], np.int64)
    return numbers[row], bit.astype(np.uint8), counts[row, bit]


def count_bits(masks: np.ndarray) -> np.ndarray:
    """The number of masks uint64 [n] that have each bit: int64 [64], by a histogram of each byte if they are many."""
    if len(masks) <= _FEW:
        return _bits(masks).sum(0, dtype=np.int64)
    octets, counts = _octets(masks), np.zeros((8, 8), np.int64)
    used = np.flatnonzero(np.bitwise_or.reduce(masks).astype("<u8").reshape(1).view(np.uint8))
    for start in range(0, len(octets), _BLOCK):
        for number in used:
            histogram = np.bincount(octets[start : start + _BLOCK, number], minlength=256)
            counts[number] += histogram @ _BITS_OF_BYTE
    return counts.reshape(64)


def _octets(masks: np.ndarray) -> np.ndarray:
    """The bytes of masks uint64 [n], the lowest first: uint8 [n, 8]."""
    return np.ascontiguousarray(masks, "<u8").view(np.uint8).reshape(-1, 8)


def _bits(masks: np.ndarray) -> np.ndarray:
    """The bits of masks uint64 [n], the lowest first: bool [n, 64], which `np.nonzero` reads far faster than bytes."""
    return np.unpackbits(_octets(masks), axis=1, bitorder="little").view(bool)


def audit(error_map: ErrorMap) -> pa.StructArray:
    """The entries of a trial's column `errors` (BIT_COUNT): tensors at rest in the map's order, then the sites of transient
    errors (as component and as tensor) in the order of their first hit; bits ascending. Bits of quantized rows are numbered
    within their byte.
    """
    tensor, bit, count = errors_by_bit(error_map)
    entries = [error_map.fingerprint[number] for number in tensor.tolist()]
    components, tensors = [entry.component for entry in entries], [entry.name for entry in entries]
    by_site = defaultdict(list)
    for hit in () if error_map.log is None else error_map.log.hits:
        by_site[hit.site].append(hit.mask)
    for site, masks in by_site.items():
        counts = count_bits(np.concatenate(masks))
        bits = np.flatnonzero(counts)
        bit, count = np.append(bit, bits.astype(np.uint8)), np.append(count, counts[bits])
        components += [site] * len(bits)
        tensors += [site] * len(bits)
    if len(bit) <= _FEW_ENTRIES:
        return pa.array(list(zip(components, tensors, bit.tolist(), count.tolist(), strict=True)), BIT_COUNT)
    names = [pa.array(values, pa.string()) for values in (components, tensors)]
    return pa.StructArray.from_arrays([*names, pa.array(bit), pa.array(count)], fields=list(BIT_COUNT))


def trial_seed(evaluator: Evaluator, condition: Condition, trial: int, *, seed: int, coupled: bool) -> int:
    """The seed (uint64) of a trial's errors: the first 8 bytes (big-endian) of SHA-256 over the sorted JSON of campaign seed,
    error model without rate or count, resolved target, model name, data set name and trial number.

    So trials at different rates share nested error maps, and trials under different mitigations the same ones. With
    `coupled=False` rate and count are included, and they are independent.
    """
    parts = {
        "seed": seed,
        "error_model": condition.sampled_model.canonical(),
        "target": condition.definition,
        "model": evaluator.name,
        "dataset": evaluator.rows.dataset,
        "trial": trial,
    }
    if not coupled:
        parts["rate"] = condition.error_model.rate
        sizes = [
            drawing_order(model)[1:] for model in getattr(condition.error_model, "parts", (condition.error_model,))
        ]
        if sizes != [(-(parts["rate"] or 0.0), 0.0)]:  # counts, densities and the rates of a sum
            parts["sizes"] = sizes
    return int.from_bytes(hashlib.sha256(canonical_json(parts).encode()).digest()[:8], "big")


def run_trial(
    evaluator: Evaluator,
    condition: Condition,
    trial: int,
    *,
    seed: int,
    coupled: bool,
    label: str,
    metrics: Sequence[str] = (),
    own_metrics: Mapping[str, OwnMetric] = MappingProxyType({}),
    guarded: Evaluator | None = None,
) -> dict[str, Any]:
    """One trial.

    Args:
        evaluator: of the model without mitigation.
        condition: one of the campaign's.
        trial: its number, from 0.
        seed, coupled, label, metrics, own_metrics: of the campaign.
        guarded: the evaluator of the model under the condition's mitigation; None without one.

    Returns:
        a row of the campaign's table (every column of SCHEMA and of `metrics`), with the `seconds` it took, the `worker` (see
        `worker`), the text of its `error` when the model raised, and the `errors` as counts by bit (see `audit`).
    """
    start = time.perf_counter()
    trial_seed_ = trial_seed(evaluator, condition, trial, seed=seed, coupled=coupled)
    injection = Injection(evaluator.model, [(condition.sampled_model, condition.space)], seed=trial_seed_)
    error_map = injection.error_map
    screened, detection = Screened(error_map), Detection()
    if guarded is None:
        result = _evaluated(evaluator, condition, injection)
    else:
        screened = Screened.by(condition.mitigation, error_map, injection.space, seed=trial_seed_)
        # Not by `inject`: the trial needs what the protection detected, too.
        if screened.remaining is not error_map:
            injection = injection.replaced(screened.remaining)
        # Attached already by `Evaluator.under`: this begins a Detection of the trial's own.
        with condition.mitigation.attach(evaluator.model) as in_computation:
            result = _evaluated(guarded, condition, injection)
        detection = CombinedDetection([screened, in_computation])
    hits = error_map if error_map.log is None else error_map.log
    golden = evaluator.golden.auc
    row = dict.fromkeys(SCHEMA.names)
    row |= {
        "model": evaluator.name,
        "dataset": evaluator.rows.dataset,
        "protocol": label,
        **condition.columns,
        "trial": trial,
        "seed": trial_seed_,
        "outcome": result.outcome,
        "bits_flipped": hits.bits,
        "words_hit": hits.words,
        "realised_rate": hits.realised_rate,
        "bits_left": hits.bits if screened.remaining is error_map else screened.remaining.bits,
        "auc": result.auc,
        "auc_golden": golden,
        "auc_drop": None if result.auc is None else golden - result.auc,
        "logloss": result.logloss,
        "ne": result.ne,
        "nan_rows": result.nan_rows,
        "inf_rows": result.inf_rows,
        "rows_reached": result.rows_reached,
        "detected": detection.detected,
        "repaired": detection.repaired,
        "checkpoint": evaluator.checkpoint,
        "data": evaluator.rows.fingerprint,
        "n_sites": hits.n_sites,
        "n_events": hits.n_events,
        "stopped": screened.stopped,
    }
    if trial < ROW_TRIALS:
        row |= evaluator.over_rows(result)
    if built_in := [name for name in metrics if name not in own_metrics]:
        row |= result.metrics(built_in)
    row |= {name: (guarded or evaluator).own_metric(metric, result) for name, metric in own_metrics.items()}
    return row | {
        "error": result.error,
        "errors": audit(error_map),
        "worker": worker(),
        "seconds": time.perf_counter() - start,
    }


def worker() -> str:
    """This process among those of all machines."""
    return f"{platform.node()}:{os.getpid()}"


def _evaluated(evaluator: Evaluator, condition: Condition, injection: Injection) -> Evaluation:
    """Evaluates the model with these errors. Without errors the golden run is the result.

    Raises:
        CoupledRowsError: the evaluator found that its earlier reruns may be wrong.
    """
    error_map: ErrorMap = injection.error_map
    if not len(error_map) and error_map.log is None:
        return evaluator.golden.unreached()
    # Not `with inject(...)`: an interrupt between its entry and the first statement would leave errors in the model.
    try:
        injection.apply()
        full_run, result = evaluator.full_run, evaluator.rerun(error_map)
        if evaluator.full_run != full_run:
            raise CoupledRowsError(evaluator.full_run)
        if (sites := injection.unreached()) and result.outcome != "raised":
            raise ValueError(
                f"{condition.target}: the model never calls {', '.join(sites)}, so no error is injected there"
            )
    finally:
        injection.undo()
    return result


def run_trials(
    row: Callable[[int], dict[str, Any]], work: Chunk, seconds: float, schema: pa.Schema
) -> tuple[pa.Table, BaseException | None]:
    """Runs trials of a chunk for so many seconds, and at least one.

    Args:
        row: computes a trial.
        work: the chunk.
        seconds: of work.
        schema: of the store.

    Returns:
        the finished trials as stored, and the exception that interrupted the next one.
    """
    rows, since, stopped = [], time.monotonic(), None
    try:
        for trial in work.trials:
            rows.append(row(trial))
            if time.monotonic() - since > seconds:
                break
    except BaseException as error:  # also an interrupt: finished trials are kept
        stopped = error
    return chunk(work.condition, rows, schema), stopped


class LocalRunner:
    """Runs chunks in this process, on one evaluator.

    Args:
        evaluator: of the model without mitigation.
        conditions: the grid.
        options: of `run_trial`.

    Attributes:
        alone: why other processes cannot compute trials; None if they can.
    """

    alone: str | None = None

    @staticmethod
    def follows(evaluator: Evaluator) -> bool:
        """Whether this process only computes the trials that another one names (`follow`)."""
        return False

    @staticmethod
    def check_same(evaluator: Evaluator, definition: dict[str, Any]) -> None:
        """Raises ValueError if other processes that make the same calls have another campaign."""

    @staticmethod
    def any_of(evaluator: Evaluator, flag: bool) -> bool:
        """Whether a flag is set in any process that makes the same calls."""
        return flag

    def follow(self) -> None:
        """Runs the trials that another process names, until it ends."""

    def __init__(self, evaluator: Evaluator, conditions: Sequence[Condition], options: dict[str, Any]) -> None:
        self._evaluator, self._conditions, self._options = evaluator, conditions, options
        self._guarded: dict[str, Evaluator] = {}  # by identity of the mitigation: each has its own golden scores
        self._unverified_s, self._verify_s = 0.0, VERIFY_SECONDS

    def __call__(self, work: Chunk, seconds: float = SHORTEST_CHUNK) -> tuple[pa.Table, BaseException | None]:
        """As `run_trials`; raises RuntimeError as `verify_when_due`."""
        start = time.perf_counter()
        table, stopped = self.run(work, seconds)
        self._unverified_s += time.perf_counter() - start
        if stopped is None:
            self.verify_when_due()
        return table, stopped

    def run(self, work: Chunk, seconds: float = SHORTEST_CHUNK) -> tuple[pa.Table, BaseException | None]:
        """As `run_trials`."""
        condition, schema = self._conditions[work.condition], stored_schema(self._options["metrics"])

        def row(trial: int, guarded: Evaluator | None = None) -> dict[str, Any]:
            self.begin(work.condition, trial)
            return run_trial(self._evaluator, condition, trial, guarded=guarded, **self._options)

        with self._under(condition) as guarded:
            guarded.probe()
            guarded = None if condition.mitigation is None else guarded
            return run_trials(partial(row, guarded=guarded), work, seconds, schema)

    @contextmanager
    def _under(self, condition: Condition) -> Iterator[Evaluator]:
        """The evaluator under a condition's mitigation, while the block runs."""
        if condition.mitigation is None:
            yield self._evaluator
            return
        with self._evaluator.under(condition.mitigation, self._guarded.get(condition.identity)) as guarded:
            self._guarded[condition.identity] = guarded
            yield guarded

    def probe_target(self, number: int) -> list[Any] | None:
        """As `Evaluator.probe_target`, of a condition's target in memory under its mitigation; None: it is not probed."""
        condition = self._conditions[number]
        with self._under(condition) as guarded:
            return guarded.probe_target(condition.space)

    def begin(self, condition: int, trial: int) -> None:
        """Called before each trial."""

    def verify_when_due(self) -> None:
        """Verifies the evaluator in about 2 % of the time of the trials.

        Raises:
            RuntimeError: something other than errors changed the model or the evaluator's golden run.
        """
        if self._unverified_s > VERIFY_EVERY * self._verify_s:
            start = time.perf_counter()
            self.verify()
            self._unverified_s, self._verify_s = 0.0, time.perf_counter() - start

    def verify(self) -> None:
        """Verifies the evaluator."""
        self._evaluator.verify()

    def use_full_runs(self, why: str) -> None:
        """Makes all later reruns full runs."""
        self._evaluator.use_full_runs(why)

    def end(self) -> None:
        """Called when all is computed."""


_REGISTERED: list[tuple[Callable[[Evaluator], bool], type[LocalRunner]]] = []


def register_runner(takes: Callable[[Evaluator], bool], kind: type[LocalRunner]) -> None:
    """Adds a kind of runner, for the evaluators that `takes` answers for."""
    _REGISTERED.append((takes, kind))


def runner_of(evaluator: Evaluator) -> type[LocalRunner]:
    """What runs trials on an evaluator in this process."""
    load_registrations("runners")
    return next((kind for takes, kind in _REGISTERED if takes(evaluator)), LocalRunner)


def run_here(schedule: Schedule, runner: Runner, finished: Finished, *, may_switch: Callable[[], bool]) -> bool:
    """Computes trials in this process.

    Args:
        schedule: of the campaign.
        runner: computes a chunk.
        finished: called with every finished chunk.
        may_switch: called between chunks, after TRIED seconds: whether to stop, since other processes will continue.

    Returns:
        whether all trials are computed.
    """
    began = time.monotonic()
    while work := schedule.take(CHUNK_TRIALS):
        remaining = work.trials
        while remaining:
            age = time.monotonic() - began
            table, stopped = runner(Chunk(work.condition, remaining), chunk_seconds(age))
            remaining = remaining[len(table) :]
            if len(table):
                finished(table)
            if stopped is not None:
                raise stopped
            if time.monotonic() - began > TRIED and may_switch():
                schedule.take_back(Chunk(work.condition, remaining))
                return False
    return True
