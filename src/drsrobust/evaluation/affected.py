"""Which rows an error map affects, and their scores.

- A tensor that no score depends on affects no row.
- Errors in rows of a table affect the rows of data that look them up (an inverted index of a feature's ids).
- Errors in any other tensor affect all rows, but only modules that compute with that tensor or with what depends on it.
"""

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from drsrobust.data import Split
from drsrobust.data.dataset import Ids
from drsrobust.evaluation.cached_outputs import KeptOutputs, trace
from drsrobust.injection import ErrorMap
from drsrobust.introspection.embedding_modules import pooled_table_name, sparse_type, table_configs
from drsrobust.introspection.tensors import listed, named_modules
from drsrobust.introspection.wrappers import Forward, intercepted
from drsrobust.models import padded_batches, score
from drsrobust.models.scoring import BATCH

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch


class Readers:
    """An inverted index: the rows of data that look up given ids of one feature.

    The positions of the ids are sorted by ranges of neighbouring ids; within a range the ids are compared. With half as many
    ranges as ids the index takes at most 1.5 times the memory of the ids.

    Args:
        ids: of the feature, of n rows of data.

    Example:
        >>> Readers(Ids(np.array([3, 1, 3, 0], np.int32))).of(np.array([3]))
        array([0, 2])
    """

    def __init__(self, ids: Ids) -> None:
        self._ids, self._ends = ids, ids.ends()
        values = np.asarray(ids.values)
        self.cardinality = int(values.max()) + 1 if len(values) else 0
        self._shift = 0
        while (self.cardinality >> self._shift) + 2 > max(len(values) // 2, 2):
            self._shift += 1
        ranges = values >> self._shift
        self._positions = np.argsort(ranges, kind="stable").astype(np.int32 if len(values) < 2**31 else np.int64)
        counts = np.bincount(ranges, minlength=(self.cardinality >> self._shift) + 1)
        self._starts = np.concatenate(([0], np.cumsum(counts))).astype(self._positions.dtype)

    @property
    def nbytes(self) -> int:
        """Memory of the index, without the ids."""
        return self._positions.nbytes + self._starts.nbytes

    def of(self, ids: np.ndarray) -> np.ndarray:
        """The rows (int64, ascending) that look up any of some distinct ids, int64 [m]."""
        ids = ids[ids < self.cardinality]
        if not len(ids):
            return np.empty(0, np.int64)
        if len(ids) * 8 > self.cardinality:  # many: a scan of all ids is quicker than the index
            chosen = np.zeros(self.cardinality, bool)
            chosen[ids] = True
            positions = np.flatnonzero(chosen[self._ids.values])
        else:
            ranges = ids >> self._shift
            if self._shift:
                ranges = np.unique(ranges)
            starts, ends = self._starts[ranges].astype(np.int64), self._starts[ranges + 1].astype(np.int64)
            lengths = ends - starts
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            positions = self._positions[np.repeat(starts, lengths) + within].astype(np.int64)
            if self._shift:  # the ranges hold other ids too
                positions = positions[np.isin(self._ids.values[positions], ids)]
            positions.sort()
        if self._ends is None:
            return positions
        rows = np.searchsorted(self._ends, positions, side="right")
        return rows[np.append(True, rows[1:] != rows[:-1])] if len(rows) else rows


class ReadersOf:
    """The index of every feature of a split, made at its first use."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._made: dict[str, Readers] = {}

    def __getitem__(self, feature: str) -> Readers:
        if feature not in self._made:
            self._made[feature] = Readers(self._split.sparse[feature])
        return self._made[feature]

    @property
    def nbytes(self) -> int:
        """Memory of the indexes made so far."""
        return sum(readers.nbytes for readers in self._made.values())


class Lookups:
    """Observes the look-ups of a model while it scores all batches of a split.

    A table is read with a feature if its module got exactly that feature's ids in every batch: a model may hash, shuffle
    or drop ids, and then the rows that an error affects are unknown.

    Args:
        model: any module; TorchRec's collections, `nn.EmbeddingBag` and `nn.Embedding` are observed.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = dict(named_modules(model))
        everything = listed(model)
        self.tables: dict[str, list[str]] = {}  # tensor name -> the modules that look up in it
        self._modules: dict[str, nn.Module] = {}
        self._configs: dict[str, dict[str, tuple[str, ...]]] = {}  # collection -> table's tensor -> features
        for name, module in modules.items():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                for one in everything:
                    if one.tensor is module.weight:
                        self.tables.setdefault(one.name, []).append(name)
                        self._modules[name] = module
        for name, module in modules.items():
            found = {}
            for config in table_configs(module) or ():
                tensor = pooled_table_name(name, config.name)
                if any(one.name == tensor and one.table for one in everything):
                    found[tensor] = tuple(config.feature_names)
                    self.tables.setdefault(tensor, []).append(name)
            if found:
                self._modules[name], self._configs[name] = module, found
        self._found: dict[tuple[str, int], set[str]] = {}  # (module, number of its call in a batch) -> features
        self._wrong: set[str] = set()
        self._calls: dict[str, int] = {}
        self._batch: Any = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Observes look-ups while the block runs."""
        with intercepted(self._modules, self._around):
            yield

    def begin(self, batch: Any) -> None:
        """Called before each batch."""
        jagged = batch.sparse_features
        keys, values, bounds = jagged.keys(), jagged.values(), jagged.offset_per_key()
        lengths = jagged.lengths().view(len(keys), -1)
        self._batch = {
            key: (values[start:end], length)
            for key, start, end, length in zip(keys, bounds[:-1], bounds[1:], lengths, strict=True)
        }
        self._calls = {}

    def features(self, table: str) -> list[str] | None:
        """The features that a table is read with; None if unknown."""
        found: list[str] = []
        for name in self.tables.get(table, ()):
            if name in self._wrong:
                return None
            if name in self._configs:
                found += self._configs[name][table]
                continue
            calls = [features for (module, _), features in self._found.items() if module == name]
            if not all(calls):
                return None
            found += [min(features) for features in calls]
        return list(dict.fromkeys(found)) if table in self.tables else None

    def _around(self, name: str, forward: Forward) -> Forward:
        def observed(*args, **kwargs):
            if name in self._configs:
                self._note_collection(name, (*args, *kwargs.values()))
            else:
                ids = args[0] if args else kwargs.get("input")
                offsets = args[1] if len(args) > 1 else kwargs.get("offsets")
                self._note(name, ids, offsets)
            return forward(*args, **kwargs)

        return observed

    def _note_collection(self, name: str, inputs: tuple) -> None:
        jagged = next((value for value in inputs if sparse_type(value) == "KeyedJaggedTensor"), None)
        for feature in {feature for features in self._configs[name].values() for feature in features}:
            if jagged is None or feature not in set(jagged.keys()) or feature not in self._batch:
                self._wrong.add(name)
                return
            values, lengths = self._batch[feature]
            if not (_same(jagged[feature].values(), values) and _same(jagged[feature].lengths(), lengths)):
                self._wrong.add(name)

    def _note(self, name: str, ids: Any, offsets: Any) -> None:
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        candidates = self._found.get((name, call))
        if not isinstance(ids, torch.Tensor):
            self._found[name, call] = set()
            return
        flat = ids.reshape(-1)
        possible = self._batch if candidates is None else candidates
        matching = set()
        for feature in possible:
            values, lengths = self._batch[feature]
            # Without offsets each row of a matrix of ids is a bag, which fits features with one id per row.
            bags = _bags(offsets, len(flat), lengths) if offsets is not None else len(values) == len(lengths)
            if (bags or isinstance(self._modules[name], nn.Embedding)) and _same(flat, values):
                matching.add(feature)
        self._found[name, call] = matching


def _bags(offsets: torch.Tensor, n: int, lengths: torch.Tensor) -> bool:
    """Whether offsets [B] or [B + 1] cut n ids into bags of these lengths [B]."""
    ends = torch.cat((offsets.reshape(-1)[: len(lengths)].long(), torch.tensor([n], device=offsets.device)))
    return len(offsets.reshape(-1)) >= len(lengths) and _same(ends.diff(), lengths)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one == other.to(one.device)).all())


PROBE = 64  # rows scored again, in a batch of their own
BOUND = 1e-5  # difference of one row's scores in two batches, at most, relative to 1 + |score|
FEW = 0.5  # share of rows up to which affected rows are scored by themselves
FEW_AND_ALL = 0.1  # the same if dense tensors are hit too; above it, scoring all rows with cached outputs is faster
WITNESSES = 16  # unaffected rows in each batch of affected ones, whose scores must not change
AUDIT = 50  # times a full run's duration, in reruns, between two comparisons with a full run


class ReachWarning(UserWarning):
    """A rerun cannot be limited to the rows that read the wrong table rows, so it scores all rows: slower, equally exact."""


class CoupledRowsError(Exception):
    """An error in one row changed the scores of other rows in its batch, so rows cannot be scored by themselves."""


@dataclass(frozen=True)
class Reached:
    """The rows and tensors that errors affect.

    Attributes:
        dense: tensors (numbers of `Dataflow`, as bits) whose errors affect every row.
        tables: tensors whose errors affect `rows`.
        rows: int64, ascending.
    """

    dense: int
    tables: int
    rows: np.ndarray


class Reach:
    """The golden run of a model on a split, and the rows that errors affect.

    Args:
        model: without errors.
        split: the rows.
        budget: bytes of cached outputs.

    Attributes:
        scores: of the golden run, [n].
        all_rows: why errors in tables count as affecting every row; None if the affected rows are known.
        everything: why every rerun is a full run; None otherwise.
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
            self.scores = score(model, _announced(batches, lookups), self.n)
        self._full_run_s = time.process_time() - start
        self._unaudited_s = 0.0
        if tried is not None and not self._near(tried[: len(probe)]):
            self.all_rows = "its scores depend on which rows are scored together, or change from run to run"
            again = score(model, self.batches[:1], min(self.n, len(self.batches[0].labels)))
            if not np.array_equal(again, self.scores[: len(again)], equal_nan=True):
                self.everything = "its scores change from run to run"
        self.all_rows = self.everything or self.all_rows
        self._warned: set[str] = set()
        self._readers = ReadersOf(split)
        self._features = {name: lookups.features(name) for name in lookups.tables}

    @property
    def index_bytes(self) -> int:
        """Memory of the inverted indexes made so far."""
        return self._readers.nbytes

    def why_all_rows(self, table: str) -> str | None:
        """Why errors in a table count as affecting every row; None if the affected rows are known."""
        if self.all_rows:
            return self.all_rows
        if not self._features.get(table):
            return "it looks up other ids than the split's"
        if self._flow.elsewhere >> self._flow.number[table] & 1:
            return "it reads the table outside of the look-up too"
        return None

    def intact(self) -> bool:
        """Whether the model without errors gives the golden scores: all rows with cached outputs, and a few rows without."""
        if self.everything is None and not np.array_equal(self._whole(0), self.scores):
            return False
        if self.all_rows is not None:
            return True  # a few rows by themselves have other scores
        return self._near(score(self._model, padded_batches(self._split, rows=self._probed), len(self._probed)))

    def _near(self, scores: np.ndarray) -> bool:
        """Whether scores of the probed rows are the golden ones, within `BOUND`."""
        return _near(scores, self.scores[self._probed])

    def of(self, maps: Iterable[ErrorMap]) -> Reached:
        """The rows and tensors that the errors of several maps together affect."""
        dense = tables = 0
        hits: list[tuple[float, str, np.ndarray, int]] = []
        for error_map in maps:
            for entry, entries in list(error_map.by_tensor()):
                fingerprint = error_map.fingerprint[entry]
                number = self._flow.number.get(fingerprint.name)
                if number is None or not self._flow.result >> number & 1:
                    continue  # an optimizer's state, or a tensor that is never read
                if fingerprint.name not in self._features:
                    dense |= 1 << number
                elif why := self.why_all_rows(fingerprint.name):
                    self._warn(f"errors in {fingerprint.name} count as affecting every row: {why}")
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
                break  # every row is computed anyway
        return Reached(dense, tables, _union(rows, self.n))

    def score(self, reached: Reached) -> tuple[np.ndarray, np.ndarray | None]:
        """Scores [n] of the model with its present errors, and the rows that may differ from the golden scores (None: any).

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
        """Scores [n] of all rows in the golden run's batches, with the cached outputs that errors in a set of tensors do not
        change."""
        with self.kept.replaying(self._flow.unaffected(hit), self.batches) as batches:
            return score(self._model, batches, self.n)

    def _by_themselves(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Scores of affected rows [m], in batches with some unaffected rows, whose scores must stay as in `scores` [n].

        So an error in one row that changes other rows of its batch is found, as with a branch on the batch's largest
        activation.
        """
        m = len(rows)
        total = max(64, m + WITNESSES * -(-m // (BATCH - WITNESSES)))
        total += -total % 32  # so that no padding is needed
        random = np.random.default_rng([m, int(rows[0]), int(rows[-1])])  # the same witnesses in every process
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
        """Compares a rerun with a full run, once in `AUDIT` times a full run's duration."""
        self._unaudited_s += seconds
        if self._unaudited_s > AUDIT * self._full_run_s:
            start = time.process_time()
            full = score(self._model, self.batches, self.n)
            self._unaudited_s, self._full_run_s = 0.0, time.process_time() - start
            if not _near(scores, full):
                raise CoupledRowsError

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, ReachWarning, stacklevel=4)


def _near(scores: np.ndarray, expected: np.ndarray) -> bool:
    """Whether scores are the expected ones within `BOUND`; NaN equals NaN."""
    if scores.tobytes() == expected.tobytes():
        return True
    return np.allclose(scores, expected, rtol=BOUND, atol=BOUND, equal_nan=True)


def _indexed(batch: "Batch") -> "Batch":
    """The batch with the derived values of its KeyedJaggedTensor made: else they would count as made by the first module that
    uses them, whose output could then not be cached."""
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


def _announced(batches: Iterator, lookups: Lookups) -> Iterator:
    """The batches, each announced to the look-ups."""
    for batch in batches:
        lookups.begin(batch)
        yield batch
