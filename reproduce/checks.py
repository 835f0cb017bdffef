"""The kinds of check that `claims.toml` names: each looks at some rows of a figure's CSV and says what it found.

Rows have columns `value`, `low` and `high` (the ends of its interval; where there is none, the value itself, and of a quotient
NaN) beside the CSV's own. `reproduced` asks that the intervals hold too; what holds by the values alone is `partly`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isinf, nan
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.study import notebook

if TYPE_CHECKING:
    import pandas as pd

REPRODUCED, PARTLY, NOT, NOT_TESTED = VERDICTS = (*notebook.VERDICTS, "not tested")


@dataclass(frozen=True)
class Finding:
    """What a check found: a number with its interval, one of `VERDICTS`, and what else there is to say."""

    value: float
    low: float
    high: float
    verdict: str
    detail: str = ""


def at_least(rows: "pd.DataFrame", *, bound: float, tolerance: float = 0.0, along: str | None = None) -> Finding:
    """All values are at least `bound` - `tolerance`. The number is the least; `along` names the column that says where.

    `partly`: all values are, but not all lower ends; or only some values are.
    """
    limit = bound - tolerance
    return _all(rows, rows["value"].idxmin(), rows["value"] >= limit, rows["low"] >= limit, along)


def at_most(rows: "pd.DataFrame", *, bound: float, tolerance: float = 0.0, along: str | None = None) -> Finding:
    """All values are at most `bound` + `tolerance`; as `at_least`."""
    limit = bound + tolerance
    return _all(rows, rows["value"].idxmax(), rows["value"] <= limit, rows["high"] <= limit, along)


def _all(rows: "pd.DataFrame", worst: int, holds: "pd.Series", sure: "pd.Series", along: str | None) -> Finding:
    place = f"at {along} {number(rows.loc[worst, along])}" if along else ""
    count = "" if holds.all() or len(rows) == 1 else f"{int(holds.sum())} of {len(rows)} hold"
    verdict = REPRODUCED if sure.all() else PARTLY if holds.any() else NOT
    if verdict == PARTLY and holds.all():
        measured = rows[["low", "high"]].notna().all(axis=None)
        count = f"holds by the values, {'not by their intervals' if measured else 'whose intervals are not known'}"
    return _finding(rows.loc[worst], verdict, ", ".join(filter(None, (place, count))))


def largest_is(rows: "pd.DataFrame", *, column: str, named: object) -> Finding:
    """The row with the largest value is the one that has `named` in `column`, and its interval lies above all others.

    The number is that of `named`, whether it is the largest or not.
    """
    ordered = rows.sort_values("value", ascending=False, kind="stable")
    ours = ordered[ordered[column] == named]
    if len(ours) != 1 or len(ordered) < 2:
        return Finding(nan, nan, nan, NOT_TESTED, f"{len(ours)} rows of {column} {named}, {len(ordered)} in all")
    one, others = ours.iloc[0], ordered[ordered[column] != named]
    first, apart = others.iloc[0], one["low"] > others["high"].max()
    verdict = REPRODUCED if apart else PARTLY if one["value"] > first["value"] else NOT
    return _finding(
        one, verdict, f"{'then' if verdict != NOT else 'less than'} {number(first[column])}: {_text(first)}"
    )


def power(rows: "pd.DataFrame", *, along: str) -> Finding:
    """The value grows as a power of `along` that is surely not 0: least squares of the logarithms, interval by Student's t of
    what lies off the line (n - 2 degrees of freedom). Values that are not over 0 are left out.
    """
    from scipy.stats import linregress, t

    there = rows[(rows["value"] > 0) & (rows[along] > 0)]
    if there[along].nunique() < 3:
        return Finding(nan, nan, nan, NOT_TESTED, f"{along} has fewer than 3 values")
    fit = linregress(np.log10(there[along].astype(float)), np.log10(there["value"].astype(float)))
    half = float(t.ppf(0.975, len(there) - 2) * fit.stderr)
    slope, least, most = float(fit.slope), there["value"].min(), there["value"].max()
    verdict = REPRODUCED if slope - half > 0 or slope + half < 0 else NOT
    detail = f"{number(least)} to {number(most)} in {len(there)}, {along} {number(there[along].min())} to "
    return Finding(slope, slope - half, slope + half, verdict, f"{detail}{number(there[along].max())}")


def stated(rows: "pd.DataFrame") -> Finding:
    """The notebook has judged: column `verdict`, and `detail` where there is one. A verdict that is none of `VERDICTS`, as
    `nothing lost`, is the reason why it is not tested.

    Raises:
        ValueError: several rows.
    """
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} rows state a verdict; `where` and `by` must leave one")
    row = rows.iloc[0]
    detail = str(row["detail"]) if "detail" in row and row["detail"] == row["detail"] else ""
    verdict = str(row["verdict"])
    if verdict not in VERDICTS:
        return _finding(row, NOT_TESTED, verdict)
    return _finding(row, verdict, detail)


KINDS: dict[str, Callable[..., Finding]] = {
    kind.__name__: kind for kind in (at_least, at_most, largest_is, power, stated)
}


def number(value: object) -> str:
    """A number with three digits; `100` and `1e-5` rather than `1e+02` and `1e-05`; text as it is."""
    if not isinstance(value, Real):
        return str(value)
    if value != value:
        return "none"
    if isinf(value):
        return "infinite"
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return f"{value:.3g}"
    if 1e3 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def interval(value: float, low: float, high: float) -> str:
    """`0.3 [0.2, 0.4]`; the value alone where there is no interval, nothing where there is no number."""
    if value != value:
        return ""
    if (low != low and high != high) or low == value == high:
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"


def _text(row: "pd.Series") -> str:
    return interval(row["value"], row["low"], row["high"])


def _finding(row: "pd.Series", verdict: str, detail: str = "") -> Finding:
    return Finding(float(row["value"]), float(row["low"]), float(row["high"]), verdict, detail)
