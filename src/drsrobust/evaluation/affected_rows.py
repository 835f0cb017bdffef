"""Which rows an error map affects, and their scores.

- Errors in a tensor affect the rows of the batches that read it; a tensor that no batch reads affects no row, unless a branch
  may be why.
- Errors in rows of a table affect the rows of data that look them up (an inverted index of a feature's ids).
- Of a batch that errors in other tensors affect, only modules that compute with these, or with what depends on them, run again.
"""

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from drsrobust._hashing import splitmix64
from drsrobust.data import Split
from drsrobust.evaluation.cached_outputs import CachedOutputs
from drsrobust.evaluation.dataflow import Dataflow, trace_dataflow
from drsrobust.evaluation.gradients import gradients
from drsrobust.evaluation.hit_units import HitUnits
from drsrobust.evaluation.lookups import IN_MEMORY, BatchLookups, SplitLookups
from drsrobust.evaluation.passes import OtherRows, Passes
from drsrobust.injection import ErrorMap
from drsrobust.introspection.calling import device_of, on_device_of
from drsrobust.introspection.devices import accelerator_of
from drsrobust.introspection.tensors import TensorEntry, named_modules
from drsrobust.models import Scoring, score
from drsrobust.models.scoring import BATCH, PaddedBatches

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch


DEVICE_BATCH = 65_536  # rows of a batch on a GPU, where a batch takes 0.5 ms whatever its rows
PROBE = 64  # rows scored again, in a batch of their own
BOUND = 1e-5  # difference of one row's scores in two batches, at most, relative to 1 + |score|
MAX_SHARE_ALONE = 0.5  # share of rows up to which affected rows are scored by themselves
MAX_SHARE_ALONE_DENSE = 0.1  # the same if dense tensors are hit too: with cached outputs all rows take less time
PART_BUDGET = 64 << 20  # bytes of outputs that a part of the rows caches
REMEMBERED = 1000  # sets of tensors whose replayable modules are kept
WITNESSES = 16  # unaffected rows in each batch of affected ones, whose scores must not change
CHANGING = "its scores change from run to run"
COUPLED = "its scores depend on which rows are scored together, or change from run to run"
AUDIT = 50  # times a full run's duration, in reruns, between two comparisons with a full run


class ReachWarning(UserWarning):
    """A rerun cannot be limited to the rows that read the wrong table rows, so it scores all rows: slower, equally exact."""


class CoupledRowsError(Exception):
    """An error in one row changed the scores of other rows in its batch, so rows cannot be scored by themselves."""


@dataclass(frozen=True)
class Affected:
    """The rows and tensors that errors affect.

    Attributes:
        dense: tensors (numbers of `Dataflow`, as bits) whose errors affect every row of a batch that reads them.
        tables: other tensors, whose errors affect `rows`.
        rows: int64, ascending.
        batches: where batches read different tensors, the numbers of those that are scored again as they are (int64,
            ascending), and then `rows` are all that any error affects; None: `dense` affect every row.
    """

    dense: int
    tables: int
    rows: np.ndarray
    batches: np.ndarray | None = None


class AffectedRows(Passes):
    """The golden run of a model on some rows, and the rows that errors affect.

    Args:
        model: without errors.
        rows: a Split, whose affected rows are scored by themselves; or rows in batches, of which whole batches are.
        budget: bytes of cached outputs.
        scoring: makes scores of outputs.

    Attributes:
        scores: of the golden run, [n], [n, T] or [n, items].
        all_rows: why errors in tables count as affecting every row; None if the affected rows are known.
        everything: why every rerun is a full run; None otherwise.
        bounded: whether an operation with a bounded result, as a sigmoid, made the scores; None: unknown.
    """

    traced = True

    def __init__(
        self, model: nn.Module, rows: Split | OtherRows, budget: int, scoring: Scoring, flow: Dataflow | None = None
    ) -> None:
        self._model, self.n, self._scoring, self._rows = model, len(rows), scoring, rows
        self._split: Split | Any = None  # of rows in batches
        accelerator = accelerator_of(device_of(model))
        self.batches: list[Any] | _IndexedBatches
        lookups: BatchLookups | SplitLookups
        if isinstance(rows, OtherRows):
            self.batches, lookups = list(rows.batches), BatchLookups(model, rows.sizes)
            self._ends = np.cumsum(rows.sizes)
        else:
            self._split, self._size, lookups = rows, DEVICE_BATCH if accelerator else BATCH, SplitLookups(model, rows)
            if accelerator and self.n <= IN_MEMORY:
                self._split, lookups = accelerator.rows(model, rows)
            self.batches = _IndexedBatches(self._split, self._size)
            if self.n <= IN_MEMORY:
                self.batches = [on_device_of(model, batch) for batch in self.batches]
            self._probed = np.unique(np.linspace(0, self.n - 1, PROBE).astype(np.int64))
            self._ends = np.minimum(np.arange(self._size, self.n + self._size, self._size), self.n)
        self.all_rows: str | None = None
        traced: list[np.ndarray] = []
        if flow is None:
            flow, traced = trace_dataflow(model, self.batches, scoring)
        self.flow, self.everything, self.bounded = flow, flow.problem, flow.bounded
        modules = dict(named_modules(model))
        keep = set() if self.everything else flow.worth_keeping() - {""}
        self.cached = CachedOutputs({name: modules[name] for name in keep}, budget)
        self._replayable: dict[int, set[str]] = {}
        start = time.process_time()
        with self.cached.recording(self.batches) as batches, lookups.watched(batches) as watched:
            sizes = None if isinstance(rows, Split) else rows.sizes
            self.scores = score(model, watched, self.n, scoring, sizes, golden=True)
        self._full_run_s = time.process_time() - start
        self._unaudited_s = 0.0
        self._try_again(traced)
        if self._split is not None:
            self._try_regrouped()
            self._try_without_padding()
        self.scores.flags.writeable = False
        self._units = HitUnits(model, flow, self.cached)
        self.all_rows = self.everything or self.all_rows
        self._warned: set[str] = set()
        self._is_part = False
        self._lookups = lookups
        # Asked once: the golden run has seen all look-ups, and trials ask for every table that they hit.
        self._unknown = {table: why for table in lookups.tables if (why := self._why_unknown(table))}

    def few_rows(self) -> "AffectedRows | None":
        """As this, of a few rows; None where rows are scored in the golden run's batches alone. The model must be without
        errors."""
        if isinstance(self._rows, OtherRows) or self.all_rows is not None or not self.flow.uniform:
            return None
        return self._part(self._rows.take(self._probed), [self.flow.read])

    def one_batch(self, number: int) -> "AffectedRows":
        """As this, of one of the golden run's batches. The model must be without errors."""
        rows: Any = self._rows
        numbers = slice(number, number + 1)
        if self._split is None:
            part = replace(rows, batches=self.batches[numbers], sizes=rows.sizes[numbers])
        else:
            part = rows.take(self._range(number))
        return self._part(part, self.flow.effects[numbers])

    def _part(self, rows: Split | OtherRows, effects: list[int]) -> "AffectedRows":
        part = AffectedRows(self._model, rows, PART_BUDGET, self._scoring, self.flow.of_batches(effects))
        part._is_part = True
        return part

    def scores_of(self, batches: np.ndarray) -> np.ndarray:
        """Golden scores of the rows of some batches."""
        return np.concatenate([self.scores[self._range(number)] for number in batches])

    def again(self, batches: np.ndarray) -> np.ndarray:
        """Scores of the rows of some batches by the model in its present state."""
        rows = sum(len(range(self.n)[self._range(number)]) for number in batches)
        return self._scored((self.batches[number] for number in batches.tolist()), rows)

    def _try_again(self, traced: list[np.ndarray]) -> None:
        """Compares scores of traced batches, the last ones, with the golden ones."""
        first = len(self.batches) - len(traced)
        for number, scores in enumerate(traced, first):
            golden = self.scores[self._range(number)]
            if self.everything is None and not near(scores[: len(golden)], golden):
                self.everything = CHANGING

    def _range(self, number: int) -> slice:
        """The rows of a batch."""
        return slice(int(self._ends[number - 1]) if number else 0, int(self._ends[number]))

    def _try_regrouped(self) -> None:
        """Scores some rows of all batches in a batch of their own."""
        if self.everything is not None:
            return
        if self._near(self._scored(PaddedBatches(self._split, rows=self._probed), len(self._probed))):
            return
        self.all_rows = COUPLED
        repeated = self._scored(self.batches[:1], min(self.n, self._size))
        if not np.array_equal(repeated, self.scores[: len(repeated)], equal_nan=True):
            self.everything = CHANGING

    def _try_without_padding(self) -> None:
        """Goes on with the last batch without its padding if rows of a batch depend on each other: padding must not take part
        in what a model computes over a batch, as a softmax over it. Other padding shows whether they do."""
        m, size = self.n - self._size * (len(self.batches) - 1), len(self.batches[-1].labels)
        if size == m:
            return
        # The batch's rows and the first ones: of the same size, which rounds equally.
        padded = self._split.batch((np.arange(size) - m) % self.n)
        if self.all_rows is None and near(self._scored([padded], m), self.scores[-m:]):
            return
        self.all_rows = self.all_rows or COUPLED
        self.batches[-1] = _indexed(self._split.batch(slice(self.n - m, self.n)))
        self.scores[-m:] = self._scored(self.batches[-1:], m)
        self.cached.drop(len(self.batches) - 1)
        if self.everything is None:
            flow, traced = trace_dataflow(self._model, self.batches[-1:], self._scoring)
            self.everything = flow.problem
            if flow.problem is None:
                self.flow.replace_last(flow)
                self._try_again(traced)

    def _scored(self, batches: Iterable[Any], n: int) -> np.ndarray:
        return score(self._model, batches, n, self._scoring)

    def full(self) -> np.ndarray:
        """Scores of all rows by the model in its present state."""
        return self._scored(self.batches, self.n)

    def read_again(self, leaves: Sequence[TensorEntry]) -> tuple[set[str], set[str]]:
        """Names of the tensors that the first batch reads when it is scored once more, and of those from which a branch, or, of
        some floating-point leaves, a differentiable operation leads to its scores."""
        flow, _ = trace_dataflow(self._model, self.batches[:1], self._scoring)
        read = {name for name, number in flow.number.items() if flow.read >> number & 1}
        leads = {name for name, number in flow.number.items() if flow.control >> number & 1}
        try:
            batch = [(self.batches[0], int(self._ends[0]))]
            (found,) = gradients(self._model, self._scoring, [entry.tensor for entry in leaves], batch)
        except Exception:  # a model without gradients
            found = (None,) * len(leaves)
        differentiable = {entry.name for entry, gradient in zip(leaves, found, strict=True) if gradient is not None}
        return read, leads | differentiable

    def _why_unknown(self, table: str) -> str | None:
        """Why the rows that read a table are unknown; None if they are known."""
        if table in self._lookups.hidden:
            return "the module that looks up in it has a forward of its own"
        number = self.flow.number.get(table)
        if number is not None and self.flow.elsewhere >> number & 1:
            return self._lookups.why_unknown(table) or "it reads the table outside of the look-up too"
        return self._lookups.why_unknown(table)

    def intact(self) -> bool:
        """Whether the model without errors gives the golden scores: all rows with cached outputs, and a few rows without."""
        if self.everything is None and not np.array_equal(self._in_their_batches(0), self.scores):
            return False
        if self._split is None:
            first = np.arange(1)
            return self.everything is not None or near(self.again(first), self.scores_of(first))
        if self.all_rows is not None:
            return True  # a few rows by themselves have other scores
        return self._near(self._scored(PaddedBatches(self._split, rows=self._probed), len(self._probed)))

    def _near(self, scores: np.ndarray) -> bool:
        """Whether scores of the probed rows are the golden ones, within `BOUND`."""
        return near(scores, self.scores[self._probed])

    def _has_effect(self, number: int) -> bool:
        """Whether scores may depend on a tensor, by its number."""
        return bool((self.flow.read | self.flow.unknown) >> number & 1)

    def looked_up(self, tensor: str) -> np.ndarray | None:
        """The rows of a tensor's first dimension (int64, ascending) that scores depend on; None: all."""
        number = self.flow.number.get(tensor)
        if number is not None and self.everything is None and not self._has_effect(number):
            return np.empty(0, np.int64)
        if tensor not in self._lookups.tables or self.all_rows or tensor in self._unknown:
            return None
        if number is not None and self.flow.unknown >> number & 1:
            return None
        return self._lookups.ids(tensor)

    def features(self) -> dict[str, list[str]]:
        """Tables whose readers are known and that scores depend on -> the features that they are looked up with."""
        lookups: Any = self._lookups
        known = {} if self.all_rows or self._split is None else lookups.tables
        return {
            table: lookups.features(table)
            for table in known
            if table not in self._unknown and self.flow.read >> self.flow.number[table] & 1
        }

    def of(self, maps: Iterable[ErrorMap]) -> Affected:
        """The rows and tensors that the errors of several maps together affect."""
        dense = tables = 0
        hits: list[tuple[str, Any, int]] = []
        for error_map in maps:
            for entry, entries in list(error_map.by_tensor()):
                fingerprint = error_map.fingerprint[entry]
                number = self.flow.number.get(fingerprint.name)
                if number is None or not self._has_effect(number):
                    continue  # an optimizer's state, or a tensor that is never read
                if fingerprint.name not in self._lookups.tables or self.flow.unknown >> number & 1:
                    dense |= 1 << number
                elif why := self.all_rows or self._unknown.get(fingerprint.name):
                    self._warn(f"errors in {fingerprint.name} count as affecting every row: {why}")
                    dense |= 1 << number
                else:
                    tables |= 1 << number
                    words = self._lookups.words(error_map)[entries]
                    hits.append((fingerprint.name, words, prod(fingerprint.shape[1:])))
        ids = ((table, words // width) for table, words, width in hits)
        if not self.flow.uniform:
            return self._by_batches(dense, tables, self._lookups.rows(ids))
        rows = self._lookups.rows(ids, MAX_SHARE_ALONE_DENSE * self.n if dense else np.inf)
        return Affected(dense, tables, rows)

    def _by_batches(self, dense: int, tables: int, rows: np.ndarray) -> Affected:
        """As `of`, where batches read different tensors: each row stays in its batch, whose branches hold for its rows."""
        any_batch = dense & self.flow.unknown
        reading = [self._range(n) for n, effect in enumerate(self.flow.effects) if any_batch or effect & dense]
        is_affected = np.zeros(self.n, bool)
        is_affected[rows] = True
        for batch in reading:
            is_affected[batch] = True
        rows = np.flatnonzero(is_affected)
        return Affected(dense, tables, rows, self._batches_of(rows))

    def score(self, affected: Affected) -> tuple[np.ndarray, np.ndarray | None]:
        """Scores [n] of the model with its present errors, and the rows that may differ from the golden scores (None: any).

        Raises:
            CoupledRowsError: an error in one row changed other rows of its batch.
        """
        hit, everywhere = affected.dense | affected.tables, affected.dense and affected.batches is None
        if not everywhere and not len(affected.rows):
            return self.scores, affected.rows
        start = time.process_time()
        if affected.batches is not None:
            scores = self._some_batches(hit, affected.rows, affected.batches)
        elif everywhere and (changed := self._changed(affected)) is not None:
            scores = self.scores.copy()
            scores[changed] = self._by_themselves(changed, scores) if len(changed) else scores[changed]
        elif len(affected.rows) > (MAX_SHARE_ALONE_DENSE if everywhere else MAX_SHARE_ALONE) * self.n:
            scores = self._in_their_batches(hit)
        else:
            scores = self._in_their_batches(affected.dense) if everywhere else self.scores.copy()
            if len(affected.rows) and self._split is None:  # all rows of some batches
                scores[affected.rows] = self._in_their_batches(hit, self._batches_of(affected.rows))
            elif len(affected.rows):
                scores[affected.rows] = self._by_themselves(affected.rows, scores)
        self._audit(scores, time.process_time() - start)
        return scores, None if everywhere else affected.rows

    def _in_their_batches(self, hit: int, numbers: np.ndarray | None = None) -> np.ndarray:
        """Scores of all rows of some batches of the golden run (None: of all), with the cached outputs that errors in a set of
        tensors do not change."""
        if hit not in self._replayable:
            if len(self._replayable) > REMEMBERED:
                self._replayable.clear()
            self._replayable[hit] = self.flow.replayable(hit, self.cached.modules)
        chosen = range(len(self.batches)) if numbers is None else numbers.tolist()
        names = self._replayable[hit]
        with self._units.answering(hit), self.cached.replaying(names, self.batches, chosen) as batches:
            return self._scored(batches, sum(len(range(self.n)[self._range(number)]) for number in chosen))

    def _changed(self, affected: Affected) -> np.ndarray | None:
        """The rows that errors affect, where those in dense tensors change few rows of a layer's output; else None."""
        if self._split is None or self.all_rows or len(affected.rows) > (most := MAX_SHARE_ALONE_DENSE * self.n):
            return None
        changed = self._units.changed(affected.dense, np.diff(self._ends, prepend=0).tolist(), most)
        return None if changed is None else np.union1d(changed, affected.rows)

    def _some_batches(self, hit: int, affected: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Scores [n], computed again in the batches of affected rows; the other rows there must stay as they are."""
        rows = np.concatenate([np.arange(self.n)[self._range(number)] for number in numbers])
        scored = self._in_their_batches(hit, numbers)
        is_affected = np.isin(rows, affected, assume_unique=True)
        if not near(scored[~is_affected], self.scores[rows[~is_affected]]):
            raise CoupledRowsError
        scores = self.scores.copy()
        scores[rows[is_affected]] = scored[is_affected]
        return scores

    def _batches_of(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of the batches that hold some rows."""
        return np.unique(np.searchsorted(self._ends, rows, side="right"))

    def _by_themselves(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Scores of affected rows [m], in batches with some unaffected rows, whose scores must stay as in `scores` [n].

        So an error in one row that changes other rows of its batch is found, as with a branch on the batch's largest
        activation.
        """
        numbers, is_witness = with_witnesses(rows, self.n)
        witnesses, total = numbers[is_witness], len(numbers)
        scored = self._scored(PaddedBatches(self._split, self._size, numbers), total)
        if not near(scored[is_witness], scores[witnesses]):
            raise CoupledRowsError
        return scored[~is_witness]

    def _audit(self, scores: np.ndarray, seconds: float) -> None:
        """Compares a rerun with a full run, once in `AUDIT` times a full run's duration."""
        self._unaudited_s += seconds
        if self._unaudited_s > AUDIT * self._full_run_s:
            start = time.process_time()
            full = self.full()
            self._unaudited_s, self._full_run_s = 0.0, time.process_time() - start
            if not near(scores, full):
                raise CoupledRowsError

    def _warn(self, text: str) -> None:
        if text not in self._warned and not self._is_part:
            self._warned.add(text)
            warnings.warn(text, ReachWarning, stacklevel=4)


def near(scores: np.ndarray, expected: np.ndarray) -> bool:
    """Whether scores are the expected ones within `BOUND`; NaN equals NaN."""
    if scores.tobytes() == expected.tobytes():
        return True
    return np.allclose(scores, expected, rtol=BOUND, atol=BOUND, equal_nan=True)


def with_witnesses(rows: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Affected rows [m] of n, with some unaffected ones between them: numbers int64 [k] in the order in which they are scored,
    and which are witnesses (bool [k])."""
    m = len(rows)
    total = max(64, m + WITNESSES * -(-m // (BATCH - WITNESSES)))
    total += -total % 32  # so that no padding is needed
    # Of each witness among the unaffected rows; the same ones in every process. A generator takes as long as an AUC.
    states = np.arange(total - m, dtype=np.uint64) + np.uint64(
        (m + (int(rows[0]) << 21) + (int(rows[-1]) << 42)) % 2**64
    )
    place = (splitmix64(states) % np.uint64(n - m)).astype(np.int64)
    is_witness = np.zeros(total, bool)
    is_witness[np.arange(total - m) * (total - 1) // max(1, total - m - 1)] = True
    numbers = np.empty(total, np.int64)
    numbers[is_witness] = place + np.searchsorted(rows - np.arange(m), place, side="right")  # affected rows before it
    numbers[~is_witness] = rows
    return numbers, is_witness


class _IndexedBatches(PaddedBatches):
    """`PaddedBatches` with the derived values of their KeyedJaggedTensor."""

    def __getitem__(self, number: Any) -> Any:
        batch = super().__getitem__(number)
        return batch if isinstance(number, slice) else _indexed(batch)


def _indexed(batch: "Batch") -> "Batch":
    """The batch with the derived values of its KeyedJaggedTensor made: else they would count as made by the first module that
    uses them, whose output could then not be cached."""
    for jagged in batch.sparse_features.to_dict().values():
        jagged.offsets()
    batch.sparse_features.offset_per_key()
    return batch
