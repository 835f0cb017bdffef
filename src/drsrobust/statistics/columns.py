"""Columns of trial tables and summaries that statistics, campaigns and figures share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

CONDITION = ("model", "dataset", "protocol", "error_model", "rate", "ber", "target", "mitigation")
# What a condition is made of, the same in all its trials: class names, settings, shares.
STRUCTURED = (
    *("error_kind", "error_bit", "error_count", "error_mode", "target_table", "target_rows", "target_share"),
    *("mitigation_kind", "n_bits"),
)
NONE = "none"  # the value of `mitigation` without any
MITIGATION = ("mitigation", "mitigation_id")  # its label, and a hash of its settings
# How the number of trials was chosen: beforehand, or from the trials' AUC (`Campaign(precision=...)`). Not stored, since
# campaigns of both kinds share a store.
STOPPING = "stopping"
FIXED, PRECISION = "fixed", "precision"
ENDS = ("", "_low", "_high")  # suffixes of a value and the ends of its interval


def identifying(table: "pd.DataFrame", columns: Sequence[str]) -> list[str]:
    """Columns to group a table by, with `mitigation_id` where the table has one (a table made by hand may have none)."""
    known = "mitigation_id" in table and "mitigation_id" not in columns
    return [*columns, *(["mitigation_id"] if known else [])]
