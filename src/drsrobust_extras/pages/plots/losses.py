"""Losses on a logarithmic axis: means with intervals, and one-sided bounds where trials show no loss for sure."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D

from drsrobust_extras.pages.plots.style import LIMIT

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RESOLUTION = 1e-6  # the smallest loss of AUC in a figure
LOST = "AUC lost"
BOUND = "at most (lower end: 0)"
FAR = 10.0  # an upper end this many times higher than its mean is a word in the legend
WIDE = f"pale: interval from 0 to\nover {FAR:g} times the mean"


def loss_floor(data: "pd.DataFrame", value: str = "auc_drop", lowest: float = RESOLUTION) -> float:
    """The power of ten at which a logarithmic axis of losses begins: under all that is drawn, `lowest` at least.

    Args:
        data: with `value`, `<value>_low` and `<value>_high`.
        value: name of the loss.
        lowest: resolution of the loss.
    """
    numbers = data[[value, f"{value}_low", f"{value}_high"]].to_numpy(float)
    drawn = numbers[np.isfinite(numbers) & (numbers >= lowest)]
    return float(10.0 ** np.floor(np.log10(drawn.min()))) if len(drawn) else lowest


def draw_losses(
    ax: "Axes",
    data: "pd.DataFrame",
    place: Any,
    value: str = "auc_drop",
    *,
    floor: float,
    vertical: bool = True,
    **style: Any,
) -> None:
    """Losses with their intervals. Where the interval reaches under the floor, the mean is a small pale mark, and an open
    triangle at the upper end says `at most`; at the floor where that end is lower, none where it is over `FAR` times higher.

    Args:
        ax: the panel; `loss_axis` gives it its scale.
        data: with `value`, `<value>_low` and `<value>_high`.
        place: [n], on the other axis.
        value: name of the loss.
        floor: `loss_floor`, of all data in the panels that share the axis.
        vertical: whether losses are on the vertical axis.
        style: of matplotlib's `errorbar`: colour, marker, label; with a `linestyle` a curve joins the means.
    """
    mean, low, high = (data[f"{value}{end}"].to_numpy(float) for end in ("", "_low", "_high"))
    place, upper = np.asarray(place, float), np.maximum(high, floor)
    joined = {"linestyle": style.pop("linestyle", "none"), "linewidth": style.pop("linewidth", 1.4)}
    known, (near, far) = low >= floor, _bounds(data, value, floor)

    def drawn(which: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (place[which], losses[which]) if vertical else (losses[which], place[which])

    options = {"linestyle": "none", "markersize": 5, "capsize": 2.5, "elinewidth": 1.2} | style
    ends = {"yerr" if vertical else "xerr": np.maximum([mean - low, high - mean], 0)[:, known]}
    bars = ax.errorbar(*drawn(known, mean), **ends, **options)
    colour = bars.lines[0].get_color()
    if joined["linestyle"] != "none":  # a mean under the floor lets the curve leave the panel
        curve = np.maximum(mean, floor / 100)
        ax.plot(*drawn(~np.isnan(mean), curve), color=colour, **joined, zorder=1.8)
    pale = {"marker": style.get("marker", "o"), "markersize": 3.5, "linestyle": "none", "color": colour, "alpha": 0.6}
    ax.plot(*drawn((near | far) & (mean >= floor), mean), **pale)
    span = (place[near], np.maximum(mean, floor)[near], upper[near])  # which mean a triangle belongs to
    (ax.vlines if vertical else ax.hlines)(*span, color=colour, alpha=0.25, linewidth=0.7)
    ax.plot(*drawn(near, upper), marker="v" if vertical else "<", color=colour, markeredgecolor=colour, **LIMIT)


def loss_axis(ax: "Axes", floor: float, highest: float, *, axis: str = "y", label: str = LOST) -> None:
    """A logarithmic axis of losses, from the floor to above the highest one; panels that share it show all that is drawn.

    Args:
        ax: the panel.
        floor: `loss_floor`.
        highest: loss that is drawn.
        axis: `x` or `y`.
        label: of the axis.
    """
    limits = [floor / 1.6, 1.6 * max(highest, 2 * floor)]
    if getattr(ax, f"get_{axis}scale")() == "log":
        old = getattr(ax, f"get_{axis}lim")()
        limits = [min(limits[0], old[0]), max(limits[1], old[1])]
    ax.set(**{f"{axis}scale": "log", f"{axis}lim": limits, f"{axis}label": label})


def bound_handles(
    data: "pd.DataFrame", value: str = "auc_drop", *, floor: float, vertical: bool = True
) -> list[Line2D]:
    """What explains open triangles and pale marks in a legend; nothing where `draw_losses` draws none."""
    near, far = _bounds(data, value, floor)
    words = [BOUND] * bool(near.any()) + [WIDE] * bool(far.any())
    marks = {BOUND: LIMIT | {"marker": "v" if vertical else "<", "color": "#444444", "markeredgecolor": "#444444"}}
    marks[WIDE] = {"marker": "o", "markersize": 3.5, "linestyle": "none", "color": "#444444", "alpha": 0.6}
    return [Line2D([], [], label=word, **marks[word]) for word in words]


def _bounds(data: "pd.DataFrame", value: str, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Where the interval reaches under the floor: with an upper end near to the mean, and far from it."""
    mean, low, high = (data[f"{value}{end}"].to_numpy(float) for end in ("", "_low", "_high"))
    bound, far = (low < floor) & ~np.isnan(high), high > FAR * np.maximum(mean, floor)
    return bound & ~far, bound & far
