"""The picture of a sweep's result: against the parameter that is swept first, a line for each value of the others."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from drsrobust_extras.pages.plots.curves import interval
from drsrobust_extras.pages.plots.style import legend_outside, new_panels, plain_number, series_styles, styled
from reproduce.sweep_result import Averages, as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADE = 10  # times the least value, from which on an axis is logarithmic
_APART = 0.012  # of an axis, between neighbouring lines
_LETTERS = 84  # below an axis that is as wide as a page


@styled
def draw_result(averages: Averages, label: str) -> "Axes":
    """Means with their ends: numbers on a numeric axis, logarithmic where they span a decade, other values side by side.

    Args:
        averages: what `sweep_result.average` returns, with at least one number.
        label: of the vertical axis.
    """
    column, table = averages.column, averages.table.dropna(subset=[averages.column])
    groups = grouped(table, averages.panels)
    across = min(2, len(groups))
    panels = new_panels(across, rows=-(-len(groups) // across), scale=1.0 if len(groups) <= across else 0.8)
    for ax in panels[len(groups) :]:
        ax.remove()
    values = list(dict.fromkeys(table[averages.axis]))
    numbers = [as_number(value) for value in values]
    is_numeric = None not in numbers
    places = dict(zip(values, numbers if is_numeric else range(len(values)), strict=True))
    names = list(dict.fromkeys(_names(table, averages.lines)))
    styles = series_styles(names)
    is_log = is_numeric and _spans(numbers)
    gap = _APART * (np.ptp(np.log10(numbers)) if is_log else np.ptp(list(places.values())) or 1)
    ends = table[[column, f"{column}_low"]].min().min(), table[[column, f"{column}_high"]].max().max()
    for place, (ax, (title, rows)) in enumerate(zip(panels, groups.items(), strict=False)):
        for index, name in enumerate(names):
            line = rows[_names(rows, averages.lines) == name]
            line = line.assign(at=line[averages.axis].map(places)).sort_values("at")
            shift = gap * (index - (len(names) - 1) / 2)
            at = line["at"] * 10**shift if is_log else line["at"] + shift
            style = styles[name] | ({} if is_numeric else {"linestyle": "none"}) | {"label": name or None}
            if len(line):
                ends_of = np.nan_to_num(interval(line, column))
                ax.errorbar(at, line[column], yerr=ends_of, capsize=2.5, markersize=5, linewidth=1.4, **style)
        ax.set(title=title, xscale="log" if is_log else "linear", yscale="log" if _spans(ends) else "linear")
        is_lowest = place + across >= len(groups)
        _ticks(
            ax,
            list(places.values()),
            [plain_number(n) if is_numeric else str(v) for v, n in zip(values, numbers, strict=True)],
            _LETTERS // across,
            few=is_numeric,
        )
        ax.tick_params(labelbottom=is_lowest)
        ax.set_xlabel(averages.axis.replace("_", " ") if is_lowest else "")
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


def _names(table: pd.DataFrame, lines: list[str]) -> pd.Series:
    """Of each row the name of its line."""
    texts = [table[name].map(_text).astype(object) for name in lines]
    return pd.Series(
        [", ".join(cells) for cells in zip(*texts, strict=True)] if texts else "", index=table.index, dtype=object
    )


def _text(value: Any) -> str:
    return plain_number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _spans(values: Sequence[float]) -> bool:
    """Whether positive values span so much that small ones would be at 0 of a linear axis."""
    return min(values) > 0 and max(values) >= DECADE * min(values)


def _ticks(ax: "Axes", places: list[float], texts: list[str], letters: int, *, few: bool) -> None:
    """A tick for each value, where their texts fit side by side; numbers that do not keep matplotlib's ticks."""
    if few and len(places) * (max(map(len, texts)) + 2) > letters:
        return
    width = max(letters // len(places) - 2, 6)
    ax.set_xticks(places, ["\n".join(textwrap.wrap(text, width)) for text in texts])
    ax.set_xticks([], minor=True)
