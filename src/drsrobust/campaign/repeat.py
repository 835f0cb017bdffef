"""Stored trials computed again, the first and the most harmed one of each condition, to see that code and machine still give
what is stored.

The campaign's identity holds all code that can be found. What it cannot hold (a file that a function reads, a compiled
extension, an environment variable) shows here.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from drsrobust._processes import threads
from drsrobust._provenance import machine, versions
from drsrobust.campaign.schedule import Chunk
from drsrobust.campaign.store import Store, StoreError
from drsrobust.campaign.table import LATER
from drsrobust.campaign.trial import Runner

HARM = ("condition", "trial", "outcome", "auc", "logloss", "rows_reached")  # columns that `trials_to_repeat` reads
TOLERANCE = 1e-6  # of AUC, on another processor or with other versions
NOT_COMPARED = ("seconds", "worker", "error", "rows_reached")  # times, a text, and how much was computed
_OF_THE_MAP = ("seed", "outcome", "bits_flipped", "words_hit", "realised_rate", "errors")


def trials_to_repeat(stored: pa.Table) -> dict[int, list[int]]:
    """The trials that tell most, by condition: its first one, and the most harmed one whose errors reached rows. At low rates
    the first one has no error, and other code gives the same.

    Args:
        stored: `condition`, `trial`, `outcome`, `auc`, `logloss` and `rows_reached` of the stored trials, by condition and
            trial; behind them may be a metric, which counts where there is no AUC: by its distance from its median.
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
    order = np.lexsort((*ranks, columns["outcome"] != "ok", reached, condition))
    chosen: dict[int, list[int]] = {}
    for at in np.flatnonzero(np.diff(condition, prepend=-1)):
        chosen[int(condition[at])] = [int(trial[at])]
    for at in order[np.flatnonzero(np.diff(condition[order], append=-1))]:  # the last one of each condition
        repeated = chosen[int(condition[at])]
        if not reached[at]:
            continue  # no error reached a row: no stored trial of this condition can show other code (a probe would go here)
        repeated += [int(trial[at])] if int(trial[at]) not in repeated else []
    return chosen


def check_trials(
    store: Store, runner: Runner, names: Sequence[str], conditions: Sequence[int], stored: pa.Table
) -> None:
    """Computes stored trials of some conditions again, and compares them with what is stored: bit for bit on the processor and
    with the versions that made the store, else the same errors and an AUC within `TOLERANCE`, with a warning.

    Args:
        store: that is held for writing.
        runner: of the campaign.
        names: of all conditions, for messages.
        conditions: numbers of those to check.
        stored: what `trials_to_repeat` chooses them by.

    Raises:
        StoreError: a trial has another result; the message has both values.
    """
    chosen = trials_to_repeat(stored)
    differing = _differing(store.made_by)
    for number in conditions:
        for trial in chosen.get(number, ()):
            _check_trial(store, runner, number, trial, names[number], differing)
    if differing and conditions:
        warnings.warn(
            f"{store.folder} was made with other {differing}; some of its trials were computed again and agree within "
            f"{TOLERANCE:g} in AUC",
            stacklevel=2,
        )


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
