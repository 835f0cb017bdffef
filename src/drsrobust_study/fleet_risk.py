"""What errors of memory cost a fleet a day, as a table (notebook 13)."""

from typing import TYPE_CHECKING

from drsrobust.statistics import ENDS
from drsrobust_extras.pages.plots.curves import mitigation_label
from drsrobust_study.findings import interval, number

if TYPE_CHECKING:
    import pandas as pd

_WIDE = 10  # ratio of the ends of an interval whose point says nothing
_NOTHING = 1e-6  # the same of a lower end that says nothing either
_SHOWN = ("wrong_per_day", "share_wrong", "stops_anywhere_per_day")
_WORDS = {
    "rate": "failure rates",
    "protection": "protection",
    "nonfinite": "a NaN is",
    "wrong_per_day": "wrong recommendations a day",
    "share_wrong": "share of all",
    "stops_anywhere_per_day": "hosts stopped a day",
}


def fleet_risk_table(data: "pd.DataFrame", served: float) -> "pd.DataFrame":
    """What a reader needs of a fleet's tables.

    Args:
        data: tables of `Fleet.table()`, one below the other, with `rate` (the name of their failure rates).
        served: recommendations of the whole fleet a day.

    Returns:
        a row each: `rate`, `protection`, `nonfinite` (the rule for NaN), and with `_low` and `_high` `wrong_per_day`,
        `share_wrong` (of all recommendations) and `stops_anywhere_per_day` (hosts).
    """
    shares = {f"share_wrong{end}": data[f"wrong_per_day{end}"] / served for end in ENDS}
    table = data.assign(protection=data["mitigation"].map(mitigation_label), **shares)
    return table[["rate", "protection", "nonfinite", *(f"{name}{end}" for name in _SHOWN for end in ENDS)]]


def worded(table: "pd.DataFrame") -> "pd.DataFrame":
    """`fleet_risk_table` as texts to read: each number with its interval in brackets, or the ends of a wide interval."""
    texts = {
        name: [_text(*ends) for ends in table[[f"{name}{end}" for end in ENDS]].itertuples(index=False)]
        for name in _SHOWN
    }
    return table[["rate", "protection", "nonfinite"]].assign(**texts).rename(columns=_WORDS)


def _text(value: float, low: float, high: float) -> str:
    if high <= _WIDE * low:
        return interval(value, low, high)
    return f"{number(low)} to {number(high)}" if low > _NOTHING * high else f"up to {number(high)}"
