"""Stored trials computed again: the first one of each condition, to see that code and machine still give what is stored.

The campaign's identity holds all code that can be found. What it cannot hold (a file that a function reads, a compiled
extension, an environment variable) shows here.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from drsrobust._processes import threads
from drsrobust._provenance import machine, versions
from drsrobust.campaign.schedule import Chunk
from drsrobust.campaign.store import Store, StoreError
from drsrobust.campaign.table import LATER
from drsrobust.campaign.trial import Runner

TOLERANCE = 1e-6  # of AUC, on another processor or with other versions
NOT_COMPARED = ("seconds", "worker", "error", "rows_reached")  # times, a text, and how much was computed
_OF_THE_MAP = ("seed", "outcome", "bits_flipped", "words_hit", "realised_rate", "errors")


def check_first_trials(store: Store, runner: Runner, names: Sequence[str], conditions: Sequence[int]) -> None:
    """Computes the first stored trial of some conditions again, and compares it with what is stored: bit for bit on the
    processor and with the versions that made the store, else the same errors and an AUC within `TOLERANCE`, with a warning.

    Args:
        store: that is held for writing.
        runner: of the campaign.
        names: of all conditions, for messages.
        conditions: numbers of those to check.

    Raises:
        StoreError: a trial has another result; the message has both values.
    """
    differing = _differing(store.made_by)
    for number in conditions:
        if (stored := store.first_trial(number)) is None:
            continue
        trial = stored["trial"][0].as_py()
        repeated = _computed(runner, number, trial)
        if _equal(stored, repeated, exact=not differing):
            continue
        with threads(1):  # workers have one
            once_more = _computed(runner, number, trial)
        if _equal(stored, once_more, exact=not differing):
            continue
        where = f"trial {trial} of {names[number]}"
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
    if differing and conditions:
        warnings.warn(
            f"{store.folder} was made with other {differing}; its first trials were computed again and agree within "
            f"{TOLERANCE:g} in AUC",
            stacklevel=2,
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
