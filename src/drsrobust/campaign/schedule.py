"""The trials of a campaign that are to be computed next."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class Chunk(NamedTuple):
    """Trials of one condition (its number in the grid) that are computed together."""

    condition: int
    trials: tuple[int, ...]


CHUNK_TRIALS, CHUNK_SECONDS = 1024, 3.0  # a chunk ends when either is reached


class Schedule:
    """The trials of all conditions.

    Args:
        groups: numbers of the conditions with the same error maps.
        trials: of each condition.
    """

    def __init__(self, groups: Sequence[Sequence[int]], trials: int) -> None:
        self._groups = groups
        self._group_of = {condition: number for number, group in enumerate(groups) for condition in group}
        self._auc: dict[int, dict[int, float]] = {condition: {} for condition in self._group_of}
        self._seconds: dict[int, list[float]] = {condition: [0.0, 0] for condition in self._group_of}
        self._new = 0.0  # seconds of the trials after the first addition, which is the store's
        self._additions = 0
        self._given: dict[int, set[int]] = {condition: set() for condition in self._group_of}
        self._limit = [trials] * len(groups)
        self._finished = [False] * len(groups)

    def add(self, table: pa.Table) -> None:
        """Adds finished trials: `condition`, `trial`, `auc` and `seconds` of each."""
        self._additions += 1
        columns = (table[name].to_pylist() for name in ("condition", "trial", "auc", "seconds"))
        touched = set()
        for condition, trial, auc, seconds in zip(*columns, strict=True):
            self._auc[condition][trial] = float("nan") if auc is None else auc
            self._seconds[condition][0] += seconds
            self._seconds[condition][1] += 1
            self._new += seconds if self._additions > 1 else 0.0
            touched.add(self._group_of[condition])
        for number in touched:
            self._advance(number)

    def _advance(self, number: int) -> None:
        """Finishes a group when all its trials are computed."""
        self._finished[number] = self._complete(number)

    def _complete(self, number: int) -> bool:
        """Whether all trials of a group below its limit are computed."""
        group, limit = self._groups[number], self._limit[number]
        if any(len(self._auc[condition]) < limit for condition in group):
            return False  # without a look at each number
        return all(trial in self._auc[condition] for condition in group for trial in range(limit))

    def values(self, condition: int, n: int) -> np.ndarray:
        """AUC of the computed ones of a condition's first n trials; NaN where the model raised."""
        computed = self._auc[condition]
        return np.array([computed[trial] for trial in range(n) if trial in computed], np.float64)

    def pending(self, size: int) -> Iterator[Chunk]:
        """Chunks of up to `size` trials that are neither computed nor in work, group by group, in the grid's order."""
        for number, group in enumerate(self._groups):
            if self._finished[number]:
                continue
            for condition in group:
                computed, in_work = self._auc[condition], self._given[condition]
                missing = [t for t in range(self._limit[number]) if t not in computed and t not in in_work]
                for start in range(0, len(missing), size):
                    part = tuple(missing[start : start + size])
                    in_work.update(part)
                    yield Chunk(condition, part)

    def take_back(self, work: Chunk) -> None:
        """Makes trials of a chunk pending again, which was not computed."""
        self._given[work.condition].difference_update(work.trials)

    def limit(self, condition: int) -> int:
        """The number of trials of a condition, as far as is known."""
        return self._limit[self._group_of[condition]]

    @property
    def done(self) -> bool:
        """Whether all trials are computed."""
        return all(self._finished)

    @property
    def total(self) -> int:
        """The number of trials of all conditions, as far as is known."""
        return sum(self._limit[number] * len(group) for number, group in enumerate(self._groups))

    @property
    def computed(self) -> int:
        """The number of computed trials of these."""
        return sum(self._there(condition) for condition in self._group_of)

    def _there(self, condition: int) -> int:
        return min(len(self._auc[condition]), self.limit(condition))

    @property
    def conditions_done(self) -> int:
        """The number of finished conditions."""
        return sum(len(group) for number, group in enumerate(self._groups) if self._finished[number])

    def seconds_left(self) -> float | None:
        """Estimated time of the missing trials one after the other; None before any was computed. A condition without trials is
        estimated by the slowest other one."""
        means = [total / n for total, n in self._seconds.values() if n]
        if not means:
            return None
        seconds = 0.0
        for condition, (total, n) in self._seconds.items():
            seconds += (self.limit(condition) - self._there(condition)) * (total / n if n else max(means))
        return seconds

    def seconds_per_trial(self) -> float | None:
        """Mean over the computed trials; None without any."""
        total, n = (sum(column) for column in zip(*self._seconds.values(), strict=True))
        return total / n if n else None

    def seconds_since(self) -> float:
        """Seconds of the trials after the first addition."""
        return self._new
