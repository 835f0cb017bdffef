"""Numbers of a run by name, and texts around them: every measured number of a message or page is one cell of one CSV.

`quantities.toml` names them: CSV, rows, column, digits. A text names a quantity in braces: `{x}` is the number with its
interval, `{x.value}` the number alone, unless its interval spans over a factor of `SPAN`.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from math import floor, inf, log10
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from drsrobust._choices import unknown
from drsrobust_study.findings import interval, number
from reproduce.tables import read_named

if TYPE_CHECKING:
    import pandas as pd

FILE = Path(__file__).parent / "quantities.toml"
MESSAGES = Path(__file__).parent / "messages.toml"
SPAN = 3  # a number whose interval is wider than this factor is not printed without it
ENDS = ("value", "low", "high")


@dataclass(frozen=True)
class Selection:
    """Numbers of a CSV.

    Attributes:
        value, low, high: columns, or expressions of columns as `auc_golden - auc`; without ends the value is taken for both.
            Where none of the three is given, they are the columns of these names, if there.
        where: column -> a value, a list of values, or a text with `*`.
        over: as `where`, of the rows to divide by, which are found by equal values in `match`. The quotient has an interval if
            `low` and `high` are given, else none.
        match: columns.
        worst: `max` or `min` of `value`: the row that is taken where several are left.
    """

    value: str = ""
    low: str = ""
    high: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    over: dict[str, Any] = field(default_factory=dict)
    match: list[str] = field(default_factory=list)
    worst: str = ""

    def rows(self, table: "pd.DataFrame", place: str, name: str) -> "pd.DataFrame":
        """The rows of a table with `value`, `low` and `high`. The ends of a quotient are the extremes over its two intervals;
        NaN where one has none.

        Args:
            table: of the CSV.
            place: of the selection, for messages.
            name: of the CSV, for messages.

        Raises:
            ValueError: a column that the table does not have.
        """
        import pandas as pd

        for key in self.match:
            if key not in table:
                raise _unknown_column(f"{place}, match", name, key, table)
        columns = {end: getattr(self, end) for end in ENDS if getattr(self, end)}
        columns = columns or {end: end for end in ENDS if end in table}
        numbers = {end: _column(table, text, f"{place}, {end}", name) for end, text in columns.items()}
        if "value" in numbers:
            numbers = {end: numbers["value"] for end in ENDS} | numbers
        table = table.assign(**numbers)
        rows = _where(table, self.where, place, name)
        if self.over:
            under = _where(table, self.over, place, name).set_index(self.match)[list(ENDS)]
            rows = rows.join(under.add_suffix("_under"), on=self.match)
            quotients = [rows[top] / rows[f"{bottom}_under"] for top in ENDS[1:] for bottom in ENDS[1:]]
            rows["value"] /= rows["value_under"]
            bounded = rows["low_under"] * rows["high_under"] > 0
            rows["low"] = pd.concat(quotients, axis=1).min(axis=1).where(bounded)
            rows["high"] = pd.concat(quotients, axis=1).max(axis=1).where(bounded)
        return rows

    def row(self, rows: "pd.DataFrame", place: str) -> "pd.Series":
        """The single row, or the worst of several.

        Raises:
            ValueError: several rows without `worst`.
        """
        if len(rows) == 1:
            return rows.iloc[0]
        if not self.worst:
            raise ValueError(f"{place}: {len(rows)} rows; `where` must leave one, or `worst` must choose one")
        return rows.loc[getattr(rows["value"], f"idx{self.worst}")()]


@dataclass(frozen=True)
class Quantity:
    """A named number: the CSV (`<folder>/<csv>.csv` or `<folder>/data/<csv>.csv`), its selection, and how it is printed.

    Attributes:
        csv: without ending.
        selection: one number.
        digits: significant ones.
        percent: whether it is printed in per cent.
    """

    csv: str
    selection: Selection
    digits: int = 2
    percent: bool = False

    def read(self, table: "pd.DataFrame", name: str) -> "Number":
        """The number in a table.

        Raises:
            LookupError: the table has no such row: the run measured something else.
        """
        rows = self.selection.rows(table, f"quantities.toml, {name}", self.csv)
        if rows.empty:
            raise LookupError(f"{self.csv} has no row of quantity {name}")
        row = self.selection.row(rows, f"quantities.toml, {name}")
        ends = (float(f"{row[end]:.6g}") for end in ENDS)  # the digits of a CSV, so that all texts say the same
        return Number(*ends, self.digits, self.percent)


@dataclass(frozen=True)
class Number:
    """A number as texts print it.

    Example:
        >>> str(Number(0.4638, 0.301, 0.609, percent=True)), Number(4.26, 2.1, 9.7).value, str(Number(3e-7, -0.011, 0.049))
        ('46 % [30, 61]', '4.3 [2.1, 9.7]', '0 [-0.011, 0.049]')
    """

    number: float
    low: float
    high: float
    digits: int = 2
    percent: bool = False

    @property
    def value(self) -> str:
        """The number without its interval, which must then span at most a factor of `SPAN`."""
        is_narrow = self.low > 0 and self.high <= SPAN * self.low or -self.high > 0 and self.low >= SPAN * self.high
        return self._text(ends=not is_narrow and self.low != self.high)

    def __str__(self) -> str:
        return self._text(ends=True)

    def _text(self, *, ends: bool) -> str:
        scale, unit = (100, " %") if self.percent else (1, "")
        shown = [float(f"{scale * end:.{self.digits}g}") for end in (self.number, self.low, self.high)]
        widest = max(abs(shown[1]), abs(shown[2]))
        if self.low < 0 < self.high < inf and abs(shown[0]) < widest / 10:  # as fine as its interval
            shown[0] = round(scale * self.number, self.digits - 1 - floor(log10(widest))) + 0.0
        if shown[0] != shown[0]:
            raise LookupError("a number that was not measured")
        text, _, brackets = interval(*shown).partition(" ")
        brackets = brackets.replace(", infinite]", " or more]")
        return f"{text}{unit} {brackets}".rstrip() if ends and brackets else f"{number(shown[0])}{unit}"


@cache
def quantities(path: Path = FILE) -> dict[str, Quantity]:
    """The named quantities of a file.

    Raises:
        ValueError: an unknown key; a quantity without a CSV.
    """
    named = {}
    for name, entry in tomllib.loads(path.read_text()).items():
        entry, format_keys = dict(entry), ("csv", "digits", "percent")
        for key in entry:
            if key not in (*format_keys, *Selection.__dataclass_fields__):
                raise unknown(f"key in {path.name}, {name}", key, (*format_keys, *Selection.__dataclass_fields__))
        if "csv" not in entry:
            raise ValueError(f"{path.name}, {name}: no csv")
        form = {key: entry.pop(key) for key in format_keys if key in entry}
        named[name] = Quantity(selection=Selection(**entry), **form)
    return named


class _Numbers(Mapping[str, Number]):
    """Name -> number, read when a text asks for it."""

    def __init__(self, figures: Path) -> None:
        self._figures, self._named = figures, quantities()

    def __getitem__(self, name: str) -> Number:
        if name not in self._named:
            raise unknown("quantity in a text", name, self._named)
        quantity = self._named[name]
        table = read_named(self._figures, quantity.csv)
        if table is None:
            raise LookupError(f"no table {quantity.csv}")
        return quantity.read(table, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


def filled(text: str, figures: Path) -> str:
    """A text with its quantities.

    Args:
        text: with names in braces.
        figures: folder of a run's figures and tables.

    Raises:
        LookupError: a quantity that this run did not measure.
        ValueError: an unknown name.
    """
    return Formatter().vformat(text, (), _Numbers(figures))


@cache
def messages(path: Path = MESSAGES) -> dict[str, Any]:
    """The messages of figures by their names, and the texts of pages by page and name."""
    return tomllib.loads(path.read_text())


def message(name: str, figures: Path) -> str:
    """The message of a figure with the numbers of a run; empty where it has none, or the run did not measure all of them."""
    try:
        return filled(messages().get(name, ""), figures)
    except LookupError:
        return ""


def with_message(words: dict[str, Any], message: str) -> str:
    """The alternative text of a figure, with its message in place of its title, and the panels that 400 letters hold.

    Args:
        words: of the figure, `title` and `alt`.
        message: may be empty.
    """
    if not message:
        return words["alt"]
    from drsrobust_extras.pages.plots import alt_text

    text, panels = message, words["alt"].removeprefix(words["title"])
    for panel in re.split(r"(?<=\.) ", panels.strip()):
        if len(text) + 1 + len(panel) > alt_text.LETTERS:
            break
        text += f" {panel}"
    return text.strip()


def _column(table: "pd.DataFrame", text: str, place: str, name: str) -> "pd.Series":
    if text in table:
        return table[text].astype(float)
    try:
        return table.eval(text).astype(float)
    except Exception as error:  # pandas raises many kinds, of its own and of Python's parser
        raise _unknown_column(place, name, text, table) from error


def _where(table: "pd.DataFrame", conditions: dict[str, Any], place: str, name: str) -> "pd.DataFrame":
    for key, value in conditions.items():
        if key not in table:
            raise _unknown_column(f"{place}, where", name, key, table)
        if isinstance(value, str) and "*" in value:
            table = table[table[key].map(lambda text, pattern=value: fnmatchcase(str(text), pattern))]
        else:
            table = table[table[key].isin(value if isinstance(value, list) else [value])]
    return table


def _unknown_column(place: str, name: str, key: str, table: "pd.DataFrame") -> Exception:
    return unknown(f"column of {name}.csv in {place}", key, table.columns)
