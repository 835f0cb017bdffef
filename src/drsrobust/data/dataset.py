"""Data sets in memory: encoded columns in three splits, and the batches made of them."""

import csv
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drsrobust._arguments import check_whole, wrong
from drsrobust._choices import check_choice
from drsrobust._hashing import digest

DATA_TASKS = ("click", "ranking")  # labels of 0 and 1 (also of several tasks), or relevant items
SKIPPED = "skipped.csv"  # of a folder of the cache: lines of raw files that were skipped

Skipped = tuple[str, int, str]  # file name, line number from 1, fault


@dataclass(frozen=True)
class Feature:
    """One sparse feature with ids 0 .. cardinality - 1; id 0 means "not in the vocabulary" (`synthetic-dummy` has none)."""

    name: str
    cardinality: int
    multi_hot: bool = False


@dataclass(frozen=True)
class Schema:
    """Names of the dense columns, and the sparse features, in the order of the models' inputs."""

    dense: tuple[str, ...]
    features: tuple[Feature, ...]

    @classmethod
    def of(cls, form: dict[str, Any]) -> "Schema":
        """Of its JSON form, as `asdict` gives it."""
        return cls(tuple(form["dense"]), tuple(Feature(**feature) for feature in form["features"]))


class Ids(NamedTuple):
    """The ids of one feature: int32 values [sum of lengths], and their number per row, int32 [n] (None: one each)."""

    values: np.ndarray
    lengths: np.ndarray | None = None

    def ends(self) -> np.ndarray | None:
        """The end of each row's ids in `values` [n] int64; None if each row has one."""
        return None if self.lengths is None else np.cumsum(self.lengths, dtype=np.int64)

    def take(self, rows: np.ndarray | slice, ends: np.ndarray | None = None) -> "Ids":
        """The ids of `rows`, in their order; passing `ends()` saves a pass over all rows."""
        if self.lengths is None:
            return Ids(self.values[rows])
        ends = self.ends() if ends is None else ends
        lengths = self.lengths[rows]
        starts = ends[rows] - lengths
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Ids(self.values[np.repeat(starts, lengths) + within], lengths)


def checked_task(task: str, tasks: Collection[str] = DATA_TASKS) -> str:
    """A task by its name.

    Raises:
        ValueError: an unknown task.
    """
    check_choice("task", task, tasks)
    return task


def click_rate(labels: np.ndarray) -> float:
    """The mean of the labels that were observed; 0.5 if none was."""
    observed = labels if not np.isnan(labels).any() else labels[~np.isnan(labels)]
    return float(np.mean(observed)) if observed.size else 0.5


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of one data set. All arrays have the same n rows (NumPy, perhaps memory-mapped: do not write to them).

    Attributes:
        dense: float32 [n, D]; D may be 0.
        sparse: feature name -> Ids.
        labels: float32 [n], 0 or 1; [n, T] of several tasks, NaN where a label was not observed; or Ids: the relevant items of
            each row.
        users: int64 [n], the raw id of the row's user; None where the data has none.
        rows: int64 [n], the row's number in the raw data, from 0; skipped lines do not count.
        dataset: name of the data set with its schema, as `movielens-1m/full`.
        part: `train`, `valid` or `test`.
        prior: click rate of the training rows.
        source: hash of the whole data set, and of `prior` and `tasks` where it does not decide them.
        whole: number of rows of the whole part.
        tasks: names of the T tasks; none for one.
    """

    dense: np.ndarray
    sparse: dict[str, Ids]
    labels: np.ndarray | Ids
    users: np.ndarray | None
    rows: np.ndarray
    dataset: str
    part: str
    prior: float
    source: str
    whole: int
    tasks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        rates = "" if isinstance(self.labels, Ids) or not len(self) else f", click rate {click_rate(self.labels):.3f}"
        return f"<Split {self.dataset} {self.part}: {len(self):,} rows{rates}>"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of `source` and the row numbers, in order."""
        return digest([self.source, hashlib.sha256(np.ascontiguousarray(self.rows)).hexdigest()])

    @cached_property
    def _ends(self) -> dict[str, np.ndarray | None]:
        return {name: ids.ends() for name, ids in self.sparse.items()}

    def take(self, rows: np.ndarray | slice) -> "Split":
        """The split of some rows: an index array [m], a boolean mask [n] or a slice."""
        if not isinstance(rows, slice):
            given = np.asarray(rows)
            if given.dtype.kind not in "biu" and given.size:
                raise wrong("rows", "row numbers [m], a mask [n] or a slice", rows)
            if given.dtype == bool and given.shape != (len(self),):
                raise ValueError(f"rows is a mask of shape {given.shape}; it must be [{len(self)}]")
            rows = np.flatnonzero(given) if given.dtype == bool else given.astype(np.int64)
            if rows.ndim != 1:
                raise ValueError(
                    f"rows must be one-dimensional, got shape {rows.shape}; take([5]) takes one row, head(5) five"
                )
        return replace(
            self,
            dense=self.dense[rows],
            sparse={name: ids.take(rows) for name, ids in self.sparse.items()},
            labels=self.labels.take(rows) if isinstance(self.labels, Ids) else self.labels[rows],
            users=None if self.users is None else self.users[rows],
            rows=self.rows[rows],
        )

    def head(self, n: int) -> "Split":
        """The first n rows, or all if there are fewer. Splits are in random order, so this is a random sample."""
        return self.take(slice(check_whole("the number of rows", n, 1)))

    def batch(self, rows: np.ndarray | slice = slice(None)) -> Any:
        """Some rows as one TorchRec `Batch`: dense [B, D] float32, a KeyedJaggedTensor of int32 ids, labels [B] or [B, T].

        Labels of lists of items are the first one of each, int64 [B], -1 where there is none. Without TorchRec it is an object
        with the same methods (`drsrobust.data.batch`)."""
        import torch

        from drsrobust.data.batch import make_batch

        dense = torch.from_numpy(np.array(self.dense[rows], np.float32))
        ids = {name: column.take(rows, self._ends[name]) for name, column in self.sparse.items()}
        ones = np.ones(len(dense), np.int32)
        lengths = [ones if column.lengths is None else column.lengths for column in ids.values()]
        values = [column.values for column in ids.values()] or [np.empty(0, np.int32)]
        return make_batch(
            dense,
            list(ids),
            torch.from_numpy(np.concatenate(values)),
            torch.from_numpy(np.concatenate(lengths or [np.empty(0, np.int32)])),
            torch.from_numpy(self.labels_of(rows)),
        )

    def labels_of(self, rows: np.ndarray | slice) -> np.ndarray:
        """The labels of some rows as their batch has them."""
        if not isinstance(self.labels, Ids):
            return np.array(self.labels[rows], np.float32)
        chosen = self.labels.take(rows)
        first, some = np.full(len(self.rows[rows]), -1, np.int64), chosen.lengths > 0
        first[some] = chosen.values[(np.cumsum(chosen.lengths) - chosen.lengths)[some]]
        return first

    def batches(self, size: int, *, order: np.ndarray | None = None) -> Iterator[Any]:
        """The rows as batches of `size` (the last may be smaller), in `order` (int64 [m]; None: as they are)."""
        size = check_whole("batch size", size, 1)
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield self.batch(rows if order is None else order[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set, split and encoded.

    Attributes:
        name: with the schema, as `movielens-1m/full`.
        schema: names of the columns and features.
        train, valid, test: disjoint seeded random splits, 80/10/10; of a user's rows as she asked for.
        fingerprint: SHA-256 (hex) of schema and contents: equal on every machine for equal data.
        facts: of a synthetic set: `click_rate` and `best_auc` of the planted teacher (None if all test rows are of one class).
        log: the file that lists skipped lines; None if no line was skipped.
        folder: of the cache, from which the arrays are mapped.
    """

    name: str
    schema: Schema
    train: Split
    valid: Split
    test: Split
    fingerprint: str
    facts: dict[str, float | None] = field(default_factory=dict)
    log: Path | None = None
    folder: Path | None = None

    @cached_property
    def skipped(self) -> tuple[Skipped, ...]:
        """The lines that `bad_lines="skip"` skipped: (file name, line number from 1, fault)."""
        return () if self.log is None else read_skipped(self.log)

    @property
    def synthetic(self) -> bool:
        """Whether the rows were generated."""
        return self.name.startswith("synthetic-")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{part} {len(getattr(self, part)):,}" for part in ("train", "valid", "test"))
        features = ", ".join(f"{f.name} {f.cardinality:,}" for f in self.schema.features)
        return f"<Dataset {self.name}: {sizes} rows; {len(self.schema.dense)} dense; ids: {features}>"


def read_skipped(path: Path) -> tuple[Skipped, ...]:
    """The list, in the order of the lines."""
    with open(path, newline="", encoding="utf-8") as handle:
        return tuple((file, int(line), reason) for file, line, reason in list(csv.reader(handle))[1:])
