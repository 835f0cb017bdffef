"""The target `Rank`: what one rank holds of a model that is sharded over the ranks of a process group."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from torch import nn

from drsrobust.extend import check_whole
from drsrobust.injection import Memory, RowParts, Target, TargetLike, as_target, in_parts
from drsrobust.introspection import is_sharded, process_group
from drsrobust_extras.scale.sharded_tables import Part


@dataclass(frozen=True)
class Rank(Target):
    """The words that one rank holds of a model that is sharded over ranks: its shards of tables, rows and columns, and of what
    every rank has a replica of (dense layers, data-parallel tables) its replica alone. An error in a replica reaches only the
    rows that this rank scores: what a fault of one host does.

    Args:
        rank: from 0.
        within: a target that holds the words.

    Example:
        >>> targets = [Rank(rank, within="embedding") for rank in range(2)]  # of a campaign on a sharded model
        >>> print(*targets)
        Rank(0, within=embedding) Rank(1, within=embedding)
    """

    rank: int
    within: TargetLike = "all"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", check_whole("rank", self.rank, 0))
        as_target(self.within, "within")  # raises

    def __str__(self) -> str:
        within = "" if str(self.within) == "all" else f", within={self.within}"
        return f"Rank({self.rank}{within})"

    @property
    def of_rank(self) -> int:
        return self.rank

    def choose(self, model: nn.Module, memory: Memory) -> dict[str, np.ndarray | RowParts | None]:
        if not is_sharded(model):
            raise ValueError(
                f"target {self}: the model is not sharded over ranks (TorchRec's DistributedModelParallel)"
            )
        if self.rank >= (world := process_group().world):
            raise ValueError(f"target {self}: rank is {self.rank!r}; it must be from 0 to {world - 1}")
        held: dict[str, np.ndarray | RowParts | None] = {}
        for name, rows in as_target(self.within).choose(model, memory).items():
            if (table := memory[name].spread) is None:
                held[name] = rows
            elif parts := [part for part in table.parts if part.rank == self.rank]:
                held[name] = _held(parts, table.shape, rows)
        return {name: rows for name, rows in held.items() if rows is None or len(_numbers(rows))}


def _held(parts: Sequence[Part], shape: tuple[int, int], rows: np.ndarray | RowParts | None) -> np.ndarray | RowParts:
    """The rows of a table (None: all) that lie in some parts of it."""
    width = gcd(shape[1], *(part.column for part in parts), *(part.columns for part in parts))
    per_row, chosen = shape[1] // width, [np.empty(0, np.int64)]
    for part in parts:
        first = np.arange(part.row, part.row + part.rows) * per_row + part.column // width
        chosen.append((first[:, None] + np.arange(part.columns // width)).ravel())
    held = np.unique(np.concatenate(chosen))
    if rows is not None:
        if isinstance(rows, RowParts):
            raise ValueError("a rank's words within another rank's are none")
        held = np.intersect1d(held, in_parts(rows, shape[1], width))
    return held if per_row == 1 else RowParts(width, held)


def _numbers(rows: np.ndarray | RowParts) -> np.ndarray:
    return rows.rows if isinstance(rows, RowParts) else rows
