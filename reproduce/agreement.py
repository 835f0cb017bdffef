"""Whether a run agrees with the published one: figure by figure in units of intervals, and verdict by verdict.

Models that another processor trained differ, so AUC is compared as the loss from the model's AUC without errors. The distance
of two values v and v' with half-widths h and h' (of their intervals, on the sides that face each other) is |v' - v| / sqrt(h^2
+ h'^2). Of two independent estimates of one number with 95 % intervals it is over 1 in 5 % of cases.
"""

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduce.notebooks import FIGURES
from reproduce.same import TIMED_TABLES

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("figure", "values", "over_1", "median", "largest", "where")


def published_profile() -> str | None:
    """The profile of the published figures; None without any."""
    record = FIGURES / "run.json"
    return json.loads(record.read_text())["profile"] if record.is_file() else None


def compare_figures(published: Path, here: Path) -> "pd.DataFrame":
    """The distances between two folders of figures, without figures of measured times.

    Args:
        published, here: folders with `data/`.

    Returns:
        one row per figure of both: `figure`, `values` (numbers with an interval in both), `over_1` (how many of their distances
        are over 1), `median` and `largest` distance, and `where` the largest is. Figures without such numbers have none.
    """
    import pandas as pd

    rows = []
    for path in sorted((published / "data").glob("*.csv")):
        other = here / "data" / path.name
        if not other.is_file() or path.name.startswith(TIMED_TABLES):
            continue
        found = distances(_read(path), _read(other))
        row = {"figure": path.stem, "values": len(found), "over_1": int((found["distance"] > 1).sum())}
        if len(found):
            worst = found.loc[found["distance"].idxmax()]
            row |= {"median": found["distance"].median(), "largest": worst["distance"], "where": worst["where"]}
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def distances(published: "pd.DataFrame", here: "pd.DataFrame") -> "pd.DataFrame":
    """The distance of each number with an interval in two tables of one figure.

    Rows belong together if they agree in all columns that hold the same values in both tables, in whatever order.

    Returns:
        `where` (column, and the row in words) and `distance`; infinite where two numbers without width differ.
    """
    import pandas as pd

    published, here = _as_loss(published), _as_loss(here)
    triples = [triple for triple in _with_ends(published) if set(triple) <= set(here)]
    measured = {column for triple in triples for column in triple}
    keys = [c for c in published if c in here and c not in measured and _same_values(published[c], here[c])]
    both = _numbered(published, keys).merge(_numbered(here, keys), on=[*keys, "copy"], suffixes=("", "_here"))
    parts = []
    for value, low, high in triples:
        old, new = both[value], both[f"{value}_here"]
        half = np.where(new > old, both[high] - old, old - both[low])
        half_here = np.where(new > old, new - both[f"{low}_here"], both[f"{high}_here"] - new)
        width, change = np.hypot(half, half_here), (new - old).abs()
        with np.errstate(invalid="ignore", divide="ignore"):
            distance = np.where(change == 0, 0.0, change / width)
        varying = [key for key in keys if both[key].nunique() > 1]
        words = both[varying].astype(str).agg(", ".join, axis=1) if varying else pd.Series("", both.index)
        part = pd.DataFrame({"where": value + (": " + words).where(words != "", ""), "distance": distance})
        parts.append(part[part["distance"].notna()])
    if not parts:
        return pd.DataFrame({"where": [], "distance": []})
    return pd.concat(parts, ignore_index=True)


def compare_verdicts(published: Path, here: Path) -> "pd.DataFrame":
    """The verdicts of two `claims.csv`.

    Returns:
        one row per claim and check that either has: `claim`, `check` (0: the claim), `what`, `where`, `data`, `published` and
        `here` (empty where one lacks it).
    """
    keys = ["claim", "check", "where", "data"]
    old, new = (_read(path)[[*keys, "what", "verdict"]].fillna("") for path in (published, here))
    both = old.merge(new, on=keys, how="outer", suffixes=("_old", ""), sort=False)
    both["what"] = both["what"].where(both["what"].notna(), both["what_old"])
    both = both.rename(columns={"verdict_old": "published", "verdict": "here"}).fillna("")
    return both[["claim", "check", "what", "where", "data", "published", "here"]]


def equal_models(published: Path, here: Path) -> tuple[int, int] | None:
    """How many trained models of two `models.csv` are equal bit for bit, of how many; None if a table has no column `state`."""
    old, new = _read(published), _read(here)
    if "state" not in old or "state" not in new:
        return None
    both = old.merge(new, on=["model", "dataset"], suffixes=("", "_here"))
    return int((both["state"] == both["state_here"]).sum()), len(both)


def agreement(published: Path, here: Path) -> dict[str, Any]:
    """All comparisons of two folders of figures: tables `figures` and `verdicts`, and `summary`, a list of sentences."""
    figures = compare_figures(published, here)
    verdicts = compare_verdicts(published / "claims.csv", here / "claims.csv")
    models = equal_models(published / "models.csv", here / "models.csv")
    values, over = int(figures["values"].sum()), int(figures["over_1"].sum())
    equal = int((verdicts["published"] == verdicts["here"]).sum())
    summary = [
        f"{values - over:,} of {values:,} numbers agree with the published ones within the intervals of both",
        f"{equal} of {len(verdicts)} verdicts are the published ones",
    ]
    if models is not None:
        summary.append(f"{models[0]} of {models[1]} trained models are the published ones, bit for bit")
    return {"figures": figures, "verdicts": verdicts, "summary": summary}


def agreement_text(found: dict[str, Any]) -> str:
    """`agreement` in lines: the summary, then figures and verdicts that differ."""
    figures, verdicts = found["figures"], found["verdicts"]
    lines = list(found["summary"])
    for row in figures[figures["over_1"] > 0].itertuples():
        lines.append(
            f"  {row.figure}: {row.over_1} of {row.values} differ, most {row.where} (distance {row.largest:.2g})"
        )
    for row in verdicts[verdicts["published"] != verdicts["here"]].itertuples():
        where = ", ".join(filter(None, (row.what, row.where, row.data)))
        lines.append(f"  {row.claim}, {where}: published {row.published or 'none'}, here {row.here or 'none'}")
    return "\n".join(lines)


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


def _same_values(one: "pd.Series", other: "pd.Series") -> bool:
    return len(one) == len(other) and sorted(map(str, one)) == sorted(map(str, other))


def _numbered(table: "pd.DataFrame", keys: list[str]) -> "pd.DataFrame":
    """The table with keys as text, and the number of each row among those with the same keys."""
    table = table.assign(**{key: table[key].map(str) for key in keys})
    return table.assign(copy=table.groupby(keys, sort=False).cumcount() if keys else range(len(table)))


def _read(path: Path) -> "pd.DataFrame":
    import pandas as pd

    with open(path) as handle:  # files of before version 0.2 begin with comments
        return pd.read_csv(io.StringIO("".join(line for line in handle if not line.startswith("#"))))
