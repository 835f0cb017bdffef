"""The table of published numbers and those of a run, from a TOML file and the CSVs of the run. No verdict is made of it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drsrobust._choices import unknown
from drsrobust_study.findings import interval
from reproduce.tables import read_named

if TYPE_CHECKING:
    import pandas as pd

ROWS = Path(__file__).with_suffix(".toml")
NOT_RUN = "not run"
_TEXTS = ("what", "source", "setting", "published", "csv", "same")
_SHOWN = {
    "what": "what",
    "published": "published",
    "source": "source and setting",
    "ours": "here",
    "same": "the same quantity?",
}


def load_rows(path: Path = ROWS) -> list[dict[str, Any]]:
    """The rows of a file: texts `what`, `source`, `setting`, `published`, `csv` and `same`, `where` and `value`.

    Raises:
        ValueError: an unknown or missing key; file and row are named.
    """
    rows = []
    for number, row in enumerate(tomllib.loads(path.read_text())["row"], 1):
        place = f"{path.name}, row {number}"
        for key in row:
            if key not in (*_TEXTS, "where", "value"):
                raise unknown(f"key in {place}", key, [*_TEXTS, "where", "value"])
        if missing := [key for key in (*_TEXTS, "where") if key not in row]:
            raise ValueError(f"{place}: no {', '.join(missing)}")
        rows.append({"value": "value"} | row)
    return rows


def table(figures: Path, path: Path = ROWS) -> "pd.DataFrame":
    """Published numbers and those of a run.

    Args:
        figures: folder of the run's CSVs.
        path: of the rows.

    Returns:
        `what`, `source`, `setting`, `published`, `same`, and `value`, `low`, `high`, `n`, `interval`, `why` (`not run` without
        the CSV or its row), as far as the CSV has them.

    Raises:
        ValueError: `where` matches several rows of a CSV.
    """
    import pandas as pd

    rows = []
    for row in load_rows(path):
        texts = {key: row[key] for key in _TEXTS if key != "csv"} | {"interval": "", "why": ""}
        found = read_named(figures, row["csv"])
        words = {"interval": "", "why": ""}  # text columns, even where no CSV is there
        rows.append(texts | words | ({"why": NOT_RUN} if found is None else _cell(found, row)))
    columns = [*(key for key in _TEXTS if key != "csv"), "value", "low", "high", "n", "interval", "why"]
    return pd.DataFrame(rows, columns=columns)


def _cell(found: "pd.DataFrame", row: Mapping[str, Any]) -> dict[str, Any]:
    """The number of a row in its CSV."""
    name, value = row["csv"], row["value"]
    for column in (*row["where"], value):
        if column not in found:
            raise unknown(f"column of {name}.csv", column, list(found.columns))
    chosen = found
    for column, asked in row["where"].items():
        chosen = chosen[chosen[column] == asked]
    if chosen.empty:
        return {"why": NOT_RUN}
    if len(chosen) > 1:
        raise ValueError(f"{name}.csv has {len(chosen)} rows with {dict(row['where'])}; it must have one")
    one = chosen.iloc[0]
    ends = {end: float(one.get(low, float("nan"))) for end, low in _ends(value).items()}
    return ends | {key: one[key] for key in ("n", "interval", "why") if key in chosen and one[key] == one[key]}


def _ends(value: str) -> dict[str, str]:
    low, high = ("low", "high") if value == "value" else (f"{value}_low", f"{value}_high")
    return {"value": value, "low": low, "high": high}


def as_markdown(found: "pd.DataFrame") -> str:
    """The table as Markdown; brackets hold the interval, and after it comes over what."""
    lines = [f"| {' | '.join(_SHOWN.values())} |", f"|{' --- |' * len(_SHOWN)}"]
    for row in found.to_dict("records"):
        ours = interval(row["value"], row["low"], row["high"])
        over = f" ({row['interval']}, n = {row['n']:g})" if ours and row["interval"] and row["n"] == row["n"] else ""
        why = f" ({row['why']})" if ours and row["why"] else row["why"]
        cells = row | {"source": f"{row['source']}: {row['setting']}", "ours": f"{ours}{over}{why}"}
        lines.append(f"| {' | '.join(str(cells[key]).replace('|', chr(92) + '|') for key in _SHOWN)} |")
    return "\n".join(lines) + "\n"
