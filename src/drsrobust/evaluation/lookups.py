"""Which rows of data look up which rows of a model's tables."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from drsrobust._files import cache_folder, unnamed_file, write_array, writing
from drsrobust.data import Split
from drsrobust.data.dataset import Ids
from drsrobust.injection import ErrorMap
from drsrobust.introspection.embedding_modules import pooled_table_name, sparse_type, table_configs
from drsrobust.introspection.spread import is_sharded_module
from drsrobust.introspection.tensors import listed, named_modules
from drsrobust.introspection.wrappers import ModuleForward, has_replaced_forward, intercepted

# Rows up to which batches and indexes stay in memory: 500 bytes a row, and 6 for each feature. Making the batches again takes a
# tenth of a pass.
IN_MEMORY = 2_000_000
_FORWARDS = (nn.Embedding.forward, nn.EmbeddingBag.forward)
SCANNED = 50_000  # ids that are read in less time than the index takes


class Readers:
    """An inverted index: the rows of data that look up given ids of one feature.

    The positions of the ids are sorted by ranges of neighbouring ids; within a range the ids are compared. With half as many
    ranges as ids the index takes at most 1.5 times the memory of the ids. Of more than `IN_MEMORY` ids it lies in files.

    Args:
        ids: of the feature, of n rows of data.

    Example:
        >>> Readers(Ids(np.array([3, 1, 3, 0], np.int32))).of(np.array([3]))
        array([0, 2])
    """

    def __init__(self, ids: Ids) -> None:
        self._ids, self._ends = ids, None if (ends := ids.ends()) is None else _stored(ends)
        values = np.asarray(ids.values)
        self.cardinality = int(values.max()) + 1 if len(values) else 0
        self._shift = 0
        while (self.cardinality >> self._shift) + 2 > max(len(values) // 2, 2):
            self._shift += 1
        ranges = values >> self._shift
        dtype = np.int32 if len(values) < 2**31 else np.int64
        self._positions = _stored(np.argsort(ranges, kind="stable").astype(dtype))
        counts = np.bincount(ranges, minlength=(self.cardinality >> self._shift) + 1)
        self._starts = _stored(np.concatenate(([0], np.cumsum(counts))).astype(dtype))

    def ids(self) -> np.ndarray:
        """The distinct ids that any row looks up, int64 ascending."""
        return np.unique(self._ids.values).astype(np.int64)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """The rows (int64, ascending) that look up any of some ascending ids, int64 [m]."""
        ids = ids[ids < self.cardinality]
        if not len(ids):
            return np.empty(0, np.int64)
        # Few ids in all, or many of them chosen: a scan is quicker than the index, and takes less memory.
        if len(self._positions) + self.cardinality // 8 <= SCANNED or len(ids) * 8 > self.cardinality:
            positions = self._places_by_scan(ids)
        else:
            positions = self._places_by_index(ids)
        if self._ends is None:
            return positions
        rows = np.searchsorted(self._ends, positions, side="right")
        return rows[np.append(True, rows[1:] != rows[:-1])] if len(rows) else rows

    def _places_by_scan(self, ids: np.ndarray) -> np.ndarray:
        """Where in the feature's ids any of some ids [m] are: int64 ascending."""
        chosen = np.zeros(self.cardinality, bool)
        chosen[ids] = True
        return np.flatnonzero(chosen[self._ids.values])

    def _places_by_index(self, ids: np.ndarray) -> np.ndarray:
        """As `_places_by_scan`, by the index, unless very many ids would be read."""
        ids = ids[np.append(True, ids[1:] != ids[:-1])]
        ranges = ids >> self._shift
        if self._shift:
            ranges = ranges[np.append(True, ranges[1:] != ranges[:-1])]
        starts, ends = self._starts[ranges].astype(np.int64), self._starts[ranges + 1].astype(np.int64)
        lengths = ends - starts
        if lengths.sum() * 8 > len(self._positions):
            return self._places_by_scan(ids)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        positions = self._positions[np.repeat(starts, lengths) + within].astype(np.int64)
        if self._shift:  # the ranges hold other ids too
            values = self._ids.values[positions]
            positions = positions[ids[np.minimum(np.searchsorted(ids, values), len(ids) - 1)] == values]
        positions.sort()
        return positions


def _stored(array: np.ndarray) -> np.ndarray:
    """The array, or a copy of a large one in a file of the cache folder, which is deleted with it."""
    if len(array) <= IN_MEMORY:
        return array
    folder = cache_folder("indexes")
    with writing(folder), unnamed_file(folder) as file:
        write_array(file, array)  # not through the map, by which a full disk would end the process
        return np.asarray(np.memmap(file, array.dtype, "r", shape=array.shape))


class Lookups(ABC):
    """Observes the look-ups of a model while it scores all batches: TorchRec's collections, `nn.EmbeddingBag`, `nn.Embedding`.

    Args:
        model: any module.
        n: rows of data.

    Attributes:
        tables: name of a table's tensor -> the modules that look up in it.
        hidden: tables of which a module with a forward of its own may look up other rows than it is called with, as a subclass
            of `nn.Embedding` that numbers positions, or reads all of them.
    """

    def __init__(self, model: nn.Module, n: int) -> None:
        modules = dict(named_modules(model))
        everything = listed(model)
        self._n = n
        self.tables: dict[str, list[str]] = {}
        self.hidden: set[str] = set()
        self._modules: dict[str, nn.Module] = {}
        self._configs: dict[str, dict[str, tuple[str, ...]]] = {}  # collection -> table's tensor -> features
        weights = {id(entry.tensor): entry.name for entry in everything}
        for name, module in modules.items():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and id(module.weight) in weights:
                self.tables.setdefault(weights[id(module.weight)], []).append(name)
                self._modules[name] = module
                if type(module).forward not in _FORWARDS or has_replaced_forward(module):
                    self.hidden.add(weights[id(module.weight)])
        entries = {entry.name: entry for entry in everything}
        for name, module in modules.items():
            readers = {}
            for config in table_configs(module) or ():
                tensor = pooled_table_name(name, config.name)
                if tensor in entries and (entries[tensor].table or is_sharded_module(module)):
                    readers[tensor] = tuple(config.feature_names)
                    self.tables.setdefault(tensor, []).append(name)
            if readers:
                self._modules[name], self._configs[name] = module, readers
        self._readers: dict[str, Readers] = {}

    @contextmanager
    def watched(self, batches: Iterable[Any]) -> Iterator[Iterator[Any]]:
        """Yields an iterator over the batches; observes look-ups while the block runs."""

        def announced() -> Iterator[Any]:
            for batch in batches:
                self._begin(batch)
                yield batch

        with intercepted(self._modules, self._around):
            yield announced()

    @abstractmethod
    def why_unknown(self, table: str) -> str | None:
        """Why the rows that look up a table's rows are unknown; None if they are known."""

    def words(self, error_map: ErrorMap) -> Any:
        """The wrong words of a map, int64 [n], of which `rows` takes rows of tables."""
        return error_map.word

    def rows(self, hits: Iterable[tuple[str, np.ndarray]], enough: float = np.inf) -> np.ndarray:
        """The rows of data (int64, ascending) whose scores may depend on some rows of tables.

        Args:
            hits: table and its rows, int64 ascending, each.
            enough: tables after one that more rows read may be left out.
        """
        parts: list[np.ndarray] = []
        for table, ids in hits:
            parts += self._rows_of(table, ids)
            if len(parts[-1]) > enough:
                break
            if sum(map(len, parts)) > self._n // 2:
                parts = [_union(parts, self._n)]  # in less memory
        return _union(parts, self._n)

    @abstractmethod
    def _rows_of(self, table: str, ids: np.ndarray) -> list[np.ndarray]:
        """As `rows`, of one table, in parts."""

    @abstractmethod
    def ids(self, table: str) -> np.ndarray:
        """The rows of a table (int64, ascending) that any row of data looks up."""

    @abstractmethod
    def _begin(self, batch: Any) -> None:
        """Called before each batch."""

    @abstractmethod
    def _seen(self, name: str, ids: Any, offsets: Any) -> None:
        """Called at each call of an embedding module."""

    @abstractmethod
    def _seen_collection(self, name: str, inputs: tuple) -> None:
        """Called at each call of a collection."""

    def _around(self, name: str, forward: ModuleForward) -> ModuleForward:
        def observed(*args, **kwargs):
            if name in self._configs:
                self._seen_collection(name, (*args, *kwargs.values()))
            else:
                ids = args[0] if args else kwargs.get("input")
                offsets = args[1] if len(args) > 1 else kwargs.get("offsets")
                self._seen(name, ids, offsets)
            return forward(*args, **kwargs)

        return observed


class _Group(NamedTuple):
    """Features that have equal ids in a batch, values [m] and lengths [B]."""

    values: torch.Tensor
    lengths: torch.Tensor
    features: set[str]


class SplitLookups(Lookups):
    """Look-ups of a model that scores the rows of a split.

    A table is read with a feature if its module got exactly that feature's ids in every batch: a model may hash, shuffle
    or drop ids, and then the rows that an error affects are unknown.

    Args:
        model: any module.
        split: the rows, in batches of any size.
    """

    def __init__(self, model: nn.Module, split: Split) -> None:
        super().__init__(model, len(split))
        self._split = split
        self._call_features: dict[str, list[set[str]]] = {}  # module -> features of each of its calls in a batch
        self._wrong: set[str] = set()
        self._calls: dict[str, int] = {}
        self._batch: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._groups: dict[int, list[_Group]] | None = None

    def why_unknown(self, table: str) -> str | None:
        return None if self.features(table) else "it looks up other ids than the split's"

    def _rows_of(self, table: str, ids: np.ndarray) -> list[np.ndarray]:
        return [readers.of(ids) for readers in self._readers_of(table)]

    def ids(self, table: str) -> np.ndarray:
        return np.unique(np.concatenate([readers.ids() for readers in self._readers_of(table)]))

    def _readers_of(self, table: str) -> list[Readers]:
        features: Any = self.features(table)  # known: `why_unknown` is asked first
        for feature in features:
            if feature not in self._readers:
                self._readers[feature] = Readers(self._split.sparse[feature])
        return [self._readers[feature] for feature in features]

    def _begin(self, batch: Any) -> None:
        jagged = batch.sparse_features
        keys, values, bounds = jagged.keys(), jagged.values(), jagged.offset_per_key()
        lengths = jagged.lengths().view(len(keys), -1) if keys else ()
        self._batch = {
            key: (values[start:end], length)
            for key, start, end, length in zip(keys, bounds[:-1], bounds[1:], lengths, strict=True)
        }
        self._calls, self._groups = {}, None

    def features(self, table: str) -> list[str] | None:
        """The features that a table is read with; None if unknown."""
        names: list[str] = []
        for name in self.tables.get(table, ()):
            if name in self._wrong:
                return None
            if name in self._configs:
                names += self._configs[name][table]
                continue
            calls = self._call_features.get(name, [])
            if not all(calls):
                return None
            names += [min(features) for features in calls]
        return list(dict.fromkeys(names)) if table in self.tables else None

    def _seen_collection(self, name: str, inputs: tuple) -> None:
        jagged = next((value for value in inputs if sparse_type(value) == "KeyedJaggedTensor"), None)
        for feature in {feature for features in self._configs[name].values() for feature in features}:
            if jagged is None or feature not in set(jagged.keys()) or feature not in self._batch:
                self._wrong.add(name)
                return
            values, lengths = self._batch[feature]
            if not (_same(jagged[feature].values(), values) and _same(jagged[feature].lengths(), lengths)):
                self._wrong.add(name)

    def _seen(self, name: str, ids: Any, offsets: Any) -> None:
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        of_calls = self._call_features.setdefault(name, [])
        candidates = of_calls[call] if call < len(of_calls) else None
        matching = (
            self._matching(name, ids.reshape(-1), offsets, candidates) if isinstance(ids, torch.Tensor) else set()
        )
        of_calls[call : call + 1] = [matching]

    def _matching(self, name: str, flat: torch.Tensor, offsets: Any, candidates: set[str] | None) -> set[str]:
        """The features, of some candidates (None: all), whose ids in this batch a module looks up."""
        if candidates is not None and len(candidates) < 2:
            groups = [_Group(*self._batch[feature], {feature}) for feature in candidates]
        else:
            groups = self._groups_by_ids().get(_digest(flat), [])
        matching: set[str] = set()
        for values, lengths, features in groups:
            # Without offsets each row of a matrix of ids is a bag, which fits features with one id per row.
            bags = _bags(offsets, len(flat), lengths) if offsets is not None else len(values) == len(lengths)
            if (bags or isinstance(self._modules[name], nn.Embedding)) and _same(flat, values):
                matching |= features if candidates is None else features & candidates
        return matching

    def _groups_by_ids(self) -> "dict[int, list[_Group]]":
        """The groups of the batch's features by the digest of their ids, so that a look-up is compared with few of them."""
        if self._groups is None:
            self._groups = {}
            for feature, (values, lengths) in self._batch.items():
                groups = self._groups.setdefault(_digest(values), [])
                for group in groups:
                    if _same(values, group.values) and _same(lengths, group.lengths):
                        group.features.add(feature)
                        break
                else:
                    groups.append(_Group(values, lengths, {feature}))
        return self._groups


class BatchLookups(Lookups):
    """Look-ups of a model that scores whole batches: an error in a table's row affects all rows of the batches that look it up.

    Args:
        model: any module.
        sizes: rows of each batch, int64 [batches].
    """

    def __init__(self, model: nn.Module, sizes: np.ndarray) -> None:
        super().__init__(model, int(sizes.sum()))
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self._ids: dict[str, list[list[np.ndarray]]] = {table: [] for table in self.tables}  # of each batch
        self._wrong: set[str] = set()

    def why_unknown(self, table: str) -> str | None:
        return "its look-ups cannot be seen" if table in self._wrong else None

    def _rows_of(self, table: str, ids: np.ndarray) -> list[np.ndarray]:
        batches = self._readers_of(table).of(ids)
        ranges = [np.arange(self._starts[batch], self._ends[batch]) for batch in batches]
        return [np.concatenate([np.empty(0, np.int64), *ranges])]

    def ids(self, table: str) -> np.ndarray:
        return self._readers_of(table).ids()

    def _readers_of(self, table: str) -> Readers:
        if table not in self._readers:
            distinct = [
                np.unique(np.concatenate([np.empty(0, np.int64), *per_call])) for per_call in self._ids.pop(table)
            ]
            lengths = np.array([len(part) for part in distinct], np.int32)
            self._readers[table] = Readers(Ids(np.concatenate(distinct), lengths))
        return self._readers[table]

    def _begin(self, batch: Any) -> None:
        for ids in self._ids.values():
            ids.append([])

    def _seen(self, name: str, ids: Any, offsets: Any) -> None:
        for table, modules in self.tables.items():
            if name in modules:
                self._note(table, ids)

    def _seen_collection(self, name: str, inputs: tuple) -> None:
        jagged: Any = next((value for value in inputs if sparse_type(value) == "KeyedJaggedTensor"), None)
        for table, features in self._configs[name].items():
            for feature in features:
                has_feature = jagged is not None and feature in set(jagged.keys())
                self._note(table, jagged[feature].values() if has_feature else None)

    def _note(self, table: str, ids: Any) -> None:
        if not isinstance(ids, torch.Tensor):
            self._wrong.add(table)
        elif self._ids[table]:  # not during a call outside of the batches
            self._ids[table][-1].append(np.unique(ids.detach().cpu().reshape(-1).numpy().astype(np.int64)))


def _bags(offsets: torch.Tensor, n: int, lengths: torch.Tensor) -> bool:
    """Whether offsets [B] or [B + 1] cut n ids into bags of these lengths [B]."""
    ends = torch.cat((offsets.reshape(-1)[: len(lengths)].long(), torch.tensor([n], device=offsets.device)))
    return len(offsets.reshape(-1)) >= len(lengths) and _same(ends.diff(), lengths)


def _digest(ids: torch.Tensor) -> int:
    """A hash of ids [m], equal for equal ids of any type; different ids may have the same one."""
    return hash(ids.detach().to("cpu", torch.int64).numpy().tobytes())


def _same(first: torch.Tensor, other: torch.Tensor) -> bool:
    return first.shape == other.shape and bool((first == other.to(first.device)).all())


def _union(parts: list[np.ndarray], n: int) -> np.ndarray:
    """The rows in any of some ascending arrays, ascending."""
    if len(parts) == 1:
        return parts[0]
    if sum(len(part) for part in parts) * 16 < n:
        return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
    union = np.zeros(n, bool)
    for part in parts:
        union[part] = True
    return np.flatnonzero(union)
