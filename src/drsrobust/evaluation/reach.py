"""What an error map reaches: which samples, and which operations.

- A tensor that no score depends on reaches nothing.
- Errors in rows of a table reach the samples that read those rows.
- Errors in any other tensor reach all samples, but only what is computed from that tensor on.
"""

import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from drsrobust.data import Split
from drsrobust.evaluation.dataflow import trace
from drsrobust.evaluation.kept import KeptOutputs
from drsrobust.evaluation.lookups import Lookups
from drsrobust.evaluation.programs import Programs
from drsrobust.evaluation.readers import ReadersOf
from drsrobust.injection import ErrorMap
from drsrobust.models import padded_batches, score
from drsrobust.tensors import named_modules

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

PROBE = 64  # rows scored once more, in a batch of their own
BOUND = 1e-5  # how far scores of one row may lie apart in two batches, relative to 1 + |score|
FEW = 0.5  # up to this share of the rows, samples are scored by themselves
FEW_BESIDES = 0.1  # the same, where all rows must be scored besides: more would cost what kept look-ups save


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
        budget: bytes that kept outputs and programs may take.

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
        golden = time.process_time() - start
        if tried is not None and not self._near(tried[: len(probe)]):
            self.all_rows = "its scores depend on which rows are scored together, or change from run to run"
            again = score(model, self.batches[:1], min(self.n, len(self.batches[0].labels)))
            if not np.array_equal(again, self.scores[: len(again)], equal_nan=True):
                self.everything = "its scores change from run to run"
        self.all_rows = self.everything or self.all_rows
        self._told: set[str] = set()
        self._readers = ReadersOf(split)
        together = [sum(1 << self._flow.number[table] for table in tables) for tables in lookups.collections()]
        self.programs = Programs(
            model,
            self.batches,
            self.n,
            self._flow,
            self.kept,
            together=together,
            budget=budget - self.kept.nbytes,
            golden=golden,
        )
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

    def intact(self, seconds: float | None = None) -> bool:
        """Whether the model without errors still gives the golden scores: all rows by what is kept of their batches and by each
        program (until seconds are over; the one used last in any case), and a few rows computed anew."""
        until = float("inf") if seconds is None else time.monotonic() + seconds
        if self.everything is None:
            for tried, scores in enumerate(chain([self.programs.scores(0)], self.programs.of_all_programs())):
                if not np.array_equal(scores, self.scores):
                    return False
                if tried and time.monotonic() > until:
                    break
        if self.all_rows is not None:
            return True  # a few rows by themselves have other scores
        anew = score(self._model, padded_batches(self._split, rows=self._probed), len(self._probed))
        return self._near(anew)

    def _near(self, scores: np.ndarray) -> bool:
        """Whether scores of the probed rows are the golden ones, within `BOUND`."""
        return np.allclose(scores, self.scores[self._probed], rtol=BOUND, atol=BOUND, equal_nan=True)

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
            if dense and len(rows[-1]) > FEW_BESIDES * self.n:
                break  # every sample is computed anyway, so no more must be known
        return Reached(dense, tables, _union(rows, self.n))

    def score(self, reached: Reached) -> tuple[np.ndarray, np.ndarray | None]:
        """Scores [n] of the model as it stands, and which rows may differ from the golden ones (None: any)."""
        if not reached.dense and not len(reached.rows):
            return self.scores, reached.rows
        changed = None if reached.dense else reached.rows
        if len(reached.rows) > (FEW_BESIDES if reached.dense else FEW) * self.n:
            return self.programs.scores(reached.dense | reached.tables), changed
        scores = self.programs.scores(reached.dense) if reached.dense else self.scores.copy()
        if len(reached.rows):
            batches = padded_batches(self._split, rows=reached.rows)
            scores[reached.rows] = score(self._model, batches, len(reached.rows))
        return scores, changed

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, stacklevel=4)


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
