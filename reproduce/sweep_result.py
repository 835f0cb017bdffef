"""What a sweep shows: a column of a figure's rows against the parameters that vary, averaged over seeds and trainings."""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from drsrobust._choices import check_choice, unknown
from reproduce.notebooks import FIGURES, Notebook

if TYPE_CHECKING:
    import pandas as pd

FORM = "figure:column[,name=value...]"
SEED, TRAINING = "seed", "train_seed"  # the parameter, and the column of a figure, that results are averaged over
PANELS = 12  # at most


@dataclass(frozen=True)
class Result:
    """A column of a figure's CSV, and which of its rows: those with these values, by the names of their columns."""

    figure: str
    column: str
    rows: dict[str, str]

    def __str__(self) -> str:
        return ",".join([f"{self.figure}:{self.column}", *(f"{name}={value}" for name, value in self.rows.items())])


class Averages(NamedTuple):
    """A result by point of an axis, line and panel.

    Attributes:
        column: of the result, in the tables.
        table: columns `axis`, those of `lines` and `panels`, the result's, its ends `<column>_low` and `<column>_high` (blank
            where there are none), `of` (how many values are averaged) and `blank` (how many more have no number).
        axis: the parameter that is swept first.
        lines, panels: columns whose values have a line, or a panel, of their own.
        over: what the ends are of, in words.
    """

    column: str
    table: "pd.DataFrame"
    axis: str
    lines: list[str]
    panels: list[str]
    over: str


def read_result(text: str, notebook: Notebook) -> Result:
    """Reads `figure:column[,name=value...]`; a value may hold commas. Figure and columns are those that are published, if the
    notebook has any.

    Raises:
        ValueError: another form; an unknown figure or column; a name that is given twice.
    """
    head, *filters = re.split(r",(?=\w+=)", text)
    figure, colon, column = head.partition(":")
    if not (figure and colon and column):
        raise ValueError(
            f"the result is {text!r}; it must be {FORM}, as {notebook.result or '01_bit_sensitivity:pvf,bit=30'}"
        )
    pairs = [tuple(one.split("=", 1)) for one in filters]
    if twice := [name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number])]:
        raise ValueError(f"the result {text!r} gives {twice[0]} twice")
    published = {path.stem: path for path in sorted((FIGURES / "data").glob(f"{notebook.name}*.csv"))}
    if published:
        check_choice(f"figure of {notebook.name}", figure, published)
        with published[figure].open(newline="", encoding="utf-8") as file:
            columns = next(csv.reader(file))
        for name in (column, *dict(pairs)):
            check_choice(f"column of {figure}", name, columns)
    return Result(figure, column, dict(pairs))


def average(result: Result, tables: dict[str, "pd.DataFrame"], varied: list[str]) -> Averages:
    """A result over the points of a sweep.

    Args:
        result: what to show.
        tables: rows of each figure, as in `sweep.csv`.
        varied: the parameters that vary, in their order.

    Raises:
        ValueError: the figure, a column or rows are missing, or a point has several rows that only a filter can tell apart.
    """
    table, column = chosen(result, tables, varied)
    axis = next((name for name in varied if name != SEED), varied[0])
    others = [name for name in varied if name not in (axis, SEED) and table.groupby(axis)[name].nunique().max() > 1]
    keys = panel_columns(table, [*varied, column])
    is_one = [*varied, *keys, *({TRAINING} & set(table))]
    if several := table[table.duplicated(is_one, keep=False)].drop_duplicates("point").to_dict("records"):
        rows = table[(table[varied] == [several[0][name] for name in varied]).all(axis=1)]
        before = list(table)[: list(table).index(column)]
        differ = [name for name in before if rows[name].nunique() > 1 and name not in (*keys, TRAINING)]
        one = f"{differ[0]}={rows[differ[0]].iloc[-1]}" if differ else "name=value"
        raise ValueError(
            f"{result} leaves {len(rows)} rows in the point {several[0]['point']}, which differ in "
            f"{', '.join(differ) or 'no column before it'}; choose one, as by ',{one}'"
        )
    others, panels = (others, keys) if others or not keys else _apart(table, keys)
    if (number := table[panels].drop_duplicates().shape[0] if panels else 1) > PANELS:
        raise ValueError(f"{result} has {number} panels; choose some by ',name=value' of {', '.join(panels)}")
    return means_by(table, column, axis, others, panels)


def means_by(table: "pd.DataFrame", column: str, axis: str, lines: list[str], panels: list[str]) -> Averages:
    """The means of a column by the columns of axis, lines and panels."""
    means, is_spread = averaged(table, column, [axis, *lines, *panels])
    numbers = {name: table[name].nunique() for name in (SEED, TRAINING) if name in table and name != axis}
    return Averages(column, means, axis, lines, panels, _over(means, column, numbers, is_spread))


def _apart(table: "pd.DataFrame", keys: list[str]) -> tuple[list[str], list[str]]:
    """Columns of lines and of panels: panels side by side are harder to compare than lines, so most are these."""
    most = max(keys, key=lambda name: table[name].nunique())
    return [most], [name for name in keys if name != most]


def chosen(result: Result, tables: dict[str, "pd.DataFrame"], varied: Iterable[str]) -> tuple["pd.DataFrame", str]:
    """The rows of a result, and the name of its column among them.

    Raises:
        ValueError: the figure, a column or rows are missing, or no cell is a number.
    """
    if result.figure not in tables:
        raise unknown("figure", result.figure, tables)
    table = tables[result.figure]
    names = {name: f"figure_{name}" if name in varied else name for name in (result.column, *result.rows)}
    for name in names:
        check_choice(f"column of {result.figure}", names[name], list(table))
    for name, text in result.rows.items():
        cells = table[names[name]]
        left = table[_equal(cells, text)]
        if left.empty:
            values = ", ".join(map(str, list(dict.fromkeys(cells))[:12])) or "none"
            raise ValueError(f"no row of {result.figure} has {name}={text}; it has {values}")
        table = left
    column = names[result.column]
    if table[column].dtype.kind not in "iufb":
        raise ValueError(f"column {result.column} of {result.figure} holds no numbers")
    return table.astype({column: float}), column


def _equal(cells: "pd.Series", text: str) -> "pd.Series":
    if cells.dtype.kind not in "iuf":
        return cells.astype(str) == text
    try:
        return cells == float(text)
    except ValueError:
        return cells != cells  # no number is equal to a text


def panel_columns(table: "pd.DataFrame", without: Iterable[str]) -> list[str]:
    """Columns of text with several values in a point: what its rows are of."""
    words = table.select_dtypes(["object", "string"]).columns.difference(["point", "interval", *without], sort=False)
    return [name for name in words if table[name].nunique() > 1 and not follows(table, name)]


def follows(table: "pd.DataFrame", name: str) -> bool:
    """Whether a column has one value in each point: it is a parameter, or follows from one."""
    return bool(table.groupby("point")[name].nunique(dropna=False).max() == 1)


def averaged(table: "pd.DataFrame", column: str, groups: list[str]) -> tuple["pd.DataFrame", bool]:
    """The mean of a column by group, from the least to the greatest value where there are several, else as its own ends say;
    and whether any group has several."""
    ends = [f"{column}_low", f"{column}_high"]
    if not set(ends) <= set(table):
        table = table.assign(**dict.fromkeys(ends, float("nan")))
    by = table.groupby(groups, sort=False, dropna=False)
    means = by[[column, *ends]].mean()
    means["of"], means["blank"] = by[column].count(), by.size() - by[column].count()
    several = means["of"] > 1
    for end, value in zip(ends, (by[column].min(), by[column].max()), strict=True):
        means[end] = means[end].mask(several, value)
    return means.reset_index(), bool(several.any())


def _over(means: "pd.DataFrame", column: str, numbers: dict[str, int], is_spread: bool) -> str:
    """What the ends are of, and what is blank, in words."""
    words = {SEED: "values of seed", TRAINING: "trainings"}
    parts = [f"{number} {words[name]}" for name, number in numbers.items() if number > 1]
    if is_spread:
        text = f"means over {' and '.join(parts)}, bars from the least to the greatest of them"
    elif means[[f"{column}_low", f"{column}_high"]].notna().any(axis=None):
        text = "bars are the intervals of the run's own table"
    else:
        text = "the run's table has no intervals"
    blank = int(means["blank"].sum())
    return text + (f"; {blank} of {blank + int(means['of'].sum())} values are blank and left out" if blank else "")


def as_number(value: Any) -> float | None:
    """A swept value on a numeric axis, that of a list of one number too; None for others."""
    match = re.fullmatch(r"\[(.*)\]", value) if isinstance(value, str) else None
    try:
        return (
            None
            if isinstance(value, bool)
            else float(match[1] if match else value if not isinstance(value, str) else "")
        )
    except ValueError:
        return None
