"""Losses on a logarithmic axis: means with intervals, and one-sided bounds where trials show no loss for sure."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.lines import Line2D

from drsrobust_extras.pages.plots.style import LIMIT, OPEN_MARK

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RESOLUTION = 1e-6  # the smallest loss of AUC in a figure
LOST = "AUC lost"
BOUND = "at most (lower end: 0)"
FAR = 10.0  # an upper end this many times higher than its mean says nothing of the mean
WIDE = f"open: may lose over\n{FAR:g} times as much"
OPEN_NOTE = OPEN_MARK | {"marker": "o", "linestyle": "none", "color": "#444444"}  # in a legend


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
    most: float = np.inf,
    vertical: bool = True,
    **style: Any,
) -> None:
    """Losses with their intervals. Where the interval reaches under the floor, the mean is a small pale mark, and an open
    triangle at the upper end says `at most`; at the floor where that end is lower. Where trials bound a loss by over `FAR`
    times its mean, it is an open mark alone.

    Args:
        ax: the panel; `loss_axis` gives it its scale.
        data: with `value`, `<value>_low` and `<value>_high`.
        place: [n], on the other axis.
        value: name of the loss.
        floor: `loss_floor`, of all data in the panels that share the axis.
        most: the loss of a coin toss, at which intervals end.
        vertical: whether losses are on the vertical axis.
        style: of matplotlib's `errorbar`: colour, marker, label; with a `linestyle` a curve joins the means.
    """
    mean, low, high = (data[f"{value}{end}"].to_numpy(float) for end in ("", "_low", "_high"))
    high = np.minimum(high, np.maximum(mean, most))
    place, upper = np.asarray(place, float), np.maximum(high, floor)
    joined = {"linestyle": style.pop("linestyle", "none"), "linewidth": style.pop("linewidth", 1.4)}
    near, far = _bounds(data, value, floor)
    known = (low >= floor) & ~far

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
    ax.plot(*drawn(near & (mean >= floor), mean), **pale)
    ax.plot(*drawn(far & (mean >= floor), mean), **pale | OPEN_MARK | {"markersize": options["markersize"]})
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
    """What explains open triangles and open marks in a legend; nothing where `draw_losses` draws none."""
    near, far = _bounds(data, value, floor)
    words = [BOUND] * bool(near.any()) + [WIDE] * bool(far.any())
    marks = {BOUND: LIMIT | {"marker": "v" if vertical else "<", "color": "#444444", "markeredgecolor": "#444444"}}
    marks[WIDE] = OPEN_NOTE
    return [Line2D([], [], label=word, **marks[word]) for word in words]


def _bounds(data: "pd.DataFrame", value: str, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Where the interval reaches under the floor and its upper end is near to the mean; and where that end says nothing."""
    mean, low, high = (data[f"{value}{end}"].to_numpy(float) for end in ("", "_low", "_high"))
    far = is_unbounded(mean, high, floor)
    return (low < floor) & ~far, far


def is_unbounded(mean: Any, high: Any, floor: float) -> Any:
    """Whether trials bound a loss by over `FAR` times its mean, or not at all; a loss under the floor counts as the floor."""
    return ~np.isnan(mean) & ~(high <= FAR * np.maximum(mean, floor))
