"""Effects beyond the study: a number in words, over trained models where a notebook has several. No verdict is made of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.statistics import ENDS
from drsrobust_study.statements import LEAST, interval

if TYPE_CHECKING:
    import pandas as pd

SPREAD = ("value", "low", "high", "n", "interval", "least", "most", "sd_trainings", "sd_maps", "why")
COLUMNS = ("effect", "what", *SPREAD)
TRAININGS, MAPS = "trainings", "maps"
TOO_FEW, EQUAL = "too few maps to say", "the same in all trainings"
_APART = 1_000_003  # seeds of campaigns of two trainings: no error map is used twice
_Z = 1.959964


def campaign_seed(seed: int, train_seed: int) -> int:
    """The seed of the error maps of a trained model: other maps in each."""
    return seed + _APART * train_seed


def spread(
    values: Iterable[float],
    lows: Iterable[float] | None = None,
    highs: Iterable[float] | None = None,
    *,
    log: bool = False,
) -> dict[str, Any]:
    """The mean of a quantity over trained models and how far it spreads.

    Args:
        values: one per training; those that are not finite are left out.
        lows, highs: their 95 % intervals over error maps.
        log: of a ratio: the mean is that of the logarithms, and deviations are of the decimal logarithm.

    Returns:
        `SPREAD`: mean with its 95 % interval, `n` trainings, `interval` (what it holds over: `trainings`, Student's t; of under
        3 trainings `maps`, the means of `lows` and `highs`), `least` and `most` over trainings, `sd_trainings`, `sd_maps`
        (standard error of a training's value over its maps, by the nearer end of its interval), `why` (where a number or end
        is missing).
    """
    given = np.array([list(values)] + [list(values) if ends is None else list(ends) for ends in (lows, highs)], float)
    given, total = given[:, np.isfinite(given[0])], given.shape[1]
    row: dict[str, Any] = dict.fromkeys(SPREAD, math.nan) | {"n": given.shape[1], "interval": "", "why": ""}
    row["why"] = f"without {total - row['n']} of {total} trainings: no finite value" if row["n"] < total else ""
    if not row["n"]:
        return row | {"why": TOO_FEW}
    if log:
        given[1] = np.maximum(given[1], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.log10(given) if log else given
        errors = np.minimum(scaled[0] - scaled[1], scaled[2] - scaled[0]) / _Z
    value, low, high = interval(given[0], None if lows is None else errors, log=log)
    row |= {"value": value, "least": given[0].min(), "most": given[0].max()}
    row["sd_maps"] = math.nan if lows is None else float(np.sqrt(np.mean(errors**2)))
    if row["n"] < LEAST:
        low, high = (math.nan, math.nan) if lows is None else given[1:].mean(axis=1).tolist()
        return row | {
            "low": low,
            "high": high,
            "interval": MAPS if low <= high else "",
            "why": row["why"] if low <= high else "one training",
        }
    row |= {"low": low, "high": high, "sd_trainings": float(scaled[0].std(ddof=1))}
    return row | ({"interval": TRAININGS} if low <= high else {"why": EQUAL})


def over_trainings(
    effect: str,
    what: str,
    values: Iterable[float],
    lows: Iterable[float] | None = None,
    highs: Iterable[float] | None = None,
    *,
    log: bool = False,
) -> dict[str, Any]:
    """An effect, `what` in words, by its values in the trained models; other arguments as of `spread`."""
    return {"effect": effect, "what": what} | spread(values, lows, highs, log=log)


def of_table(effect: str, what: str, found: "pd.DataFrame", *, log: bool = False) -> dict[str, Any]:
    """`over_trainings` of a table with `value`, `low` and `high`, a row per training."""
    return over_trainings(effect, what, found["value"], found["low"], found["high"], log=log)


def measured(effect: str, what: str, ends: Sequence[float], n: int, over: str, why: str = "") -> dict[str, Any]:
    """An effect in one trained model: `ends` are value, low and high, `n` maps or trials, `over` what the interval is of."""
    return (
        {"effect": effect, "what": what}
        | dict(zip(SPREAD[:3], ends, strict=True))
        | {"n": n, "interval": over, "why": why}
    )


def table(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Effects as a table with `COLUMNS`."""
    import pandas as pd

    return pd.DataFrame(list(rows), columns=list(COLUMNS)).fillna({"interval": "", "why": ""})


def pooled(tables: "Mapping[int, pd.DataFrame]", keys: Sequence[str], values: Sequence[str]) -> "pd.DataFrame":
    """Equal tables of several trained models as one.

    Args:
        tables: training seed -> its table.
        keys: columns of a row's name.
        values: numbers with `_low` and `_high`.

    Returns:
        a row per name, in the tables' order: `keys`, `n` (trials of all trainings, if the tables have it), `trainings`, and
        each of `values` with `_low`, `_high`, `_least` and `_most`, by `spread`.
    """
    import pandas as pd

    rows = []
    for names, group in pd.concat(tables.values(), ignore_index=True).groupby(list(keys), sort=False, dropna=False):
        row = dict(zip(keys, names, strict=True)) | {"trainings": 0}
        row |= {"n": int(group["n"].sum())} if "n" in group else {}
        for value in values:
            found = spread(*(group[f"{value}{end}"] for end in ENDS if f"{value}{end}" in group))
            row["trainings"] = max(row["trainings"], found["n"])
            row |= {
                f"{value}{end}": found[name]
                for end, name in zip((*ENDS, "_least", "_most"), ("value", "low", "high", "least", "most"), strict=True)
            }
        rows.append(row)
    return pd.DataFrame(rows)


def shown(effects: "pd.DataFrame") -> "pd.DataFrame":
    """Effects as a notebook shows them: three digits, with `what` as the name of a row."""
    return effects.set_index("what")[["value", "low", "high", "n", "interval", "least", "most", "why"]].map(
        lambda cell: float(f"{cell:.3g}") if isinstance(cell, float) else cell
    )
