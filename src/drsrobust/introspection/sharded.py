"""Models that TorchRec shards over the ranks of a process group: which rank holds which words of a table.

Names, shapes and addresses are those of the unsharded model; only memory is local to a rank."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from drsrobust.introspection.ranks import ranks
from drsrobust.introspection.wrappers import named_modules, plain_name

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
class ShardedTable:
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
        """This rank's parts of some words [n], given by ascending flat index in the whole table: the part's memory, which m
        words lie in it, and their flat index in it (int64 [m])."""
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

    def whole(self) -> torch.Tensor:
        """The present table, on every rank."""
        table = torch.zeros(self.shape, dtype=self.dtype)
        for part, memory in self.local:
            rows, columns = slice(part.row, part.row + part.rows), slice(part.column, part.column + part.columns)
            table[rows, columns] = memory.detach().cpu()
        words = table.view(torch.uint8)  # of which one rank has a value, so that their sum is exact
        torch.distributed.all_reduce(words)
        return table


def is_sharded(model: nn.Module) -> bool:
    """Whether TorchRec shards tables of a model over the ranks of a process group, of one rank too."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return False
    return any(map(is_collection, model.modules()))


def is_collection(module: nn.Module) -> bool:
    """Whether a module is one of TorchRec's, with tables that it shards."""
    return _is_sharded_class(type(module))


@cache
def _is_sharded_class(kind: type) -> bool:
    return any(base.__name__ == "ShardedModule" for base in kind.__mro__)


def sharded_tables(
    modules: Iterable[tuple[str, nn.Module]],
) -> dict[str, dict[str, ShardedTable | torch.Tensor]]:
    """Of each sharded collection, by its name, the tables by the names of the unsharded model's tensors; a plain tensor where
    every rank holds a replica.

    Args:
        modules: of a model, with their names.

    Raises:
        ValueError: tables that are sharded in a way that is not supported.
    """
    found: dict[str, dict[str, ShardedTable | torch.Tensor]] = {}
    for prefix, module in modules:
        if is_collection(module) and not prefix.startswith(tuple(f"{outer}." for outer in found)):
            found[prefix] = _tables_of(prefix, module)
    return found


def _tables_of(prefix: str, module: nn.Module) -> dict[str, ShardedTable | torch.Tensor]:
    start, tables = f"{prefix}." if prefix else "", {}
    if not torch.distributed.is_initialized():
        raise ValueError(
            f"{prefix} is sharded, and there is no process group: call torch.distributed.init_process_group"
        )
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


def refuse_unsupported(model: nn.Module) -> None:
    """Refuses a model of which each rank holds other words, but that TorchRec does not shard. Replicas pass, as of
    DistributedDataParallel.

    Raises:
        ValueError: the process group has more than one rank, and the model has a ShardedTensor or a DTensor, or an FSDP module.
    """
    if (world := ranks()) == 1:
        return
    names = []
    for prefix, module in named_modules(model):
        if is_collection(module):
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
            f"{type(model).__name__} is sharded over {world} ranks ({some}) in another way than TorchRec's: take the model "
            "before it is sharded, or a process group of one rank"
        )


def _kinds(value: object) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__}


def sum_of_words(number: int, tensor: torch.Tensor, part: Part | None = None, columns: int = 0) -> torch.Tensor:
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
