"""Scores of a model that is sharded over ranks: rank r scores every W-th batch from the r-th on, and rank 0 gathers.

All ranks call the model equally often; one without a batch of its own scores the last one again. Errors in tables affect the
rows that look them up by the collection's configuration; nothing is traced through collectives, so other errors affect all
rows."""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from drsrobust.data import Split
from drsrobust.evaluation import Affected, Asked, CoupledRowsError, OtherRows, Passes, register_passes
from drsrobust.extend import SplitLookups, near, with_witnesses
from drsrobust.injection import ErrorMap
from drsrobust.introspection import is_sharded, listed
from drsrobust.metrics import CLICK, RANK, split_name
from drsrobust.mitigation import Mitigation
from drsrobust.models import BATCH, PaddedBatches, Scoring, score
from drsrobust_extras.scale.ranks import Ranks

SMALLEST = 64  # rows of a batch
MAX_SHARE_ALONE = 0.5  # share of rows up to which affected rows are scored by themselves, as of one process


class ShardedRows(Passes):
    """For an evaluator of a sharded model what `AffectedRows` is for others; arguments as of that.

    Attributes:
        scores: of the golden run; None on other ranks than the first.
        everything: why every rerun is a full run; None otherwise.
        bounded: None; unknown.

    Raises:
        ValueError: fewer batches than ranks.
    """

    bounded = None

    def __init__(self, model: nn.Module, rows: Split | OtherRows, scoring: Scoring, ranks: Ranks) -> None:
        self._model, self.n, self._scoring, self.ranks = model, len(rows), scoring, ranks
        self._split = rows if isinstance(rows, Split) else None
        self.everything = None if self._split else "rows of batches of one's own are scored in these batches"
        self._batches: Sequence[Any] = self._cut(None) if self._split else list(rows.batches)
        self._sizes: list[int] = self._batches.sizes() if self._split else list(map(int, rows.sizes))
        if len(self._batches) < ranks.world:
            raise ValueError(
                f"{self.n} rows make {len(self._batches)} batches for {ranks.world} ranks; each needs one, so give at least "
                f"{SMALLEST * ranks.world} rows"
            )
        self._lookups, self._reruns = SplitLookups(model, rows) if self._split else None, 0
        if self._lookups is None:
            self.scores = self.full(golden=True)
        else:
            with self._lookups.watched(self._rank_batches(self._batches)) as watched:
                self.scores = self._scored(self._batches, self.n, watched, golden=True)
        known = {} if self._lookups is None else {t: self._lookups.why_unknown(t) for t in self._lookups.tables}
        self._known = {table for table, why in known.items() if not ranks.any(why is not None)}
        self._replicas = {entry.name for entry in listed(model) if entry.spread is None}

    def on_first(self, function: Callable[[], Any]) -> Any:
        """As of `Passes`."""
        return self.ranks.from_first(function)

    def metrics(self, make: Callable[[], Any]) -> Any:
        """As of `Passes`; on ranks without scores these passes themselves, which check names."""
        return self if self.scores is None else make()

    def check_mitigation(self, mitigation: Mitigation) -> None:
        """Raises ValueError for a mitigation that takes part in the computation."""
        if mitigation.computes:
            raise ValueError(
                f"{mitigation.name} takes part in the computation, which is not supported of a sharded model"
            )

    def _cut(self, rows: np.ndarray | None) -> PaddedBatches:
        """Some rows of the split (None: all) as batches, at least one for each rank where there are so many."""
        n = self.n if rows is None else len(rows)
        size = min(BATCH, max(SMALLEST, -(-n // (32 * self.ranks.world)) * 32))
        return PaddedBatches(self._split, size, rows)

    def _turns(self, batches: Sequence[Any], rank: int) -> list[int]:
        """Numbers of the batches that a rank scores."""
        turns = -(-len(batches) // self.ranks.world)
        return [min(turn * self.ranks.world + rank, len(batches) - 1) for turn in range(turns)]

    def _rank_batches(self, batches: Sequence[Any]) -> Iterable[Any]:
        return (batches[number] for number in self._turns(batches, self.ranks.rank))

    def _scored(
        self, batches: Sequence[Any], n: int, own: Iterable[Any] | None = None, golden: bool = False
    ) -> np.ndarray | None:
        """Scores of the first n rows of some batches on rank 0; None on the others."""
        sizes = self._sizes if batches is self._batches else batches.sizes()
        of_ranks = [[sizes[number] for number in self._turns(batches, rank)] for rank in range(self.ranks.world)]
        rows = sum(of_ranks[self.ranks.rank])
        scores = score(self._model, own or self._rank_batches(batches), rows, self._scoring, golden=golden)
        parts = self.ranks.gather(torch.from_numpy(scores), list(map(sum, of_ranks)))
        if parts is None:
            return None
        pieces = [part.split(lengths) for part, lengths in zip(parts, of_ranks, strict=True)]
        world = self.ranks.world
        return torch.cat([pieces[i % world][i // world] for i in range(len(sizes))]).numpy()[:n]

    def full(self, golden: bool = False) -> np.ndarray | None:
        """Scores of all rows by the model in its present state, on rank 0."""
        return self._scored(self._batches, self.n, golden=golden)

    def intact(self) -> bool:
        """Whether the model without errors gives the golden scores."""
        scores = self.full()
        return self.ranks.from_first(lambda: np.array_equal(scores, self.scores))

    def of(self, maps: Iterable[ErrorMap]) -> Affected:
        """The rows that the errors of several maps together affect; `dense` where they affect all."""
        hits = []
        for error_map in maps:
            for number, entries in error_map.by_tensor():
                entry = error_map.fingerprint[number]
                # Of a replica of one rank the rows that this rank scores are wrong, which depends on how all are spread.
                if entry.name not in self._known or (error_map.rank is not None and entry.name in self._replicas):
                    return Affected(1, 0, np.empty(0, np.int64))
                hits.append((entry.name, error_map.word[entries] // prod(entry.shape[1:])))
        return Affected(0, 0, self._lookups.rows(hits))

    def score(self, affected: Affected) -> tuple[np.ndarray | None, np.ndarray | None]:
        """As of `AffectedRows`. Reruns number 1, 2, 4, 8, ... are compared with a full run: by their number, since ranks have
        no common clock."""
        if not affected.dense and not len(affected.rows):
            return self.scores, affected.rows
        if affected.dense or len(affected.rows) > MAX_SHARE_ALONE * self.n:
            return self.full(), None if affected.dense else affected.rows
        numbers, is_witness = with_witnesses(affected.rows, self.n)
        scored = self._scored(self._cut(numbers), len(numbers))
        self._reruns += 1
        compared = self.full() if self._reruns & (self._reruns - 1) == 0 else None

        def merged() -> tuple[np.ndarray, bool]:
            scores = self.scores.copy()
            scores[affected.rows] = scored[~is_witness]
            alone = near(scored[is_witness], self.scores[numbers[is_witness]])
            return scores, alone and (compared is None or near(scores, compared))

        scores, alone = merged() if self.ranks.is_first else (None, True)
        if not self.ranks.broadcast(alone):
            raise CoupledRowsError
        return scores, affected.rows

    def check(self, golden: None) -> None:
        """Nothing to check on other ranks than the first, which have no scores."""

    def check_name(self, name: str) -> None:
        """Raises ValueError for an unknown metric."""
        split_name(name, RANK if self._scoring.task == "ranking" else CLICK)


def _over_ranks(asked: Asked) -> ShardedRows:
    """The golden run of a sharded model.

    Raises:
        ValueError: a stream, or ranks that differ in their rows or in how the model is sharded.
    """
    ranks, rows = Ranks(), asked.rows
    ranks.warn_of_timeout()
    if isinstance(rows, OtherRows) and not rows.in_batches:
        raise ValueError(f"the rows of a sharded model must be a Split or Batches, and these are {rows!r}")
    tables = {e.name: e.spread.parts if e.spread else None for e in listed(asked.model)}
    about = {"rows": rows.fingerprint, "options": [asked.options, asked.scoring.output, asked.scoring.task]}
    ranks.check_same("evaluators", {**about, **{f"the plan of {name}": table for name, table in tables.items()}})
    return ShardedRows(asked.model, rows, asked.scoring, ranks)


register_passes(lambda model, rows: is_sharded(model), _over_ranks)
