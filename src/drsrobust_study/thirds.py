"""Findings on all trials and on each of three independent thirds of them: none hangs on one seed of the error maps."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics.columns import CONDITION
from drsrobust.statistics.strata import STRATUM, WEIGHT

if TYPE_CHECKING:
    import pandas as pd

THIRD = "third"  # 0: all trials
MIN_TRIALS = 6  # trials of a condition and stratum that are divided
# Columns beyond those of any campaign: the trained model, and the cells of the dummy recommender with its drawn models.
_OTHERS = ("mitigation_id", "checkpoint", "width", "depth", "embedding_dim", "density", "drawn")


def by_thirds(find: "Callable[..., pd.DataFrame]", *tables: "pd.DataFrame") -> "pd.DataFrame":
    """Findings on all trials, and on each of three independent thirds of them, so that none hangs on one seed.

    A third holds every third trial of each condition (and stratum): error maps of trials with different numbers are
    independent. Tables with under 6 trials in a condition are not divided.

    Args:
        find: makes a table of findings from tables of trials.
        tables: of campaigns.

    Returns:
        the findings, with a column `third`: 0, then 1 to 3.

    Example:
        >>> import pandas as pd
        >>> trials = pd.DataFrame({"rate": 1e-4, "trial": range(6), "auc": [0.5, 0.6, 0.7, 0.5, 0.6, 0.7]})
        >>> by_thirds(lambda table: pd.DataFrame({"value": [table["auc"].mean().round(2)]}), trials)["value"].tolist()
        [0.6, 0.5, 0.6, 0.7]
    """
    import pandas as pd

    findings = [find(*tables).assign(**{THIRD: 0})]
    keys = [_condition(table) for table in tables]
    if all(
        table.groupby(key, dropna=False).size().min() >= MIN_TRIALS for table, key in zip(tables, keys, strict=True)
    ):
        for third in range(3):
            parts = [_third(table, key, third) for table, key in zip(tables, keys, strict=True)]
            findings.append(find(*parts).assign(**{THIRD: third + 1}))
    return pd.concat(findings, ignore_index=True)


def _condition(table: "pd.DataFrame") -> list[str]:
    """The columns that tell conditions and strata of a table apart."""
    return [name for name in (*CONDITION, *_OTHERS, STRATUM) if name in table]


def _third(table: "pd.DataFrame", keys: list[str], third: int) -> "pd.DataFrame":
    in_third = (table["trial"] % 3 == third).to_numpy()
    part = table[in_third]
    if WEIGHT not in table or table[WEIGHT].isna().all():
        return part
    all_weights, third_weights = (
        frame.groupby(keys, dropna=False)[WEIGHT].transform("sum").to_numpy() for frame in (table, part)
    )
    weights = part[WEIGHT].to_numpy()  # of pilots 0
    scale = np.divide(all_weights[in_third], third_weights, out=np.zeros(len(part)), where=third_weights > 0)
    return part.assign(**{WEIGHT: weights * scale})
