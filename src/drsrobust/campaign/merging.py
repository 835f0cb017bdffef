"""Shards of a campaign, joined: the table of one process, and refusals of all that would not be it."""

import json
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from drsrobust._arguments import check_items, wrong
from drsrobust._files import expanded
from drsrobust.campaign.repeat import NOT_COMPARED
from drsrobust.campaign.shards import Shard, full_run_of, shard_folders
from drsrobust.campaign.store import JOINED_TRIALS, StoreError
from drsrobust.campaign.stored_trials import StoredTrials

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.campaign.schedule import Schedule
    from drsrobust.campaign.store import Store

_SHOWN = 8  # trial numbers in a message


def merge(campaign: StoredTrials, folders: Sequence[str | PathLike] | None = None) -> "pd.DataFrame":
    """Joins the stores of all shards to that of the campaign, computing nothing, and returns the campaign's table: that of one
    process bit for bit, if all shards ran on one kind of processor. The shards' folders stay. It may run again.

    Args:
        campaign: as each shard made it.
        folders: of the shards, from any machine, also several copies of one, complete or not; None: those next to the
            campaign's store.

    Warns:
        UserWarning: a shard that was made with other versions, or on another processor, than the campaign's store.

    Raises:
        StoreError: a folder that holds no shard of this campaign or is being written to, shards of other numbers, a trial that
            no shard has computed, or one that two folders have with different results; nothing is merged.

    Example:
        >>> table = merge(read_campaign("study.toml"))  # doctest: +SKIP
    """
    if not hasattr(campaign, "store"):
        raise wrong("campaign", "a campaign, as Campaign(...)", campaign)
    whole = campaign.store
    if folders is None:
        paths = shard_folders(whole.folder)
    else:
        named = check_items("folders", folders, "a list of the shards' folders, or one", (str, PathLike))
        paths = [expanded("each of folders", one).resolve() for one in named]
    if not paths:
        raise StoreError(f"there are no shards next to {whole.folder}; run them, or name their folders")
    shards = {path: _read_shard(path) for path in paths}
    numbers = sorted({shard.of for shard in shards.values()})
    if len(numbers) > 1:
        raise StoreError(
            f"{whole.folder}: shards of {' and of '.join(map(str, numbers))} cannot be merged; name the folders of one number"
        )
    stores = {f"shard {shard} in {path}": campaign._of_shard(shard, path).store for path, shard in shards.items()}
    with ExitStack() as stack:
        for store in (*stores.values(), whole):
            stack.enter_context(store.writing())
        _check_full_runs(stores | ({"the merged store": whole} if whole.full_run else {}))
        restarts = not whole.full_run and any(store.full_run for store in stores.values())
        merged = whole.read().slice(0, 0 if restarts else None)
        parts = {"the merged store": merged} | {name: store.read() for name, store in stores.items()}
        table = _without_repeats(parts, whole.folder)
        _check_complete(campaign, campaign._schedule_of(table), numbers[0])
        if restarts:
            whole.restart(full_run_of(paths))
        known = set(zip(merged["condition"].to_pylist(), merged["trial"].to_pylist(), strict=True))
        keys = zip(table["condition"].to_pylist(), table["trial"].to_pylist(), strict=True)
        new = [row for row, key in enumerate(keys) if key not in known]
        conditions = table["condition"].to_numpy()
        for _, rows in groupby(new, key=lambda row: conditions[row]):
            rows = list(rows)
            for start in range(0, len(rows), JOINED_TRIALS):
                whole.write(table.take(pa.array(rows[start : start + JOINED_TRIALS])))
        whole.compact()
    for name, store in stores.items():
        if differing := _differing(store.made_by, whole.made_by):
            warnings.warn(
                f"{name} was made with other {differing} than {whole.folder}; its results are taken as they are",
                stacklevel=2,
            )
    return campaign.table()


def _read_shard(folder: Path) -> Shard:
    try:
        return Shard.of_manifest(json.loads((folder / "manifest.json").read_text())["shard"])
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{folder} holds no shard of a campaign: {error}") from error


def _differing(made_by: dict[str, Any], other: dict[str, Any]) -> str:
    """The packages, and parts of the machine, in which what made two stores differs, as `torch, processor`."""
    first, second = (
        {
            **made.get("versions", {}),
            **{part: made.get("machine", {}).get(part) for part in ("processor", "architecture")},
        }
        for made in (made_by, other)
    )
    return ", ".join(name for name in first | second if first.get(name) != second.get(name))


def _check_full_runs(stores: "dict[str, Store]") -> None:
    """Raises StoreError if some shards hold full runs and others do not: their trials may differ."""
    full = [name for name, store in stores.items() if store.full_run]
    others = [name for name, store in stores.items() if not store.full_run]
    if full and others:
        raise StoreError(
            f"{full[0]} found that reruns must be full runs ({stores[full[0]].full_run}), and {', '.join(others)} had ended "
            "before; run these shards again"
        )


def _without_repeats(parts: dict[str, pa.Table], folder: Path) -> pa.Table:
    """All trials by condition and number, each once. Raises StoreError for one with two results."""
    table = pa.concat_tables(parts.values())
    origin = np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()])
    condition, trial = table["condition"].to_numpy(), table["trial"].to_numpy()
    order = np.lexsort((origin, trial, condition))
    repeats = (np.diff(condition[order]) == 0) & (np.diff(trial[order]) == 0)
    again = np.flatnonzero(repeats) + 1
    pairs = ([_compared(table, rows) for rows in (order[again - 1], order[again])]) if len(again) else ([], [])
    for at, first, other in zip(again.tolist(), *pairs, strict=True):
        if first != other:
            names = list(parts)
            places = [names[origin[order[row]]] for row in (at - 1, at)]
            raise StoreError(
                f"{folder}: trial {trial[order[at]]} of condition {condition[order[at]]} has other results in "
                f"{places[0]} and in {places[1]}: {first} and {other}; were both made by one code, on one kind of processor?"
            )
    return table.take(pa.array(np.delete(order, again)))


def _compared(table: pa.Table, rows: np.ndarray) -> list[str]:
    """Each row as text, in which a NaN equals a NaN, without what is no result."""
    chosen = table.drop_columns(list(NOT_COMPARED)).take(pa.array(rows))
    return [repr(row) for row in chosen.to_pylist()]


def _check_complete(campaign: StoredTrials, schedule: "Schedule", of: int) -> None:
    """Raises StoreError for trials that nobody has computed; the message names their shards."""
    lacking: dict[int, list[tuple[str, int]]] = {}
    for number, condition in enumerate(campaign.conditions):
        for trial in schedule.lacking(number):
            lacking.setdefault(trial % of, []).append((f"{condition.error_model} in {condition.target}", trial))
    if not lacking:
        return
    index, trials = min(lacking.items())
    first = trials[0][0]
    shown = [str(trial) for where, trial in trials if where == first]
    text = ", ".join(shown[:_SHOWN]) + (", ..." if len(shown) > _SHOWN else "")
    others = (
        f" (as do shards {', '.join(f'{other}/{of}' for other in sorted(lacking)[1:])})" if len(lacking) > 1 else ""
    )
    raise StoreError(
        f"{campaign.store.folder}: shard {index}/{of} lacks {len(trials):,} trials{others}: {text} of {first}; run "
        f"shard {index}/{of} and merge again"
    )
