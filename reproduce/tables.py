"""The CSVs of a run."""

from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def read_table(path: Path, **options: Any) -> "pd.DataFrame":
    """A CSV of a run, without the comments before its header; with options of `pandas.read_csv`."""
    import pandas as pd

    with open(path) as handle:
        comments = sum(1 for _ in takewhile(lambda line: line.startswith("#"), handle))
    return pd.read_csv(path, skiprows=comments, **options)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV as text, without comments."""
    return read_table(path, dtype=str, keep_default_na=False).to_dict("records")


def read_named(figures: Path, name: str) -> "pd.DataFrame | None":
    """The CSV of this name in a folder of figures or in its data/; None where there is none."""
    paths = (figures / f"{name}.csv", figures / "data" / f"{name}.csv")
    return next((read_table(path) for path in paths if path.is_file()), None)
