"""What an error map reaches: which samples, and which operations.

- A tensor that no score depends on reaches nothing.
- Errors in rows of a table reach the samples that read those rows.
- Errors in any other tensor reach all samples, but only what is computed from that tensor on.
"""

import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from drsrobust.data import Split
from drsrobust.evaluation.dataflow import trace
from drsrobust.evaluation.kept import KeptOutputs
from drsrobust.evaluation.lookups import Lookups
from drsrobust.evaluation.readers import ReadersOf
from drsrobust.injection import ErrorMap
from drsrobust.models import padded_batches, score
from drsrobust.models.scoring import BATCH
from drsrobust.tensors import named_modules

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

PROBE = 64  # rows scored once more, in a batch of their own
BOUND = 1e-5  # how far scores of one row may lie apart in two batches, relative to 1 + |score|
FEW = 0.5  # up to this share of the rows, samples are scored by themselves
FEW_AND_ALL = 0.1  # the same, where all rows must be scored too: more would cost what kept look-ups save
WITNESSES = 16  # unaffected rows in each batch of affected ones: their scores must stay what they were
AUDIT = 50  # reruns take this many times a full run's time between two that are compared with a full run


class CoupledRowsError(Exception):
    """An error in one row changed the scores of other rows in its batch, so rows cannot be scored by themselves."""


@dataclass(frozen=True)
class Reached:
    """What an error map reaches.

    Attributes:
        dense: tensors (as `Dataflow` numbers them) whose errors reach every sample.
        tables: tensors whose errors reach the samples in `rows`.
        rows: those samples, int64 ascending.
    """

    dense: int
    tables: int
    rows: np.ndarray


class Reach:
    """Knows a model's reach on the rows of a split.

    Args:
        model: without errors.
        split: the rows.
        budget: bytes that kept outputs may take.

    Attributes:
        scores: of the golden run, [n].
        all_rows: why errors in tables are taken to reach every sample; None where their samples are known.
        everything: why nothing is known, and a rerun is a full run; None otherwise.
    """

    def __init__(self, model: nn.Module, split: Split, budget: int) -> None:
        self._model, self.n = model, len(split)
        self._split = split
        self.batches = [_indexed(batch) for batch in padded_batches(split)]
        self._probed = probe = np.unique(np.linspace(0, self.n - 1, PROBE).astype(np.int64))
        self.all_rows: str | None = None
        self._flow, tried = trace(model, _indexed(padded_batches(split, rows=probe)[0]))
        self.everything = self._flow.problem
        lookups = Lookups(model)
        modules = dict(named_modules(model))
        keep = set() if self.everything else self._flow.worth_keeping() - {""}
        self.kept = KeptOutputs({name: modules[name] for name in keep}, budget)
        start = time.process_time()
        with lookups.watched(), self.kept.recording(self.batches) as batches:
            self.scores = score(model, _told(batches, lookups), self.n)
        self._full_run_s = time.process_time() - start
        self._unaudited_s = 0.0
        if tried is not None and not self._near(tried[: len(probe)]):
            self.all_rows = "its scores depend on which rows are scored together, or change from run to run"
            again = score(model, self.batches[:1], min(self.n, len(self.batches[0].labels)))
            if not np.array_equal(again, self.scores[: len(again)], equal_nan=True):
                self.everything = "its scores change from run to run"
        self.all_rows = self.everything or self.all_rows
        self._told: set[str] = set()
        self._readers = ReadersOf(split)
        self._features = {name: lookups.features(name) for name in lookups.tables}

    @property
    def index_bytes(self) -> int:
        """Memory of the inverted indexes made so far."""
        return self._readers.nbytes

    def why_all_rows(self, table: str) -> str | None:
        """Why errors in a table are taken to reach every sample; None where the samples that read a row are known."""
        if self.all_rows:
            return self.all_rows
        if not self._features.get(table):
            return "it looks up other ids than the split's"
        if self._flow.elsewhere >> self._flow.number[table] & 1:
            return "it reads the table outside of the look-up too"
        return None

    def intact(self) -> bool:
        """Whether the model without errors gives the golden scores: all rows with the outputs kept of their batches, and a few
        rows computed without those."""
        if self.everything is None and not np.array_equal(self._whole(0), self.scores):
            return False
        if self.all_rows is not None:
            return True  # a few rows by themselves have other scores
        return self._near(score(self._model, padded_batches(self._split, rows=self._probed), len(self._probed)))

    def _near(self, scores: np.ndarray) -> bool:
        """Whether scores of the probed rows are the golden ones, within `BOUND`."""
        return _near(scores, self.scores[self._probed])

    def of(self, maps: Iterable[ErrorMap]) -> Reached:
        """What several maps that are in the model together reach."""
        dense = tables = 0
        hits: list[tuple[float, str, np.ndarray, int]] = []
        for error_map in maps:
            for entry, entries in error_map.by_tensor():
                fingerprint = error_map.fingerprint[entry]
                number = self._flow.number.get(fingerprint.name)
                if number is None or not self._flow.result >> number & 1:
                    continue  # an optimizer's state, or a tensor that is never read
                if fingerprint.name not in self._features:
                    dense |= 1 << number
                elif why := self.why_all_rows(fingerprint.name):
                    self._tell(f"errors in {fingerprint.name} are taken to reach every sample: {why}")
                    dense |= 1 << number
                else:
                    tables |= 1 << number
                    words = error_map.word[entries]
                    hits.append(
                        (len(words) / fingerprint.shape[0], fingerprint.name, words, prod(fingerprint.shape[1:]))
                    )
        rows = []
        for _, table, words, width in sorted(hits, key=lambda hit: -hit[0]):
            row = words // width
            row = row[np.append(True, row[1:] != row[:-1])]
            rows += [self._readers[feature].of(row) for feature in self._features[table]]
            if dense and len(rows[-1]) > FEW_AND_ALL * self.n:
                break  # every sample is computed anyway, so no more must be known
        return Reached(dense, tables, _union(rows, self.n))

    def score(self, reached: Reached) -> tuple[np.ndarray, np.ndarray | None]:
        """Scores [n] of the model as it stands, and which rows may differ from the golden ones (None: any).

        Raises:
            CoupledRowsError: an error in one row changed other rows of its batch.
        """
        if not reached.dense and not len(reached.rows):
            return self.scores, reached.rows
        start = time.process_time()
        if len(reached.rows) > (FEW_AND_ALL if reached.dense else FEW) * self.n:
            scores = self._whole(reached.dense | reached.tables)
        else:
            scores = self._whole(reached.dense) if reached.dense else self.scores.copy()
            if len(reached.rows):
                scores[reached.rows] = self._by_themselves(reached.rows, scores)
        self._audit(scores, time.process_time() - start)
        return scores, None if reached.dense else reached.rows

    def _whole(self, hit: int) -> np.ndarray:
        """Scores [n] of all rows in the golden run's batches, with the kept outputs that errors in a set of tensors leave as
        they were."""
        with self.kept.replaying(self._flow.unaffected(hit), self.batches) as batches:
            return score(self._model, batches, self.n)

    def _by_themselves(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Scores of affected rows [m], in batches that hold unaffected rows too.

        These witnesses show whether an error in one row changes other rows of its batch, as a branch on the largest
        activation of the batch does: their scores must stay as they are in `scores` [n].
        """
        m = len(rows)
        total = max(64, m + WITNESSES * -(-m // (BATCH - WITNESSES)))
        total += -total % 32  # no padding is left to do
        random = np.random.default_rng([m, int(rows[0]), int(rows[-1])])  # the same witnesses whoever scores these rows
        drawn = random.integers(self.n, size=4 * (total - m))
        unaffected = drawn[rows[np.minimum(np.searchsorted(rows, drawn), m - 1)] != drawn]
        witnesses = np.resize(unaffected, total - m)
        is_witness = np.zeros(total, bool)
        is_witness[np.linspace(0, total - 1, total - m).astype(np.int64)] = True
        together = np.empty(total, np.int64)
        together[is_witness], together[~is_witness] = witnesses, rows
        found = score(self._model, padded_batches(self._split, rows=together), total)
        if not _near(found[is_witness], scores[witnesses]):
            raise CoupledRowsError
        return found[~is_witness]

    def _audit(self, scores: np.ndarray, seconds: float) -> None:
        """Compares scores of a rerun that took some CPU seconds with a full run, once in `AUDIT` times a full run's time."""
        self._unaudited_s += seconds
        if self._unaudited_s > AUDIT * self._full_run_s:
            start = time.process_time()
            full = score(self._model, self.batches, self.n)
            self._unaudited_s, self._full_run_s = 0.0, time.process_time() - start
            if not _near(scores, full):
                raise CoupledRowsError

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, stacklevel=4)


def _near(scores: np.ndarray, expected: np.ndarray) -> bool:
    """Whether scores are the expected ones within `BOUND`; NaN equals NaN."""
    if scores.tobytes() == expected.tobytes():
        return True
    return np.allclose(scores, expected, rtol=BOUND, atol=BOUND, equal_nan=True)


def _indexed(batch: "Batch") -> "Batch":
    """The batch, whose KeyedJaggedTensor has made and kept what it derives from its lengths: else the first module that asks
    would seem to hand that on to others behind the model's back, and could not be left out."""
    for jagged in batch.sparse_features.to_dict().values():
        jagged.offsets()
    batch.sparse_features.offset_per_key()
    return batch


def _union(parts: list[np.ndarray], n: int) -> np.ndarray:
    """The rows in any of some ascending arrays, ascending."""
    if len(parts) == 1:
        return parts[0]
    if sum(len(part) for part in parts) * 16 < n:
        return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
    found = np.zeros(n, bool)
    for part in parts:
        found[part] = True
    return np.flatnonzero(found)


def _told(batches: Iterator, lookups: Lookups) -> Iterator:
    """Batches, of each of which the look-ups are told."""
    for batch in batches:
        lookups.begin(batch)
        yield batch
