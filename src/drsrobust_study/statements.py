"""The values by which statements of the study (S1 to S20) are judged: one row per unit, which is a trained or a drawn model.

Notebooks save them as `NN_name_statements`. What they say of a statement is decided in `reproduce/statements.py` alone.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.statistics import CONFIDENCE, rule_of_three

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("statement", "part", "dataset", "item", "what", "unit", "value", "error")
LEAST = 3  # units, below which there is no interval


def values(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """A table of values.

    Args:
        rows: `statement` (`S6`), `item` (a curve or cell: what the condition of a rule is asked of), `what` (a quantity of the
            rule), `unit` (training seed, or number of the drawn model) and `value`; where they apply `part` (of a statement
            with several verdicts), `dataset` and `error` (standard error of the value over error maps; of the decimal
            logarithm of a ratio).
    """
    import pandas as pd

    words = {"part": "", "dataset": "", "error": float("nan")}
    return pd.DataFrame([words | dict(row) for row in rows], columns=list(COLUMNS))


def interval(
    values: "np.ndarray | pd.Series",
    errors: "np.ndarray | pd.Series | None" = None,
    *,
    log: bool = False,
    share: bool = False,
) -> tuple[float, float, float]:
    """The mean over units and its 95 % interval: Student's t, with the larger of the variance between units and the mean square
    of their own errors; of shares that all agree, what so few units may have missed.

    Args:
        values: [units].
        errors: [units], each value's standard error over error maps (of log10 of a ratio); None or NaN: unknown.
        log: the mean and its interval are those of the logarithms.
        share: the values lie within [0, 1].

    Returns:
        mean, low, high; the ends are NaN for fewer than `LEAST` units, of values that are not finite, and of values that all
        agree but are no shares.
    """
    from scipy.special import stdtrit

    values = np.asarray(values, float)
    if log:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log10(values)
    n, mean = len(values), float(np.mean(values)) if len(values) else math.nan
    back = (lambda x: 10.0**x) if log else float
    if n < LEAST or not np.isfinite(values).all():
        return back(mean), math.nan, math.nan
    own = 0.0 if errors is None else float(np.nan_to_num(np.mean(np.square(np.asarray(errors, float)))))
    variance = max(float(values.var(ddof=1)), own)
    if variance <= 1e-24:
        missed = rule_of_three(n, CONFIDENCE) if share else math.nan
        return back(mean), mean - missed * mean, mean + missed * (1 - mean)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * math.sqrt(variance / n)
    low, high = (max(mean - half, 0.0), min(mean + half, 1.0)) if share else (mean - half, mean + half)
    return back(mean), back(low), back(high)


def means(table: "pd.DataFrame", *, log: Iterable[str] = ()) -> "pd.DataFrame":
    """What a notebook shows of its values: mean and 95 % interval over units, a row per item and quantity.

    Args:
        table: as `values` gives it.
        log: quantities that are ratios.
    """
    import pandas as pd

    rows, ratios = [], set(log)
    for keys, group in table.groupby(["statement", "part", "dataset", "item", "what"], sort=False):
        row = dict(zip(COLUMNS, keys, strict=False))
        ends = interval(group["value"], group["error"], log=row["what"] in ratios)
        rows.append(row | dict(zip(("value", "low", "high"), ends, strict=True)) | {"units": len(group)})
    return pd.DataFrame(rows)
