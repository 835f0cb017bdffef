"""Columns that campaigns will write themselves, read from labels. TO BE REMOVED with its calls once they do."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def structured(table: "pd.DataFrame") -> "pd.DataFrame":
    if "error_kind" in table:
        return table
    fields = {"error_kind": table["error_model"].str.extract(r"^(\w+)")[0]}
    for column, pattern in (("error_bit", r"^SingleBit\(bit=(\d+)\)$"), ("error_count", r"^FixedCount\(k=(\d+)\)$")):
        fields[column] = table["error_model"].str.extract(pattern)[0].astype(float)
    if "target" in table:
        rows = table["target"].str.extract(r"^Rows\((.+), (hot|cold) ([\d.e-]+) of \w*\)$")
        fields |= {"target_table": rows[0], "target_rows": rows[1], "target_share": rows[2].astype(float)}
    return table.assign(**fields)
