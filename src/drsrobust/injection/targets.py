"""Targets at rest: which of a model's stored words errors may hit.

A target is a string (`"all"`, a component, a glob on tensor names) or one of the classes here; `a | b` is both. What is
transient (inputs, activations, gradients) is in `drsrobust.injection.transient`.

Targets among the rows of a table: by number, by how often data reads them, by a hash."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import floor
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust._environment import unknown
from drsrobust.injection.address_space import (
    OPTIMIZER,
    AddressSpace,
    Memory,
    TargetTensor,
    check,
    hittable,
    optimizer_states,
    refuse_overlaps,
    stored,
    warn_of_hidden_words,
)
from drsrobust.introspection.tensors import GROUPS, declared_groups, group_of, named_modules

Chosen = dict[str, np.ndarray | None]  # tensor name -> which of its rows (int64, ascending); None: all


class Target(ABC):
    """Which stored words may be hit. `a | b` is what either means."""

    optimizer: Any = None

    @abstractmethod
    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        """Names of the targeted tensors, and their rows.

        Args:
            model: any module.
            memory: what is stored in it.
        """

    def resolve(self, model: nn.Module, components: Mapping[str, str] | None = None) -> AddressSpace:
        """The address space of this target in a model.

        Warns:
            UserWarning: once for a model with weights that no target can hold.

        Raises:
            TypeError, ValueError: as `drsrobust.injection.resolve`.
        """
        memory = stored(model, self.optimizer, components)
        warn_of_hidden_words(model)
        tensors = []
        for name, rows in sorted(self.choose(model, memory).items()):
            here = memory[name]
            check(name, here.tensor)
            tensors.append(
                TargetTensor(name, memory.component[name], tuple(here.tensor.shape), here.format, rows, here)
            )
        space = AddressSpace(tensors)
        if not space.tensors:
            raise ValueError(f"target {str(self)!r} matches nothing with any element; {_what_there_is(model, memory)}")
        refuse_overlaps({tensor.name: tensor.memory for tensor in space.tensors})
        return space

    def __or__(self, other: "Target | str") -> "Target":
        return Union((self, as_target(other)))

    def __ror__(self, other: str) -> "Target":
        return Union((as_target(other), self))


def as_target(target: "Target | str") -> Target:
    """A target given as a string or as it is.

    Raises:
        ValueError: something else.
    """
    if isinstance(target, str):
        return Named(target)
    if isinstance(target, Target):
        return target
    raise ValueError(
        f"target is {target!r}; it must be 'all', 'everything', a component, a glob on tensor names or a target as Rows(...)"
    )


@dataclass(frozen=True)
class Named(Target):
    """What a string means: `all` (parameters and quantized tables), `everything` (and buffers, but for complex and bool ones),
    a tensor's name, a component, a group (of all models, or one that this model declares), else a glob on tensor names."""

    text: str

    def __str__(self) -> str:
        return self.text

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        text = self.text
        if text in ("all", "everything"):
            kept = (
                name for name, one in memory.items() if one.parameter or (text == "everything" and hittable(one.tensor))
            )
            return dict.fromkeys(name for name in kept if not name.startswith(OPTIMIZER))
        # Further names of tied tensors are among them.
        names = [name for name in memory.component if not name.startswith(OPTIMIZER)]
        first = {name: memory.first.get(name, name) for name in names}
        if text in first:
            return {first[text]: None}
        parameters = {name for name in names if memory[first[name]].parameter}
        own = {name for name in names if memory.component[name] == text}
        own = own & parameters or own  # a component of buffers alone is its buffers
        own = own or {name for name in parameters if text in group_of(memory.component[name])}
        globs = declared_groups(model).get(text, ())
        own = own or {name for name in parameters if any(fnmatchcase(name, glob) for glob in globs)}
        own = own or {name for name in names if fnmatchcase(name, text)}
        return dict.fromkeys(first[name] for name in own)


@dataclass(frozen=True)
class Dtype(Target):
    """Parameters and buffers whose words are of one dtype.

    Args:
        dtype: as `torch.float16` or `"float16"`. Quantized rows of integers count as `uint8`.
        within: which of them: a target.
    """

    dtype: torch.dtype | str
    within: "Target | str" = "everything"

    def __post_init__(self) -> None:
        dtype = getattr(torch, self.dtype, None) if isinstance(self.dtype, str) else self.dtype
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"dtype is {self.dtype!r}; it must be a torch.dtype or its name, as 'float16'")
        object.__setattr__(self, "dtype", dtype)

    def __str__(self) -> str:
        within = "" if str(self.within) == "everything" else f", within={self.within}"
        return f"Dtype({str(self.dtype).removeprefix('torch.')}{within})"

    @property
    def optimizer(self) -> Any:
        """That of `within`."""
        return as_target(self.within).optimizer

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        chosen = as_target(self.within).choose(model, memory)
        return {name: rows for name, rows in chosen.items() if memory[name].dtype == self.dtype}


@dataclass(frozen=True, eq=False)
class OptimizerState(Target):
    """An optimizer's state between two steps: moments, sums of squares, step counts.

    Its tensors are named `optimizer.<parameter>.<state>`, as `optimizer.0.weight.exp_avg`, and belong to their parameter's
    component. A map that hits them is applied again by `error_map.applied(model, optimizer=...)`.

    Args:
        optimizer: a `torch.optim.Optimizer` or one of TorchRec's; it must have made a step, or it has no state.
        glob: on names without `optimizer.`, as `*.exp_avg_sq`.
    """

    optimizer: Any = field(repr=False)
    glob: str = "*"

    def __str__(self) -> str:
        return f"OptimizerState({self.glob})"

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        names = optimizer_states(model, self.optimizer)
        chosen = [name for name in names if fnmatchcase(name.removeprefix(OPTIMIZER), self.glob)]
        if not chosen:
            there = ", ".join(name.removeprefix(OPTIMIZER) for name in names)
            why = "take a step first" if not self.optimizer.state else "it is the optimizer of other parameters"
            what = f"there are: {there}" if there else f"there is none of this model: {why}"
            raise ValueError(f"no optimizer state matches {self.glob!r}; {what}")
        return dict.fromkeys(chosen)


@dataclass(frozen=True)
class Union(Target):
    """What any of some targets means; each word once."""

    parts: tuple[Target, ...]

    @property
    def optimizer(self) -> Any:
        """The optimizer of its parts; there can be one."""
        found = {id(part.optimizer): part.optimizer for part in self.parts if part.optimizer is not None}
        if len(found) > 1:
            raise ValueError(f"{self} names the states of {len(found)} optimizers; target one at a time")
        return next(iter(found.values()), None)

    def __str__(self) -> str:
        return " | ".join(sorted(str(part) for part in self.parts))

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        chosen: Chosen = {}
        for part in self.parts:
            found = part.choose(model, memory)
            if not found:
                raise ValueError(f"target {str(part)!r} matches nothing; {_what_there_is(model, memory)}")
            for name, rows in found.items():
                known = chosen.get(name, rows)
                chosen[name] = None if rows is None or known is None else np.union1d(known, rows)
        return chosen


def _what_there_is(model: nn.Module, memory: Memory) -> str:
    components = sorted({memory.component[name] for name in memory})
    groups = {group for group in GROUPS if any(group in group_of(component) for component in components)}
    groups = sorted(groups | set(declared_groups(model)))
    return f"components: {', '.join(components + groups)}; tensors: {', '.join(sorted(memory))}"


@dataclass(frozen=True, eq=False)
class Rows(Target):
    """Some rows of one table.

    Args:
        table: a tensor's name, the name of an embedding table, or a glob that matches one tensor.
        rows: row numbers (any order, any integers that NumPy takes), a boolean mask or a slice.

    `Rows.hot`, `Rows.cold` and `Rows.quantile` choose by how often a split reads them, `Rows.hashed` by a hash.

    Example:
        >>> from drsrobust.injection import resolve
        >>> space = resolve(nn.EmbeddingBag(10, 4), Rows("weight", [7, 2]))
        >>> space.tensors[0].rows, space.bits
        (array([2, 7]), 256)
    """

    table: str
    rows: Any
    label: str | None = field(default=None, repr=False)

    @classmethod
    def hot(cls, table: str, split: Any, share: float) -> "Rows":
        """The most read `share` of a table's rows (at least one).

        Args:
            table: as in `Rows`.
            split: the rows of data whose reads are counted: `split.sparse[feature]` are (values, lengths).
            share: 0 < share <= 1, of all rows of the table; of rows read equally often the lower number goes first.
        """
        return cls.quantile(table, split, 0.0, share, _label=f"hot {share:g}")

    @classmethod
    def cold(cls, table: str, split: Any, share: float) -> "Rows":
        """The least read `share` of a table's rows (at least one), never read ones among them. Arguments as in `hot`."""
        return cls.quantile(table, split, 1 - share, 1.0, _label=f"cold {share:g}")

    @classmethod
    def quantile(cls, table: str, split: Any, low: float, high: float, *, _label: str | None = None) -> "Rows":
        """The rows from share `low` to share `high` of the table, in the order from the most to the least read; of rows read
        equally often the lower number goes first. Shares that follow each other share no row and leave none out; one of less
        than a row may hold none, which is refused."""
        if not 0 <= low < high <= 1:
            raise ValueError(
                f"rows from share {low} to {high} of a table were asked for; 0 <= low < high <= 1 is possible"
            )
        if not isinstance(getattr(split, "sparse", None), Mapping):
            raise TypeError(f"split is a {type(split).__name__}; it must be a Split, as data.train")
        name = f"{_label or f'quantile {low:g} to {high:g}'} of {getattr(split, 'fingerprint', '')[:12]}"
        return cls(table, _Ranked(split, low, high), name)

    @classmethod
    def hashed(cls, table: str, buckets: int, bucket: int = 0) -> "Rows":
        """The rows whose hash falls into one of `buckets` equal buckets: a fixed sample, spread evenly over the table. The
        hash is the finaliser of SplitMix64 (Steele et al., OOPSLA 2014) modulo the number of buckets."""
        if not isinstance(buckets, int) or not isinstance(bucket, int) or not 0 <= bucket < buckets:
            raise ValueError(
                f"bucket {bucket!r} of {buckets!r} was asked for; there are 0 to the number of buckets - 1"
            )
        return cls(table, _Hashed(buckets, bucket), f"hash {bucket} of {buckets}")

    def __str__(self) -> str:
        return f"Rows({self.table}, {self.label or _short(self.rows)})"

    def choose(self, model: nn.Module, memory: Memory) -> Chosen:
        name = _table(self.table, memory)
        if not memory[name].tensor.dim():
            raise ValueError(f"{name} is a single number and has no rows")
        n = memory[name].tensor.shape[0]
        if isinstance(self.rows, _Ranked | _Hashed):
            return {name: self.rows.rows(n, name, model)}
        if isinstance(self.rows, slice):
            return {name: np.arange(n)[self.rows]}
        rows = np.asarray(self.rows)
        if rows.dtype == bool and rows.shape == (n,):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
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
            if len(ids) and ids.min() < 0:
                raise ValueError(f"feature {feature!r} of the split reads row {ids.min()} of {name}")
            counted = np.bincount(ids, minlength=n)
            if len(counted) > n:
                raise ValueError(
                    f"{name} has {n} rows, but feature {feature!r} of the split reads row {len(counted) - 1}"
                )
            reads += counted
        order = np.argsort(-reads, kind="stable")
        first, last = (floor(round(share * n, 6)) for share in (self.low, self.high))
        if self.low == 0:  # the most read ones: at least one
            last = max(last, 1)
        if self.high == 1:  # the least read ones
            first = min(first, n - 1)
        if first == last:
            raise ValueError(f"no row of {name} lies between share {self.low:g} and {self.high:g} of its {n}")
        return np.sort(order[first:last])


@dataclass(frozen=True)
class _Hashed:
    """Rows by a hash of their number."""

    buckets: int
    bucket: int

    def rows(self, n: int, name: str, model: nn.Module) -> np.ndarray:
        z = np.arange(n, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        rows = np.flatnonzero(z % np.uint64(self.buckets) == self.bucket)
        if not len(rows):
            raise ValueError(f"none of the {n} rows of {name} falls into bucket {self.bucket} of {self.buckets}")
        return rows


def _short(rows: Any) -> str:
    """Given rows as text: all of a few, else how many and a hash."""
    if isinstance(rows, slice):
        return str(rows)
    numbers = np.asarray(rows)
    if numbers.size <= 8:
        return str(numbers.tolist())
    return f"{numbers.size} given, {hashlib.sha256(numbers.tobytes() + str(numbers.dtype).encode()).hexdigest()[:12]}"


def _table(table: str, memory: Memory) -> str:
    """The name of the tensor that a table's name means."""
    first = {name: memory.first.get(name, name) for name in memory.component}
    if table in first:
        return first[table]
    matches = {first[name] for name in first if f".{name}".endswith(f".{table}.weight")}
    matches = matches or {first[name] for name in first if fnmatchcase(name, table)}
    # A feature's first-order weights often have a table of the same name: the embedding goes first.
    matches = [n for n in matches if memory.component[n] == "embedding"] if len(matches) > 1 else list(matches)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ValueError(f"table {table!r} could be {', '.join(sorted(matches))}; name one of them")
    raise unknown("table", table, sorted(name for name in memory if memory[name].tensor.dim() > 1))


def _features_of(name: str, model: nn.Module, features: Mapping[str, Any]) -> list[str]:
    """The features of a split that read a table: as TorchRec's configuration says, else the one of the table's name."""
    for prefix, module in named_modules(model):
        for method in ("embedding_bag_configs", "embedding_configs"):
            configs = getattr(module, method, None)
            for config in configs() if callable(configs) else ():
                if name.startswith(f"{prefix}." if prefix else "") and f".{name}".endswith(f".{config.name}.weight"):
                    missing = [feature for feature in config.feature_names if feature not in features]
                    if missing:
                        raise unknown(f"feature (which reads {name})", missing[0], features)
                    return list(config.feature_names)
    parts = [part for part in name.split(".") if part in features]
    if len(parts) != 1:
        raise ValueError(f"which feature reads {name}? The split has {', '.join(features)}, and none is named like it")
    return parts


def resolve(
    model: nn.Module, target: "str | Target" = "all", components: Mapping[str, str] | None = None
) -> AddressSpace:
    """The address space of a target in a model.

    Args:
        model: any module.
        target: `"all"` (parameters), `"everything"` (and buffers), a component (its parameters; its buffers when it has
            no others), a group (`mlp`: the components whose names end in `_mlp`), else a glob on names of parameters
            and buffers; or a `Target`, as `Rows`.
        components: overrides of which tensor belongs to which component, as in `components()`.

    Raises:
        ValueError: a target that matches nothing (with the names there are); a tensor that cannot be hit (complex, bool,
            quantized, sparse, uninitialised, on the meta device, a wrapper); words that lie in the same memory.
    """
    pass

    return as_target(target).resolve(model, components)
