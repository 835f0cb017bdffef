"""Stored trials computed again, to see that code and machine still give what is stored.

The campaign's identity holds all code that can be found. What it cannot hold (a file that a function reads, a compiled
extension, an environment variable) shows here, most likely in the trial with the largest loss: of each kind of error, target
and protection this one is repeated before anything else, also where nothing is left to compute. The most harmed trial of each
condition, and its first one, follow between the trials of the run, as far as a twentieth of its time goes.
"""

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from drsrobust._processes import threads
from drsrobust._provenance import machine, versions
from drsrobust.campaign.conditions import Condition
from drsrobust.campaign.schedule import Chunk
from drsrobust.campaign.store import Store, StoreError
from drsrobust.campaign.table import LATER
from drsrobust.campaign.trial import Runner

HARM = ("condition", "trial", "outcome", "auc", "logloss", "rows_reached")  # columns that `trials_to_repeat` reads
SHARE = 0.05  # at most: of the stored trials, that are repeated first; of a run's time, that repeated trials take
FEW = 8  # that are repeated first even if they are a larger share
TOLERANCE = 1e-6  # of AUC, on another processor or with other versions
NOT_COMPARED = ("seconds", "worker", "error", "rows_reached")  # times, a text, and how much was computed
_OF_THE_MAP = ("seed", "outcome", "bits_flipped", "words_hit", "realised_rate", "errors")


class Repeats:
    """The repeated trials of one run. Each is compared with what is stored: bit for bit on the processor and with the versions
    that made the store, else the same errors and an AUC within `TOLERANCE`, with a warning.

    Args:
        store: that is held for writing.
        runner: of the campaign.
        conditions: of the campaign.
        stored: what `trials_to_repeat` chooses them by; empty: none is repeated.
    """

    def __init__(self, store: Store, runner: Runner, conditions: Sequence[Condition], stored: pa.Table) -> None:
        self._store, self._runner, self._conditions = store, runner, conditions
        kinds: dict[tuple, int] = {}
        numbers = [kinds.setdefault(condition.kind, len(kinds)) for condition in conditions]
        self._first, self._later = trials_to_repeat(stored, np.array(numbers))
        self._differing = _differing(store.made_by)
        self._began, self._spent, self._last = time.monotonic(), 0.0, 0.0  # seconds

    def begin(self) -> None:
        """Repeats those that come before the run's own trials.

        Raises:
            StoreError: a trial has another result; the message has both values.
        """
        for place in self._first:
            self._check(*place)
        if self._first and self._differing:
            warnings.warn(
                f"{self._store.folder} was made with other {self._differing}; some of its trials were computed again and agree "
                f"within {TOLERANCE:g} in AUC",
                stacklevel=2,
            )

    def go_on(self) -> None:
        """Repeats further ones, while all take at most `SHARE` of the time since this object was made. Raises as `begin`."""
        while self._later and self._spent + self._last <= SHARE * (time.monotonic() - self._began):
            self._check(*self._later.pop(0))

    def _check(self, condition: int, trial: int) -> None:
        began, where = time.monotonic(), self._conditions[condition]
        name = f"{where.error_model} in {where.target}"
        _check_trial(self._store, self._runner, condition, trial, name, self._differing)
        self._last = time.monotonic() - began
        self._spent += self._last


def trials_to_repeat(stored: pa.Table, kinds: np.ndarray) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The trials that tell most, as (condition, trial): those that are repeated first, and later ones.

    The most harmed trial of each kind is first, the worst ones if they are over `FEW` and over `SHARE` of the stored trials.
    Then follow that of each condition, if its errors reached rows, and the conditions' first trials, which have no
    error at low rates, so that other code gives the same. Their order is by chance, another one as the store grows.

    Args:
        stored: `condition`, `trial`, `outcome`, `auc`, `logloss` and `rows_reached` of the stored trials, by condition and
            trial; behind them may be a metric, which counts where there is no AUC: by its distance from its median.
        kinds: int64 [conditions], the kind of each.
    """
    columns = {name: stored[name].to_pandas().to_numpy() for name in stored.column_names}
    condition, trial = columns["condition"], columns["trial"]
    loss = -columns["auc"].astype(float)
    if np.isnan(loss).all() and stored.num_columns > len(HARM):
        metric = columns[stored.column_names[-1]].astype(float)
        loss = np.abs(metric - (np.nanmedian(metric) if np.isfinite(metric).any() else 0.0))
    unknown = columns["rows_reached"].astype(float)
    reached = np.isnan(unknown) | (unknown > 0)  # of training nobody counts rows
    ranks = [-trial, unknown, columns["logloss"].astype(float), loss]
    ranks = [np.nan_to_num(rank, nan=-np.inf, posinf=np.inf, neginf=-np.inf) for rank in ranks]
    worst = np.lexsort((*ranks, columns["outcome"] != "ok", reached))[::-1]

    def most_harmed(groups: np.ndarray) -> np.ndarray:
        """A row of each group, the worst one first."""
        return worst[np.sort(np.unique(groups[worst], return_index=True)[1])]

    by_chance = np.random.default_rng(len(stored)).permutation
    of_kinds, of_conditions = most_harmed(kinds[condition]), by_chance(most_harmed(condition))
    begins = by_chance(np.flatnonzero(np.diff(condition, prepend=-1)))
    # Where no error reached a row, no stored trial can show other code (see `StoredProbes`).
    rows = dict.fromkeys([*of_kinds, *of_conditions[reached[of_conditions]], *begins])
    places = [(int(condition[row]), int(trial[row])) for row in rows]
    n = min(len(of_kinds), max(FEW, int(SHARE * len(stored))))
    return places[:n], places[n:]


def _check_trial(store: Store, runner: Runner, condition: int, trial: int, name: str, differing: str) -> None:
    """Raises StoreError if a stored trial has another result now; `differing` names what differs from the store's machine."""
    stored, repeated = store.trial(condition, trial), _computed(runner, condition, trial)
    if _equal(stored, repeated, exact=not differing):
        return
    with threads(1):  # workers have one
        once_more = _computed(runner, condition, trial)
    if _equal(stored, once_more, exact=not differing):
        return
    where = f"trial {trial} of {name}"
    if not _equal(repeated, once_more, exact=True):
        raise StoreError(
            f"{store.folder}: {where} is not deterministic: {_values(repeated, once_more)} when it is computed twice here"
        )
    because = f" (made with other {differing})" if differing else ""
    raise StoreError(
        f"{store.folder} holds other results than the code and data of now give{because}: {where} has "
        f"{_values(stored, repeated)} when it is computed again. Delete the folder to compute all trials again, or pass "
        "another store="
    )


def _computed(runner: Runner, condition: int, trial: int) -> pa.Table:
    table, stopped = runner(Chunk(condition, (trial,)))
    if stopped is not None:
        raise stopped
    return table


def _differing(made_by: dict[str, Any]) -> str:
    """What differs here from the machine that made a store, as `processor, torch`; empty if nothing."""
    present = {**versions(), "processor": machine()["processor"], "architecture": machine()["architecture"]}
    stored = {**made_by.get("versions", {}), **made_by.get("machine", {})}
    return ", ".join(name for name, value in present.items() if stored.get(name) != value)


def _equal(first: pa.Table, other: pa.Table, *, exact: bool) -> bool:
    """Whether two results of a trial are equal, bit for bit or in their errors and, within the tolerance, AUC."""
    first, other = _row(first), _row(other)
    for name in LATER:
        if None in (first.get(name), other.get(name)):  # an earlier version stored none
            first.pop(name, None), other.pop(name, None)
    if exact:
        return repr(first) == repr(other)  # in which a NaN equals a NaN
    if any(repr(first[name]) != repr(other[name]) for name in _OF_THE_MAP):
        return False
    aucs = first["auc"], other["auc"]
    return aucs[0] == aucs[1] or (None not in aucs and abs(aucs[0] - aucs[1]) <= TOLERANCE)


def _row(table: pa.Table) -> dict[str, Any]:
    return {name: value for name, value in table.to_pylist()[0].items() if name not in NOT_COMPARED}


def _values(first: pa.Table, other: pa.Table) -> str:
    """The first results that differ, as `auc 0.8012 stored and 0.7923`."""
    first, other = _row(first), _row(other)
    names = [name for name in ("auc", *first) if repr(first[name]) != repr(other[name])]
    if names[0] == "errors":
        return "errors in other bits"
    return f"{names[0]} {first[names[0]]!r}, and {other[names[0]]!r}"
