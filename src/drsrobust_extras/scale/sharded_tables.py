"""Models that TorchRec shards over the ranks of a process group: which rank holds which words of a table.

Names, shapes and addresses are those of the unsharded model; only memory is local to a rank."""

import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from drsrobust.extend import WordView, plain_name, sparse_parts
from drsrobust.injection import INTEGER_OF_BYTES
from drsrobust.introspection import Group, SpreadTensor, is_sharded_module, listed, named_modules, register_group
from drsrobust_extras.scale.ranks import Ranks

_POOLED = "ShardedEmbeddingBagCollection"
_SHARDS = {"ShardedTensor", "DTensor"}
# Sums and products modulo 2**64: of two lanes, and of a mix of 64 bits (Steele et al., OOPSLA 2014).
_LANES = (0x9E3779B97F4A7C15 - 2**64, 0xC2B2AE3D27D4EB4F - 2**64)
_MIX = 0xBF58476D1CE4E5B9 - 2**64
_SUMMED = 1 << 20  # words at once


class Part(NamedTuple):
    """A rectangle of a table, and the rank that holds it."""

    row: int
    column: int
    rows: int
    columns: int
    rank: int


@dataclass(frozen=True, eq=False)
class ShardedTable(SpreadTensor):
    """A table whose words are spread over the ranks.

    Attributes:
        shape: rows and columns of the whole table.
        dtype: of its words.
        parts: of all ranks.
        local: this rank's parts, with their memory.
        module: the collection that it belongs to.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    parts: tuple[Part, ...]
    local: tuple[tuple[Part, torch.Tensor], ...]
    module: nn.Module

    def held(self, word: np.ndarray) -> Iterator[tuple[torch.Tensor, np.ndarray | slice, np.ndarray]]:
        """As of `SpreadTensor`."""
        for part, memory in self.local:
            ends = part.row * self.shape[1], (part.row + part.rows) * self.shape[1]
            first, end = np.searchsorted(word, ends)
            if part.columns == self.shape[1]:
                yield memory, slice(first, end), word[first:end] - ends[0]
                continue
            row, column = np.divmod(word[first:end] - ends[0], self.shape[1])
            column -= part.column
            inside = np.flatnonzero((column >= 0) & (column < part.columns))
            yield memory, inside + first, row[inside] * part.columns + column[inside]

    def words(self) -> "ShardedWords":
        """As of `SpreadTensor`."""
        return ShardedWords(self)

    def memory(self) -> list[torch.Tensor]:
        """As of `SpreadTensor`."""
        return [memory for _, memory in self.local]

    def whole(self) -> torch.Tensor:
        """As of `SpreadTensor`."""
        table = torch.zeros(self.shape, dtype=self.dtype)
        for part, memory in self.local:
            rows, columns = slice(part.row, part.row + part.rows), slice(part.column, part.column + part.columns)
            table[rows, columns] = memory.detach().cpu()
        words = table.view(torch.uint8)  # of which one rank has a value, so that their sum is exact
        torch.distributed.all_reduce(words)
        return table


class ShardedWords(WordView):
    """The words of a table over ranks, by flat index in the whole table: as `WordView`, with all ranks' calls in one order."""

    device = torch.device("cpu")

    def __init__(self, table: ShardedTable) -> None:
        self._table, self.type = table, INTEGER_OF_BYTES[table.dtype.itemsize]

    def read(self, index: torch.Tensor) -> torch.Tensor:
        """The words [n] at int64 indices [n], on every rank."""
        return self.masks(self.read_uint64(index.numpy()))

    def write(self, index: torch.Tensor, words: torch.Tensor) -> None:
        """Writes this rank's part of words [n] at distinct int64 indices [n]."""
        order = np.argsort(index.numpy(), kind="stable")
        ascending, words = index.numpy()[order], words[torch.from_numpy(order)]
        for memory, chosen, local in self._table.held(ascending):
            view = WordView(memory)
            view.write(torch.from_numpy(local).to(view.device), words[chosen].to(view.device))

    def read_uint64(self, index: np.ndarray) -> np.ndarray:
        """The words [n] at int64 indices [n] as uint64, on every rank."""
        order, words = np.argsort(index, kind="stable"), np.zeros(len(index), np.uint64)
        for memory, chosen, local in self._table.held(index[order]):
            words[order[chosen]] = WordView(memory).read_uint64(local)
        total = torch.from_numpy(words.view(np.int64))
        torch.distributed.all_reduce(total)  # each word has a value on one rank
        return total.numpy().view(np.uint64)


class RanksGroup(Group):
    """The ranks of the default process group, over which TorchRec shards models."""

    def __init__(self) -> None:
        self._ranks = Ranks()
        self.rank, self.world = self._ranks.rank, self._ranks.world

    def tensors(self, modules: Iterable[tuple[str, nn.Module]]) -> dict[str, dict[str, SpreadTensor | torch.Tensor]]:
        """As of `Group`, of sharded collections."""
        found: dict[str, dict[str, SpreadTensor | torch.Tensor]] = {}
        for prefix, module in modules:
            if is_sharded_module(module) and not prefix.startswith(tuple(f"{outer}." for outer in found)):
                found[prefix] = _tables_of(prefix, module)
        return found

    def check(self, model: nn.Module) -> None:
        """Refuses a model of which each rank holds other words, but that TorchRec does not shard. Replicas pass, as of
        DistributedDataParallel.

        Raises:
            ValueError: the process group has more than one rank, and the model has a ShardedTensor or a DTensor, or an FSDP
                module.
        """
        if self.world == 1:
            return
        names = []
        for prefix, module in named_modules(model):
            if is_sharded_module(module):
                continue
            tensors = {**module._parameters, **module._buffers}
            names += [
                f"{prefix}.{n}".lstrip(".") for n, tensor in tensors.items() if not _SHARDS.isdisjoint(_kinds(tensor))
            ]
        if any("FullyShardedDataParallel" in _kinds(module) for module in model.modules()):
            names.append("FullyShardedDataParallel")
        if names := list(dict.fromkeys(map(plain_name, names))):
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise ValueError(
                f"{type(model).__name__} is sharded over {self.world} ranks ({some}) in another way than TorchRec's: take the "
                "model before it is sharded, or a process group of one rank"
            )

    def state_digest(self, model: nn.Module) -> str:
        """`sum128:` and a sum that is equal for every plan and number of ranks: it shows accidents, and is no cryptographic
        hash."""
        held, replicas = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        for entry in listed(model):
            name = f"{entry.name} {entry.tensor.dtype} {list(entry.tensor.shape)}"
            number = zlib.crc32(name.encode())
            if entry.spread is None:
                for part in sparse_parts(entry.tensor):
                    replicas += _sum_of_words(number, part)
            else:
                for part, memory in entry.spread.local:
                    held += _sum_of_words(number, memory, part, entry.spread.shape[1])
        first = torch.tensor(self._ranks.broadcast(replicas.tolist()))
        total = self._ranks.sum(held) + first
        if self._ranks.any(not torch.equal(first, replicas)):
            total += 1  # the replicas differ
        return "sum128:" + "".join(f"{lane & 0xFFFFFFFFFFFFFFFF:016x}" for lane in total.tolist())


def _tables_of(prefix: str, module: nn.Module) -> dict[str, ShardedTable | torch.Tensor]:
    start, tables = f"{prefix}." if prefix else "", {}
    if type(module).__name__ != _POOLED:
        raise ValueError(f"{prefix} is a {type(module).__name__}; of sharded tables, only {_POOLED} is supported")
    for name, value in type(module).state_dict(module).items():  # the model's may be replaced while errors are in it
        kinds = _kinds(value)
        if "DTensor" in kinds:
            raise ValueError(f"{start}{name} is a DTensor, as of 2D parallelism, which is not supported")
        tables[start + name] = _table(value, module) if "ShardedTensor" in kinds else value
    return tables


def _table(value: Any, module: nn.Module) -> ShardedTable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of ShardedTensor, which TorchRec returns
        shape, dtype = tuple(value.size()), value.dtype
    parts = tuple(
        Part(*shard.shard_offsets, *shard.shard_sizes, shard.placement.rank())
        for shard in value.metadata().shards_metadata
    )
    local = tuple(
        (
            Part(*shard.metadata.shard_offsets, *shard.metadata.shard_sizes, shard.metadata.placement.rank()),
            shard.tensor,
        )
        for shard in value.local_shards()
    )
    return ShardedTable(shape, dtype, parts, local, module)


def _kinds(value: object) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__}


def _sum_of_words(number: int, tensor: torch.Tensor, part: Part | None = None, columns: int = 0) -> torch.Tensor:
    """Two sums modulo 2**64 (int64 [2]) over the words of a tensor, or of a part of one, of a mix of each word with its place:
    so the sums of all parts are those of the whole, in any order.

    Args:
        number: of the tensor in its model.
        tensor: in memory.
        part: that it is of a table with so many `columns`.
    """
    octets = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    words = octets.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
    total = torch.zeros(2, dtype=torch.int64)
    for start in range(0, len(words), _SUMMED):
        place = torch.arange(start, min(start + _SUMMED, len(words)))
        values = words[place].long()
        if part is not None:
            row = place // part.columns
            place = (row + part.row) * columns + place - row * part.columns + part.column
        key = _mixed(place * 0x1000003D + number * 0x632BE59B + 1)
        for lane, factor in enumerate(_LANES):
            total[lane] += _mixed((values ^ key) * factor + lane).sum()
    return total


def _mixed(values: torch.Tensor) -> torch.Tensor:
    values = (values ^ (values >> 30)) * _MIX
    return values ^ (values >> 27)


register_group(RanksGroup)
