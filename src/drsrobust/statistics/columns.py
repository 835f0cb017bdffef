"""Columns of trial tables and summaries that statistics, campaigns and figures share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drsrobust._arguments import check_instance, check_number

if TYPE_CHECKING:
    import pandas as pd

CONDITION = ("model", "dataset", "protocol", "error_model", "rate", "ber", "target", "mitigation")
# What a condition is made of, the same in all its trials: class names, settings, shares.
STRUCTURED = (
    *("error_kind", "error_bit", "error_count", "error_mode", "error_chips", "error_mapping"),
    *("target_table", "target_rows", "target_share", "mitigation_kind", "corrects_mode", "n_bits"),
)
NONE = "none"  # the value of `mitigation` without any
MITIGATION = ("mitigation", "mitigation_id")  # its label, and a hash of its settings
# Wrong decisions with NaN as wrong and as no click, and the share of NaN rows: together they give every rule for NaN.
DECISIONS = ("decision_changed", "decision_changed_no_click", "nan_share")
ALL = "all"  # the stratum of plain maps
ENDS = ("", "_low", "_high")  # suffixes of a value and the ends of its interval
DRAWS = 8  # of the error of a metric over rows, in each of the first trials of a condition
OVER_ROWS = {name: tuple(f"{name}_rows_{k}" for k in range(1, DRAWS + 1)) for name in ("auc", "auc_drop")}


def with_nan_rules(names: Sequence[str]) -> list[str]:
    """The names, each of a decision metric followed by those of `DECISIONS` that are missing: what the number would be by
    another rule for NaN, and how many rows it is about.

    Example:
        >>> with_nan_rules(["decision_changed/buy", "auc"])
        ['decision_changed/buy', 'decision_changed_no_click/buy', 'nan_share/buy', 'auc']
    """
    every: dict[str, None] = {}
    for name in names:
        base, slash, task = str(name).partition("/")
        others = DECISIONS if base in DECISIONS else ()
        every |= dict.fromkeys([name, *(rule + slash + task for rule in others if rule + slash + task not in names)])
    return list(every)


def check_table(table: object, columns: Sequence[str] = (), name: str = "table") -> None:
    """Raises ArgumentError for what is no table, ValueError for one without trials or without one of some columns."""
    import pandas as pd

    check_instance(name, table, pd.DataFrame, "a table of trials, as campaign.run() returns it")
    if missing := [column for column in columns if column not in table]:
        raise ValueError(f"{name} has no column {missing[0]!r}; it must be one of trials, as campaign.run() returns it")
    if not len(table):
        raise ValueError(f"{name} has no rows; it must hold one trial or more")


def check_confidence(confidence: float) -> None:
    """Raises ArgumentError for what is no level of confidence."""
    check_number("confidence", confidence, "a number over 0 and under 1", lambda level: 0 < level < 1)


def identifying(table: "pd.DataFrame", columns: Sequence[str]) -> list[str]:
    """Columns to group a table by, with `mitigation_id` where the table has one (a table made by hand may have none)."""
    has_id = "mitigation_id" in table and "mitigation_id" not in columns
    return [*columns, *(["mitigation_id"] if has_id else [])]
