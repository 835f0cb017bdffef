"""Whether a run agrees with the published one: number by number in units of intervals, and verdict by verdict.

Models that another processor trained differ, so AUC is compared as the loss from the model's AUC without errors. The distance
of two values v and v' with half-widths h and h' (of their intervals, on the sides that face each other) is |v' - v| / sqrt(h^2
+ h'^2). Of two independent estimates of one number with 95 % intervals it is over 1 in 5 % of cases.

Every published number with an interval counts. A run disagrees where it lacks the number or its interval, or where its interval
is over `WIDEST` times the published one: a run must not agree because it measured less. So it does where a table is missing, or
has another SHA-256 than its run recorded.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduce.bundle import altered_figures
from reproduce.notebooks import FIGURES
from reproduce.runner import read_run
from reproduce.same import TIMED_TABLES
from reproduce.statements import TABLE
from reproduce.tables import read_rows, read_table

if TYPE_CHECKING:
    import pandas as pd

WIDEST = 10  # times the published interval
AGREES, DIFFERS, MISSING, NO_INTERVAL = "agrees", "differs", "missing", "no interval"
WIDE = f"interval over {WIDEST} times the published one"
COUNTED = {"differs": DIFFERS, "missing": MISSING, "no_interval": NO_INTERVAL, "wide": WIDE}  # disagreements by column
COMPARED = ("data/*.csv", TABLE, "models.csv")  # tables in a folder of figures


def published_profile() -> str | None:
    """The profile of the published figures; None without any."""
    record = FIGURES / "run.json"
    return json.loads(record.read_text())["profile"] if record.is_file() else None


def compare_figures(published: Path, here: Path) -> "pd.DataFrame":
    """Every published number with an interval against that of another folder of figures, without measured times.

    Args:
        published, here: folders with `data/`.

    Returns:
        one row per number: `figure`, and the columns of `compare_tables`.
    """
    import pandas as pd

    parts = []
    for path in sorted((published / "data").glob("*.csv")):
        if path.name.startswith(TIMED_TABLES):
            continue
        other, rows = here / "data" / path.name, read_table(path)
        rows = compare_tables(rows, read_table(other) if other.is_file() else rows.iloc[:0])
        parts.append(rows.assign(figure=path.stem))
    empty = pd.DataFrame(columns=["figure", "where", "result", "distance"])
    return pd.concat(parts, ignore_index=True)[list(empty)] if parts else empty


def compare_tables(published: "pd.DataFrame", here: "pd.DataFrame") -> "pd.DataFrame":
    """Every number with an interval in the published table of a figure against the same number in another table.

    Rows belong together, in whatever order, by the first columns that distinguish the published rows (see `_keys`).

    Returns:
        one row per published number: `where` (column, and the row in words), `result` (`AGREES`, `DIFFERS`: a distance over 1,
        `MISSING`, `NO_INTERVAL` or `WIDE`), and `distance`: infinite where two numbers without width differ, NaN where it has
        no meaning.
    """
    import pandas as pd

    published, here = _as_loss(published), _as_loss(here)
    triples = _with_ends(published)
    keys = _keys(published, here, {column for triple in triples for column in triple})
    here = here.reindex(columns=dict.fromkeys([*here, *(column for triple in triples for column in triple)]))
    both = _numbered(published, keys).merge(
        _numbered(here, keys), on=[*keys, "copy"], how="left", suffixes=("", "_here")
    )
    varying = [key for key in keys if both[key].nunique() > 1]
    words = both[varying].agg(", ".join, axis=1) if varying else pd.Series("", both.index)
    parts = [pd.DataFrame({"where": [], "result": [], "distance": []})]
    for value, low, high in triples:
        old, new = both[value], both[f"{value}_here"].astype(float)
        low_here, high_here = (both[f"{end}_here"].astype(float) for end in (low, high))
        half = np.where(new > old, both[high] - old, old - both[low])
        half_here = np.where(new > old, new - low_here, high_here - new)
        change, wide = (new - old).abs(), high_here - low_here > WIDEST * (both[high] - both[low])
        with np.errstate(invalid="ignore", divide="ignore"):
            distance = np.where(change == 0, 0.0, change / np.hypot(half, half_here))
        bare = low_here.isna() | high_here.isna()
        result = np.select([new.isna(), bare, wide, distance > 1], [MISSING, NO_INTERVAL, WIDE, DIFFERS], AGREES)
        distance = np.where(new.isna() | bare, np.nan, distance)
        part = pd.DataFrame(
            {"where": value + (": " + words).where(words != "", ""), "result": result, "distance": distance}
        )
        parts.append(part[both[[value, low, high]].notna().all(axis=1)])
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def by_figure(numbers: "pd.DataFrame") -> "pd.DataFrame":
    """`compare_figures` by figure.

    Returns:
        `figure`, `values` (its published numbers with an interval), how many have each result that is no agreement (`differs`,
        `missing`, `no_interval`, `wide`), `largest` distance and `where` it is.
    """
    import pandas as pd

    rows = []
    for figure, own in numbers.groupby("figure", sort=False):
        row: dict[str, Any] = {"figure": figure, "values": len(own)}
        for name, result in COUNTED.items():
            row[name] = int((own["result"] == result).sum())
        known = own[own["distance"].notna()]
        worst = known.loc[known["distance"].idxmax()] if len(known) else {"distance": np.nan, "where": ""}
        rows.append(row | {"largest": worst["distance"], "where": worst["where"]})
    return pd.DataFrame(rows, columns=["figure", "values", *COUNTED, "largest", "where"])


def compare_verdicts(published: Path, here: Path) -> "pd.DataFrame":
    """The verdicts of two `statements.csv`; of a file that is missing there are none.

    Returns:
        one row per statement, part and data set that either has: `statement`, `part`, `dataset`, `published` and `here` (empty
        where one lacks it).
    """
    import pandas as pd

    keys, tables = ["statement", "part", "dataset"], []
    for path in (published, here):
        table = pd.DataFrame(read_rows(path) if path.is_file() else [], columns=[*keys, "item", "verdict"])
        tables.append(table.loc[table["item"] == "", [*keys, "verdict"]])
    both = tables[0].merge(tables[1], on=keys, how="outer", suffixes=("_old", ""), sort=False).fillna("")
    return both.rename(columns={"verdict_old": "published", "verdict": "here"})[[*keys, "published", "here"]]


def equal_models(published: Path, here: Path) -> tuple[int, int] | None:
    """How many published models of a `models.csv` another one has, equal bit for bit, of how many; None if their hashes (column
    `state`) were not published."""
    old = read_table(published)
    if "state" not in old:
        return None
    new, keys = read_table(here) if here.is_file() else old.iloc[:0], ["model", "dataset"]
    keys += ["train_seed"] if "train_seed" in old and "train_seed" in new else []
    both = old.merge(new.reindex(columns=[*keys, "state"]), on=keys, suffixes=("", "_here"))
    return int((both["state"] == both["state_here"]).sum()), len(old)


def tables_here(published: Path, here: Path) -> dict[str, bool]:
    """The published tables, and whether the other folder has each."""
    paths = [path.relative_to(published) for pattern in COMPARED for path in sorted(published.glob(pattern))]
    return {path.as_posix(): (here / path).is_file() for path in paths}


def agreement(published: Path, here: Path) -> dict[str, Any]:
    """All comparisons of two folders of figures: tables `numbers`, `figures` and `verdicts`, names of `missing` tables, and
    sentences as `summary`."""
    numbers = compare_figures(published, here)
    figures = by_figure(numbers)
    verdicts = compare_verdicts(published / TABLE, here / TABLE)
    models = equal_models(published / "models.csv", here / "models.csv")
    tables = tables_here(published, here)
    missing = [name for name, found in tables.items() if not found]
    own = verdicts[verdicts["published"] != ""]
    total, agree = int(figures["values"].sum()), int((numbers["result"] == AGREES).sum())
    compared = total - int(figures[["missing", "no_interval"]].to_numpy().sum())
    summary = [
        f"{compared:,} of {total:,} published numbers were compared",
        f"{agree:,} of {compared:,} agree with the published ones within the intervals of both",
        f"{int((own['published'] == own['here']).sum())} of {len(own)} published verdicts are the same here",
    ]
    if missing:
        summary.append(f"{len(missing)} of {len(tables)} published tables are missing here")
    if models is not None:
        summary.append(f"{models[0]} of {models[1]} trained models are the published ones, bit for bit")
    return {"numbers": numbers, "figures": figures, "verdicts": verdicts, "missing": missing, "summary": summary}


def differing(found: dict[str, Any]) -> tuple["pd.DataFrame", "pd.DataFrame"]:
    """The figures and the verdicts of `agreement` that disagree."""
    figures, verdicts = found["figures"], found["verdicts"]
    return figures[figures[list(COUNTED)].sum(axis=1) > 0], verdicts[verdicts["published"] != verdicts["here"]]


def compared_with_published(folder: Path) -> tuple[str, bool]:
    """A run's figures against the published ones.

    Args:
        folder: of the finished run.

    Returns:
        `agreement` in lines: the summary, then each table, number and verdict that disagrees, by name; and whether all agree.

    Raises:
        FileNotFoundError: no finished run.
        ValueError: it is of another profile than the published run, or a run recorded no SHA-256 of its figures.
    """
    run = read_run(folder)
    if folder.name != published_profile():
        raise ValueError(f"the published figures are of profile {published_profile()}, not of {folder.name}")
    altered = []
    for figures, record in ((FIGURES, read_run(FIGURES)), (folder / "figures", run)):
        changes = altered_figures(figures, record)
        altered += [f"  {figures / name} {what}" for name, what in changes.items() if Path(name).suffix == ".csv"]
    found = agreement(FIGURES, folder / "figures")
    summary, rest = found["summary"], [*altered, *_disagreements(found)]
    return "\n".join([*summary, *rest]), not rest


def _disagreements(found: dict[str, Any]) -> list[str]:
    lines, (figures, verdicts) = [f"  {name}: missing here" for name in found["missing"]], differing(found)
    for row in figures.itertuples():
        counts = [f"{getattr(row, column)} {result}" for column, result in COUNTED.items() if getattr(row, column)]
        lines.append(f"  {row.figure}: of {row.values} numbers {', '.join(counts)}")
        numbers = found["numbers"]
        for number in numbers[(numbers["figure"] == row.figure) & (numbers["result"] != AGREES)].itertuples():
            distance = "" if np.isnan(number.distance) else f" (distance {number.distance:.2g})"
            lines.append(f"    {number.where}: {number.result}{distance}")
    for row in verdicts.itertuples():
        where = ", ".join(filter(None, (row.statement, row.part, row.dataset)))
        lines.append(f"  {where}: published {row.published or 'none'}, here {row.here or 'none'}")
    return lines


def _as_loss(table: "pd.DataFrame") -> "pd.DataFrame":
    """A table with `auc_golden` has a column `auc_drop` with ends in place of its `auc`."""
    if not {"auc", "auc_low", "auc_high", "auc_golden"} <= set(table):
        return table
    loss = {"auc_drop": "auc", "auc_drop_low": "auc_high", "auc_drop_high": "auc_low"}
    drops = {name: table["auc_golden"] - table[column] for name, column in loss.items() if name not in table}
    return table.assign(**drops).drop(columns=[*loss.values(), "auc_golden"])


def _with_ends(table: "pd.DataFrame") -> list[tuple[str, str, str]]:
    """Columns with their low and high ends; `low` and `high` belong to the column before them."""
    columns = list(table)
    triples = [(c, f"{c}_low", f"{c}_high") for c in columns if f"{c}_low" in table and f"{c}_high" in table]
    if "low" in table and "high" in table and columns.index("low"):
        triples.append((columns[columns.index("low") - 1], "low", "high"))
    return triples


def _keys(published: "pd.DataFrame", here: "pd.DataFrame", measured: set[str]) -> list[str]:
    """The columns that name a row: the first ones, in the table's order, that together distinguish most published rows. Numbers
    that differ in more than half of the cases are results of other models, and no names."""
    from pandas.api.types import is_numeric_dtype

    keys: list[str] = []
    distinct = 1
    for column in (c for c in published if c in here and c not in measured):
        values, others = set(_as_text(published[column])), set(_as_text(here[column]))
        if is_numeric_dtype(published[column]) and 2 * len(values & others) < min(len(values), len(others)):
            continue
        more = published.groupby([*keys, column], dropna=False).ngroups
        if more > distinct:
            keys, distinct = [*keys, column], more
    return keys


def _as_text(column: "pd.Series") -> "pd.Series":
    """Whole numbers alike whether or not the column has gaps, which make floats of them."""
    return column.map(lambda value: f"{value:.12g}" if isinstance(value, int | float) else str(value))


def _numbered(table: "pd.DataFrame", keys: list[str]) -> "pd.DataFrame":
    """The table with keys as text, and the number of each row among those with the same keys."""
    table = table.assign(**{key: _as_text(table[key]) for key in keys})
    return table.assign(copy=table.groupby(keys, sort=False).cumcount() if keys else range(len(table)))
