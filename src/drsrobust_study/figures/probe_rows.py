"""Probe rows: what they read and detect by their number."""

from typing import TYPE_CHECKING

from matplotlib.lines import Line2D

from drsrobust_extras.pages.plots.curves import interval
from drsrobust_extras.pages.plots.style import CLAIMED, SMALLEST, at_edge, legend_outside, series_style, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_HOW = {"cover": "rows chosen to cover the tables", "random": "random rows"}
_READ = {"linestyle": ":", "linewidth": 1.2}
_PUBLISHED = {"marker": "*", "markersize": 8, "linestyle": "none", "color": CLAIMED["color"]}


@styled
def probe_coverage(
    data: "pd.DataFrame", ax: "Axes | None" = None, *, part: str, claimed: float | None = None
) -> "Axes":
    """The share of single flips in a part of the model that the first n probe rows detect, with its interval, and (dotted) the
    share of its words that they read.

    Args:
        data: `drsrobust_study.probe_rows.curves`, of several trained models as one.
        ax: where to draw; None: a new figure.
        part: of the model.
        claimed: a published share of one row.
    """
    data = data[data["part"] == part]
    for index, how in enumerate(dict.fromkeys(data["how"])):
        points, style = data[data["how"] == how], series_style(index)
        bars = {"yerr": interval(points, "detected"), "capsize": 2, "elinewidth": 0.9, "markersize": 4}
        ax.errorbar(points["rows"], points["detected"], **bars, **style | {"linestyle": "-"}, label=_HOW.get(how, how))
        ax.plot(points["rows"], points["read"], color=style["color"], **_READ)
    ax.set(title=part, xlabel="probe rows", ylim=(-0.03, 1.03))
    if at_edge(ax, "first_col"):
        ax.set_ylabel("share of single flips detected")
    if len(data):
        ax.set_xscale("log")
    handles = [
        *ax.get_legend_handles_labels()[0],
        Line2D([], [], color="#444444", label="share of words read", **_READ),
    ]
    if claimed is not None:
        ax.plot([1], [claimed], **_PUBLISHED)
        text = "published: one vector,\na language model"
        ax.annotate(text, (1, claimed), (7, 4), textcoords="offset points", va="top", size=SMALLEST)
    if at_edge(ax, "last_col"):
        legend_outside(ax, handles)  # joins those of the figure's panels
    return ax
