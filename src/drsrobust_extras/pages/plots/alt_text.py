"""A figure in words, read from what is drawn: alternative text with the ends of each panel, and words of its points."""

import re
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import QuadMesh
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter

from drsrobust_extras.pages.plots.names import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

LETTERS = 400  # of an alternative text at most: a screen reader cannot stop in it
_POINTS = 400  # of a figure at most, with words of their own


def text(figure: "Figure", message: str = "") -> str:
    """The message, then what each panel shows with its least and greatest value, as far as 400 letters hold; of a panel without
    axes, its words."""
    panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    parts = [readable(_panel(ax) if ax.axison else _words(ax)) for ax in panels]
    message = shorten(message, LETTERS // 2, placeholder=" ...")
    for shown in range(len(parts), 0, -1):
        rest = len(parts) - shown
        more = [f"{rest} more panel{'s' * (rest > 1)}."] if rest else []
        words = " ".join(filter(None, [message, *parts[:shown], *more]))
        if len(words) <= LETTERS:
            return words
    return shorten(" ".join(filter(None, [message, *parts])), LETTERS, placeholder=" ...")


def points(figure: "Figure") -> list[list[float | str]]:
    """Each drawn point as [x, y, words]: its place as a share of the figure's width (from the left) and height (from the top),
    and `DLRM: 0.79 at 1e-4`. The figure must have its final layout; of more than 400 points none are given."""
    rows: list[list[float | str]] = []
    for ax in figure.axes:
        if _is_map(ax) or ax.get_label() == "<colorbar>":
            continue
        for name, drawn in _drawn(ax).items():
            shares = figure.transFigure.inverted().transform(ax.transData.transform(drawn[:, :2]))
            for (x, y), (*point, value) in zip(shares.tolist(), drawn.tolist(), strict=True):
                if 0 <= x <= 1 and 0 <= y <= 1:
                    words = f"{f'{name}: ' if name else ''}{_number(value)} at {_place(ax, *point)}"
                    rows.append([round(x, 4), round(1 - y, 4), words])
    return rows if len(rows) <= _POINTS else []


def _words(ax: "Axes") -> str:
    texts = (" ".join(text.get_text().split()) for text in ax.texts)
    return f"{'; '.join(text for text in texts if len(text) > 1)}."  # not the digits of a word


def _panel(ax: "Axes") -> str:
    x_quantity, head = _bare(_shared_label(ax, "x")), "" if _is_map(ax) else _head(ax)
    text = f"{f'{head}: ' if head else ''}{_quantity(ax)}"
    text += f" against {x_quantity}" if (_names(ax.yaxis) is None or _is_map(ax)) and x_quantity else ""
    values = [
        (value, place, name) for name, series in _series(ax).items() for value, place in zip(*series, strict=True)
    ]
    if not values:
        return f"{text}: no data."
    ends = [pick(values, key=lambda one: one[0]) for pick in (min, max)]
    least, most = (f"{_number(value)} at {place}{f' ({name})' if name else ''}" for value, place, name in ends)
    if _number(ends[0][0]) == _number(ends[1][0]):
        return f"{text}: {least if len(values) == 1 else f'{_number(ends[0][0])} throughout'}."
    return f"{text}: from {least} to {most}."


def _series(ax: "Axes") -> dict[str | None, tuple[np.ndarray, list[str]]]:
    """Name -> values and where they are, in the order of the horizontal axis; series without a name are one, under None."""
    if _is_map(ax):
        return _rows_of_map(ax)
    return {
        name: (points[:, 2], [_place(ax, x, y) for x, y, _ in points.tolist()]) for name, points in _drawn(ax).items()
    }


def _drawn(ax: "Axes") -> dict[str | None, np.ndarray]:
    """Name -> points [n, 3] of curves, marks and bars, from left to right: their place, and the value. That of a bar is its
    length, also where it begins at another's end. Those without a name are under None. Marks alone count where nothing else is
    drawn, so that no arrow at a bound and no end of an interval does."""
    value_axis, lines = 0 if _names(ax.yaxis) is not None else 1, []
    for part in ax.containers:
        if isinstance(part, ErrorbarContainer) and part.lines[0] is not None:
            lines.append((part.get_label(), _with_values(part.lines[0], value_axis)))
        elif isinstance(part, BarContainer):
            lies = part.orientation == "horizontal"
            across, along = (1.0, 0.5) if lies else (0.5, 1.0)
            ends = [
                (bar.get_x() + across * bar.get_width(), bar.get_y() + along * bar.get_height()) for bar in part.patches
            ]
            lengths = [bar.get_width() if lies else bar.get_height() for bar in part.patches]
            lines.append((part.get_label(), np.column_stack((np.reshape(ends, (-1, 2)), lengths))))
    named = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    marks = [line for line in ax.lines if line.get_marker() not in (None, "", " ", "None", "none")]
    for line in named or ([] if lines else marks):
        lines.append((line.get_label(), _with_values(line, value_axis)))
    merged: dict[str | None, list[np.ndarray]] = {}
    for label, points in lines:
        name = None if not label or str(label).startswith("_") else " ".join(str(label).split())
        points = np.asarray(points, float)
        merged.setdefault(name, []).append(points[np.isfinite(points).all(axis=1)])
    series = {}
    for name, parts in merged.items():
        if len(points := np.concatenate(parts)):
            series[name] = points[np.argsort(points[:, 0], kind="stable")]
    return series


def _with_values(line: "Line2D", value_axis: int) -> np.ndarray:
    points = np.asarray(line.get_xydata(), float)
    return np.column_stack((points, points[:, value_axis]))


def _is_map(ax: "Axes") -> bool:
    return ax.get_label() != "<colorbar>" and any(isinstance(part, QuadMesh) for part in ax.collections)


def _rows_of_map(ax: "Axes") -> dict[str | None, tuple[np.ndarray, list[str]]]:
    grid = next(part for part in ax.collections if isinstance(part, QuadMesh))
    edges = grid.get_coordinates()[0, :, 0]
    names = _names(ax.xaxis, numbers=True) or {}
    columns = np.array([names.get(place, f"{place:g}") for place in ((edges[:-1] + edges[1:]) / 2).tolist()])
    values = np.ma.filled(np.ma.masked_invalid(grid.get_array()), np.nan)
    rows = [(name, row, np.isfinite(row)) for name, row in zip(_names(ax.yaxis).values(), values, strict=True)]
    return {name: (row[has_value], list(columns[has_value])) for name, row, has_value in rows if has_value.any()}


def _place(ax: "Axes", x: float, y: float) -> str:
    """Where a point lies on the other axis, without the small shift that keeps series apart."""
    if (rows := _names(ax.yaxis)) is not None:
        return rows[min(rows, key=lambda place: abs(place - y))]
    if (columns := _names(ax.xaxis, numbers=True)) is not None:
        return columns[min(columns, key=lambda place: abs(place - x))]
    if (ticks := _ticks(ax.xaxis)).size and np.all(ticks == ticks.round()):
        return f"{round(x)}"
    if ax.get_xscale() == "log" and x > 0:
        decade = 10.0 ** round(np.log10(x))
        return _number(decade if abs(np.log10(x / decade)) < 0.2 else x)
    return _number(x)


def _names(axis: "Axis", *, numbers: bool = False) -> dict[float, str] | None:
    """Place -> name of an axis with words at its ticks (or, with `numbers`, any text set by hand); None: plain numbers."""
    places = _ticks(axis)
    names = axis.get_major_formatter().format_ticks(places) if len(places) else []
    by_hand = numbers and isinstance(axis.get_major_formatter(), (FixedFormatter, FuncFormatter))
    if all(re.match(r"[-−\d.$]", name) for name in names if name) and not (by_hand and any(names)):
        return None
    return {float(place): " ".join(name.split()) for place, name in zip(places, names, strict=True)}


def _ticks(axis: "Axis") -> np.ndarray:
    locator = axis.get_major_locator()
    return np.asarray(locator.locs if isinstance(locator, FixedLocator) else [], float)


def _quantity(ax: "Axes") -> str:
    """The label of the measured axis; of a map of colours, the panel's title."""
    axis = "y" if _names(ax.yaxis) is None else "x"
    label = _bare(_head(ax) if _is_map(ax) else _shared_label(ax, axis)) or "value"
    return label[:1].upper() + label[1:]


def _shared_label(ax: "Axes", axis: str) -> str:
    """An axis label, which may be drawn at another panel that shares the axis, preferably of the same row or column."""

    def span(panel: "Axes") -> range | None:
        return getattr(panel.get_subplotspec(), "rowspan" if axis == "y" else "colspan", None)

    others = sorted(
        getattr(ax, f"get_shared_{axis}_axes")().get_siblings(ax), key=lambda panel: span(panel) != span(ax)
    )
    return next((label for panel in [ax, *others] if (label := getattr(panel, f"get_{axis}label")())), "")


def _head(ax: "Axes") -> str:
    return " ".join((ax.get_title(loc="left") or ax.get_title()).split())


def _bare(label: str) -> str:
    """A label without parentheses."""
    return re.sub(r" +(?=,)", "", " ".join(re.sub(r"\(.*?\)", "", label).split()))


def _number(value: float) -> str:
    return re.sub(r"e([-+])0*(\d)", r"e\1\2", f"{value:.3g}").replace("e+", "e")
