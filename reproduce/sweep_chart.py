"""A picture of means over a sweep: a line for each value of some parameters, a panel for each group of rows."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from drsrobust_extras.pages.plots.curves import interval
from drsrobust_extras.pages.plots.style import legend_outside, new_panels, plain_number, series_styles, styled
from reproduce.sweep_result import Averages, as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DECADE = 10  # times the least value, from which on an axis is logarithmic
_SMALL = 1e-3  # below it the ticks of a linear axis are written in full, not as multiples of a power in its corner
_APART, _MOST_APART = 0.012, 0.08  # of a numeric axis: between neighbouring lines, and between the outermost
_ASIDE, _MOST_ASIDE = 0.15, 0.7  # the same between values that are side by side, 1 apart
_LETTERS = 84  # below an axis that is as wide as a page


class _Axis(NamedTuple):
    """Where values lie on the horizontal axis: a place and a text of each, and whether they are numbers, on a log scale."""

    places: dict[Any, float]
    texts: list[str]
    is_numeric: bool
    is_log: bool

    def shifted(self, values: pd.Series, index: int, n: int) -> np.ndarray:
        """The places of the index-th of n lines, a little aside, so that no bar hides another."""
        at, step, most = values.map(self.places).to_numpy(float), _ASIDE, _MOST_ASIDE
        if self.is_numeric:
            ends = list(self.places.values())
            span = (np.ptp(np.log10(ends)) if self.is_log else np.ptp(ends)) or 1.0
            step, most = _APART * span, _MOST_APART * span
        shift = min(step, most / n) * (index - (n - 1) / 2)
        return at * 10**shift if self.is_log else at + shift


@styled
def draw_result(averages: Averages, label: str, at: str = "") -> "Axes":
    """Means with their ends: numbers on a numeric axis, logarithmic where they span a decade, other values side by side.

    Args:
        averages: what `sweep_result.average` returns, with at least one number.
        label: of the vertical axis.
        at: of the other one; the name of its parameter, if empty.
    """
    column, table = averages.column, averages.table.dropna(subset=[averages.column])
    table = table.assign(line=_names(table, averages.lines))
    groups, styles, axis = grouped(table, averages.panels), series_styles(table["line"]), _axis(table[averages.axis])
    ends = table[[column, f"{column}_low"]].min().min(), table[[column, f"{column}_high"]].max().max()
    across = min(2, len(groups))
    panels = new_panels(across, rows=-(-len(groups) // across), scale=1.0 if len(groups) <= across else 0.8)
    for ax in panels[len(groups) :]:
        ax.remove()
    for place, (ax, (title, rows)) in enumerate(zip(panels, groups.items(), strict=False)):
        for index, (name, style) in enumerate(styles.items()):
            line = rows[rows["line"] == name]
            line = line.iloc[line[averages.axis].map(axis.places).argsort()]
            style = style | ({} if axis.is_numeric else {"linestyle": "none"}) | {"label": name or None}
            bars = np.nan_to_num(interval(line, column))
            shifted = axis.shifted(line[averages.axis], index, len(styles))
            if len(line):
                ax.errorbar(shifted, line[column], yerr=bars, capsize=2.5, markersize=5, linewidth=1.4, **style)
        ax.set(xscale="log" if axis.is_log else "linear", yscale="log" if _spans(ends) else "linear", title=title)
        _ticks(ax, axis, _LETTERS // across)
        if not axis.is_numeric:
            ax.set_xlim(-0.5, len(axis.places) - 0.5)
        if max(map(abs, ends)) < _SMALL and not _spans(ends):
            ax.yaxis.set_major_formatter(lambda value, _: plain_number(value))
        is_lowest = place + across >= len(groups)
        ax.tick_params(labelbottom=is_lowest)
        ax.set_xlabel((at or averages.axis.replace("_", " ")) if is_lowest else "")
        ax.set_ylabel(label if place % across == 0 else "")
    if averages.lines:
        legend_outside(panels[across - 1], title=", ".join(averages.lines).replace("_", " "))
    return panels[0]


def grouped(table: pd.DataFrame, keys: list[str]) -> dict[str, pd.DataFrame]:
    """The rows of each panel by its title."""
    if not keys:
        return {"": table}
    groups = table.groupby(keys, sort=False, dropna=False)
    return {", ".join(str(value) for value in dict.fromkeys(key)): rows for key, rows in groups}


def _names(table: pd.DataFrame, lines: list[str]) -> list[str]:
    """Of each row the name of its line."""
    return [", ".join(map(_text, cells)) for cells in table[lines].itertuples(index=False)]


def _text(value: Any) -> str:
    return plain_number(value) if isinstance(value, float) else str(value)


def _spans(values: Sequence[float]) -> bool:
    """Whether positive values span so much that small ones would be at 0 of a linear axis."""
    return min(values) > 0 and max(values) >= _DECADE * min(values)


def _axis(cells: pd.Series) -> _Axis:
    values = list(dict.fromkeys(cells))
    numbers = [number for value in values if (number := as_number(value)) is not None]
    if len(numbers) < len(values):
        return _Axis({value: float(place) for place, value in enumerate(values)}, list(map(str, values)), False, False)
    return _Axis(dict(zip(values, numbers, strict=True)), list(map(plain_number, numbers)), True, _spans(numbers))


def _ticks(ax: "Axes", axis: _Axis, letters: int) -> None:
    """A tick for each value; numbers whose texts do not fit side by side keep matplotlib's ticks."""
    places = list(axis.places.values())
    if axis.is_numeric and len(places) > 1:
        spread = np.sort(np.log10(places) if axis.is_log else places)
        if np.diff(spread).min() / np.ptp(spread) * letters < max(map(len, axis.texts)) + 2:
            return
    width = max(letters // len(places) - 2, 6)
    ax.set_xticks(places, ["\n".join(textwrap.wrap(text, width)) for text in axis.texts])
    ax.set_xticks([], minor=True)
