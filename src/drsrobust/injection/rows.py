"""The target `Rows`: some rows of one table, by number or by how often a split reads them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import floor
from typing import Any

import numpy as np
from torch import nn

from drsrobust._arguments import check_number, check_rate, check_text, wrong
from drsrobust._choices import unknown
from drsrobust.injection.stored import Memory
from drsrobust.injection.targets import Chosen, Target
from drsrobust.introspection.embedding_modules import table_configs
from drsrobust.introspection.tensors import named_modules


@dataclass(frozen=True, eq=False)
class Rows(Target):
    """Some rows of one table.

    Args:
        table: a tensor's name, the name of an embedding table, or a glob that matches one tensor.
        rows: row numbers (any order, any integers that NumPy takes), a boolean mask or a slice.

    `Rows.hot`, `Rows.cold` and `Rows.quantile` choose rows by how often a split reads them.

    Example:
        >>> from drsrobust.injection import resolve
        >>> space = resolve(nn.EmbeddingBag(10, 4), Rows("weight", [7, 2]))
        >>> space.tensors[0].rows, space.bits
        (array([2, 7]), 256)
    """

    table: str
    rows: Any
    label: str | None = field(default=None, init=False, repr=False)
    order: str | None = field(default=None, init=False, repr=False)  # "hot", "cold" or "quantile"; None: listed rows
    share: float | None = field(default=None, init=False, repr=False)  # of all rows of the table

    def __post_init__(self) -> None:
        check_text("table", self.table, "the name of a table, or a glob")
        if isinstance(self.rows, slice | _Ranked):
            return
        try:
            rows = np.asarray(self.rows)
        except ValueError:  # lists of different lengths
            rows = np.empty((0, 0))
        if rows.ndim != 1 or not rows.size or (rows.dtype != bool and not np.issubdtype(rows.dtype, np.integer)):
            raise wrong("rows", "row numbers, a mask or a slice", self.rows)

    @classmethod
    def hot(cls, table: str, split: Any, share: float) -> "Rows":
        """The most read `share` of a table's rows (at least one).

        Args:
            table: as in `Rows`.
            split: the rows of data whose reads are counted: `split.sparse[feature]` are (values, lengths).
            share: 0 < share <= 1, of all rows of the table; of rows read equally often the lower number goes first.
        """
        share = _checked_share("share", share)
        return cls._ranked(table, split, 0.0, share, "hot", f"hot {share:g}", share)

    @classmethod
    def cold(cls, table: str, split: Any, share: float) -> "Rows":
        """The least read `share` of a table's rows (at least one), unread ones included. Arguments as in `hot`."""
        share = _checked_share("share", share)
        return cls._ranked(table, split, 1 - share, 1.0, "cold", f"cold {share:g}", share)

    @classmethod
    def quantile(cls, table: str, split: Any, low: float, high: float) -> "Rows":
        """The rows from share `low` to share `high` of the table, ordered from the most to the least read; of rows read
        equally often the lower number goes first. Adjacent shares partition the rows; an empty one is refused."""
        low, high = check_rate("low", low), check_rate("high", high)
        return cls._ranked(table, split, low, high, "quantile", f"quantile {low:g} to {high:g}", high - low)

    @classmethod
    def _ranked(cls, table: str, split: Any, low: float, high: float, order: str, label: str, share: float) -> "Rows":
        if not 0 <= low < high <= 1:
            raise ValueError(f"shares of a table's rows must satisfy 0 <= low < high <= 1, got {low} and {high}")
        if not isinstance(getattr(split, "sparse", None), Mapping):
            raise wrong("split", "a Split, as data.train", split)
        rows = cls(table, _Ranked(split, low, high))
        label = f"{label} of {getattr(split, 'fingerprint', '')[:12]}"
        for name, value in (("label", label), ("order", order), ("share", share)):
            object.__setattr__(rows, name, value)
        return rows

    def __str__(self) -> str:
        return f"Rows({self.table}, {self.label or _row_text(self.rows)})"

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        name = _table(self.table, memory)
        if not memory[name].tensor.dim():
            raise ValueError(f"{name} is a single number and has no rows")
        n = memory[name].tensor.shape[0]
        if isinstance(self.rows, _Ranked):
            return {name: self.rows.rows(n, name, model)}
        if isinstance(self.rows, slice):
            return {name: np.arange(n)[self.rows]}
        rows = np.asarray(self.rows)
        if rows.dtype == bool and rows.shape == (n,):
            rows = np.flatnonzero(rows)
        if rows.dtype == bool or not rows.size:
            raise ValueError(f"rows of {name} are {self.rows!r}; they must be row numbers, a mask [{n}] or a slice")
        if rows.min() < 0 or rows.max() >= n:
            wrong = rows[(rows < 0) | (rows >= n)][0]
            raise ValueError(f"row {wrong} does not exist in {name}; it has rows 0 to {n - 1}")
        return {name: np.unique(rows).astype(np.int64)}


@dataclass(frozen=True)
class _Ranked:
    """Rows by how often a split reads them."""

    split: Any
    low: float
    high: float

    def rows(self, n: int, name: str, model: nn.Module) -> np.ndarray:
        reads = np.zeros(n, np.int64)
        for feature in _features_of(name, model, self.split.sparse):
            ids = np.asarray(self.split.sparse[feature][0])
            if len(ids) and (ids.min() < 0 or ids.max() >= n):
                wrong = ids.min() if ids.min() < 0 else ids.max()
                raise ValueError(f"{name} has {n} rows, but feature {feature!r} of the split reads row {wrong}")
            reads += np.bincount(ids, minlength=n)
        order = np.argsort(-reads, kind="stable")
        first, last = (floor(round(share * n, 6)) for share in (self.low, self.high))
        if self.low == 0:  # at least one of the most read
            last = max(last, 1)
        if self.high == 1:  # at least one of the least read
            first = min(first, n - 1)
        if first == last:
            raise ValueError(f"no row of {name} lies between share {self.low:g} and {self.high:g} of its {n}")
        return np.sort(order[first:last])


def _checked_share(name: str, share: float) -> float:
    return check_number(name, share, "a number over 0, at most 1", lambda share: 0 < share <= 1)


def _row_text(rows: Any) -> str:
    """Rows as text: all of a few, else how many and a hash."""
    if isinstance(rows, slice):
        return str(rows)
    numbers = np.asarray(rows)
    if numbers.size <= 8:
        return str(numbers.tolist())
    return f"{numbers.size} given, {hashlib.sha256(numbers.tobytes() + str(numbers.dtype).encode()).hexdigest()[:12]}"


def _table(table: str, memory: Memory) -> str:
    """The name of a table's tensor."""
    first = {name: memory.first.get(name, name) for name in memory.component}
    if table in first:
        return first[table]
    matches = {first[name] for name in first if f".{name}".endswith(f".{table}.weight")}
    matches = matches or {first[name] for name in first if fnmatchcase(name, table)}
    # A feature's first-order weights often have a table of the same name: prefer the embedding.
    matches = {name for name in matches if memory.component[name] == "embedding"} or matches
    if len(matches) == 1:
        return matches.pop()
    if matches:
        raise ValueError(f"table {table!r} could be {', '.join(sorted(matches))}; name one of them")
    raise unknown("table", table, sorted(name for name in first if memory[first[name]].tensor.dim() > 1))


def _features_of(name: str, model: nn.Module, features: Mapping[str, Any]) -> list[str]:
    """The features of a split that read a table: as TorchRec's configuration says, else the one of the table's name."""
    for prefix, module in named_modules(model):
        for config in table_configs(module) or ():
            if name.startswith(f"{prefix}." if prefix else "") and f".{name}".endswith(f".{config.name}.weight"):
                if missing := [feature for feature in config.feature_names if feature not in features]:
                    raise unknown(f"feature (which reads {name})", missing[0], features)
                return list(config.feature_names)
    parts = [part for part in name.split(".") if part in features]
    if len(parts) != 1:
        raise ValueError(f"which feature reads {name}? The split has {', '.join(features)}, and none has its name")
    return parts
