"""The trials of a campaign, or of a shard of it, that are to be computed next."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from drsrobust.campaign.shards import Shard

CHUNK_TRIALS = 1024  # of a chunk at most
SHORTEST_CHUNK, LONGEST_CHUNK = 3.0, 60.0  # seconds
FREE, TAKEN, COMPUTED, ELSEWHERE = range(4)  # states of a trial; ELSEWHERE: another shard computes it
_WINDOW = 4096  # states that are looked at together


class Chunk(NamedTuple):
    """Trials of one condition (its number in the grid) that are computed together."""

    condition: int
    trials: tuple[int, ...]


def chunk_seconds(age: float) -> float:
    """Seconds of work in a chunk. A run that lasts long makes long ones: a million trials in chunks of 3 s are too many files.

    Args:
        age: of the run, in seconds; a kill loses a twentieth of it at most.
    """
    return min(LONGEST_CHUNK, max(SHORTEST_CHUNK, age / 20))


class _Trials:
    """The trials of one condition, of which `limit` are asked for."""

    def __init__(self, shard: Shard | None, pilot: int) -> None:
        self.seconds, self.computed = 0.0, 0
        self._shard, self._pilot = shard, pilot
        self._states = np.empty(0, np.uint8)
        self._next = 0  # no trial before it is free

    def ask(self, limit: int) -> None:
        self._extend(limit)
        self.limit = limit
        states = self._states[:limit]
        self.shared = int(np.count_nonzero(states != ELSEWHERE))  # trials that this schedule is about
        self.missing = self.shared - int(np.count_nonzero(states == COMPUTED))

    def _extend(self, n: int) -> None:
        if n <= len(self._states):
            return
        new = np.arange(len(self._states), n)
        if self._shard is None:
            states = np.zeros(len(new), np.uint8)
        else:  # all shards compute the pilot trials, which decide how many the others are
            elsewhere = (new % self._shard.of != self._shard.index) & (new >= self._pilot)
            states = np.where(elsewhere, ELSEWHERE, FREE).astype(np.uint8)
        self._states = np.concatenate([self._states, states])

    def add(self, trials: np.ndarray, seconds: float) -> None:
        self._extend(int(trials.max()) + 1)
        before = self._states[trials][trials < self.limit]
        self.missing -= int(np.count_nonzero(before < COMPUTED))
        self.shared += int(np.count_nonzero(before == ELSEWHERE))
        self._states[trials] = COMPUTED
        self.seconds += seconds
        self.computed += len(trials)

    def take(self, size: int) -> tuple[int, ...]:
        taken: list[int] = []
        while self._next < self.limit and len(taken) < size:
            window = self._states[self._next : min(self.limit, self._next + max(size, _WINDOW))]
            free = np.flatnonzero(window == FREE)[: size - len(taken)] + self._next
            taken += free.tolist()
            self._next = taken[-1] + 1 if len(taken) == size else self._next + len(window)
        self._states[taken] = TAKEN
        return tuple(taken)

    def take_back(self, trials: Sequence[int]) -> None:
        back = np.array(trials, np.int64)
        back = back[self._states[back] == TAKEN]
        self._states[back] = FREE
        self._next = int(back.min(initial=self._next))

    def lacking(self) -> list[int]:
        return np.flatnonzero(self._states[: self.limit] < COMPUTED).tolist()


class Schedule:
    """The trials of all conditions.

    Args:
        groups: numbers of the conditions with the same error maps.
        trials: of each condition.
        shard: whose trials they are; None: all.
        pilots: of each group, the first trials that every shard computes.
    """

    def __init__(
        self, groups: Sequence[Sequence[int]], trials: int, shard: Shard | None = None, pilots: Sequence[int] = ()
    ) -> None:
        self._groups, self.pilots = groups, list(pilots) or [0] * len(groups)
        self.families: Sequence[Sequence[int]] = [
            [number] for number in range(len(groups))
        ]  # parts of the same conditions
        self._group_of = {condition: number for number, group in enumerate(groups) for condition in group}
        self._order = list(self._group_of)  # in which conditions are computed
        self._trials = {c: _Trials(shard, self.pilots[number]) for c, number in self._group_of.items()}
        self._new, self._additions = 0.0, 0  # seconds of the trials after the first addition, which is the store's
        for number in range(len(groups)):
            self._ask(number, self.pilots[number] or trials)

    def _ask(self, number: int, limit: int) -> None:
        """Sets the number of trials of a group."""
        for condition in self._groups[number]:
            self._trials[condition].ask(limit)
        self._at = 0  # no condition before it, in their order, has a free trial

    def add(self, table: pa.Table) -> None:
        """Adds finished trials: `condition`, `trial`, `auc` and `seconds` of each."""
        self._additions += 1
        conditions, trials, seconds = (table[name].to_numpy() for name in ("condition", "trial", "seconds"))
        touched, order = set(), np.argsort(conditions, kind="stable")
        numbers, starts = np.unique(conditions[order], return_index=True)
        for condition, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=False):
            self._trials[condition].add(trials[rows], float(seconds[rows].sum()))
            touched.add(self._group_of[condition])
        self._new += float(seconds.sum()) if self._additions > 1 else 0.0
        for number in touched:
            self._advance(number)

    def _advance(self, number: int) -> None:
        """Called with each group that got trials."""

    def _complete(self, number: int) -> bool:
        """Whether all trials of a group below its limit are computed, as far as this schedule is about them."""
        return not any(self._trials[condition].missing for condition in self._groups[number])

    def take(self, size: int) -> Chunk | None:
        """Up to `size` trials of a condition that are neither computed nor taken, group by group, in the grid's order; None if
        there are none now."""
        for at in range(self._at, len(self._order)):
            if trials := self._trials[self._order[at]].take(size):
                self._at = at
                return Chunk(self._order[at], trials)
        self._at = len(self._order)
        return None

    def take_back(self, work: Chunk) -> None:
        """Makes trials of a chunk free again, which were not computed."""
        self._trials[work.condition].take_back(work.trials)
        self._at = 0

    def lacking(self, condition: int) -> list[int]:
        """Trials of a condition that are not computed."""
        return self._trials[condition].lacking()

    def pilot(self, condition: int) -> int:
        """How many first trials of a condition every shard computes."""
        return self.pilots[self._group_of[condition]]

    def limit(self, condition: int) -> int:
        """The number of trials of a condition, as far as is known."""
        return self._trials[condition].limit

    @property
    def done(self) -> bool:
        """Whether all trials are computed."""
        return not any(trials.missing for trials in self._trials.values())

    @property
    def total(self) -> int:
        """The number of trials of all conditions, as far as is known."""
        return sum(trials.shared for trials in self._trials.values())

    @property
    def computed(self) -> int:
        """The number of computed trials of these."""
        return sum(trials.shared - trials.missing for trials in self._trials.values())

    @property
    def n_conditions(self) -> int:
        """The number of conditions."""
        return sum(len(self._groups[family[0]]) for family in self.families)

    @property
    def conditions_done(self) -> int:
        """The number of finished conditions."""
        return sum(len(self._groups[family[0]]) for family in self.families if all(map(self._complete, family)))

    def seconds_left(self) -> float | None:
        """Estimated time of the missing trials one after the other; None before any was computed. A condition without trials is
        estimated by the slowest other one."""
        all_trials = list(self._trials.values())
        means = [trials.seconds / trials.computed for trials in all_trials if trials.computed]
        if not means:
            return None
        return sum(
            trials.missing * (trials.seconds / trials.computed if trials.computed else max(means))
            for trials in all_trials
        )

    def seconds_per_trial(self) -> float | None:
        """Mean over the computed trials; None without any."""
        n = sum(trials.computed for trials in self._trials.values())
        return sum(trials.seconds for trials in self._trials.values()) / n if n else None

    def seconds_since(self) -> float:
        """Seconds of the trials after the first addition."""
        return self._new


def chunk_size(schedule: Schedule, age: float, workers: int) -> int:
    """Trials of a chunk for one of several workers: few at first, then some seconds of work (`chunk_seconds`), and fewer at the
    end, when workers without work would wait for the others."""
    seconds = schedule.seconds_per_trial()
    if seconds is None or age < SHORTEST_CHUNK:
        return 8
    fair = -(-(schedule.total - schedule.computed) // (2 * workers))
    return max(1, min(CHUNK_TRIALS, fair, int(chunk_seconds(age) / max(seconds, 1e-6))))
