"""Models of the next item: quality kept by rate and part, and the loss by one flip."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from drsrobust.statistics import NONE
from drsrobust_extras.pages.plots.curves import interval
from drsrobust_extras.pages.plots.losses import bound_handles, draw_losses, loss_axis, loss_floor
from drsrobust_extras.pages.plots.names import display_name
from drsrobust_extras.pages.plots.style import GUIDE, SMALLEST, apart, at_edge, legend_outside, series_style, styled
from drsrobust_study import sequence_models as models
from drsrobust_study.findings import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Parts of a click model look like those of the others that do the same.
_STYLES = {models.ALL: 6, models.ITEMS: 1, models.ATTENTION: 8, models.FEED_FORWARD: 0, models.LOOKED_UP: 4, models.OUTPUT: 2}
_STYLES |= {"table": 1, "mlp": 0}
_NAMES = {models.ALL: "all parameters", "table": "tables", "mlp": "MLPs"}
_ALIKE = {models.ITEMS: "item table; tables", "table": "item table; tables"}  # in one legend
_ALIKE |= dict.fromkeys((models.FEED_FORWARD, "mlp"), "feed-forward; MLPs")
_TITLES = {"per_flip": "one flipped bit\nof the part", "at_rate": "one wrong bit in 1e9\nthat are stored"}
_LEAST = {"per_flip": 1e-10, "at_rate": 1e-12}  # resolution of each loss


def _style(part: str) -> dict:
    return series_style(_STYLES[part]) | {"linestyle": "-"}


def _name(part: str) -> str:
    return _NAMES.get(part, part)


@styled
def quality_kept(data: "pd.DataFrame", ax: "Axes | None" = None, *, model: str, checked: bool = False) -> "Axes":
    """The share of quality over chance that a model keeps, with its interval, against the bit error rate, a curve per part.
    Bars end at chance and at the quality without errors.

    Args:
        data: `drsrobust_study.sequence_models.joined`.
        ax: where to draw; None: a new figure. The last panel has the legend.
        model: of the panel.
        checked: whether with the range check, or without protection.
    """
    rows = data[(data["model"] == model) & ((data["mitigation"] != NONE) == checked)]
    parts = list(dict.fromkeys(rows["part"]))
    for index, part in enumerate(parts):
        curve = rows[rows["part"] == part].sort_values("ber")
        kept = curve["kept"].to_numpy(float)
        ends = np.minimum(interval(curve, "kept"), np.maximum([kept, 1 - kept], 0))
        bars = {"yerr": ends, "capsize": 1.5, "elinewidth": 0.9, "markersize": 3.8, "linewidth": 1.3}
        ax.errorbar(curve["ber"] * apart(index, len(parts)), curve["kept"], **_style(part) | bars)
    for level in (0, 1):
        ax.axhline(level, linestyle=":", **GUIDE)
    ax.set(ylim=(-0.1, 1.1), xlabel="bit error rate", ylabel="share of quality kept,\n" + ("range check" if checked else "no protection"))
    if at_edge(ax, "first_row"):
        ax.set_title(display_name(model))
    if len(rows):
        ax.set_xscale("log")
    ax.label_outer()
    if len(data) and at_edge(ax, "last_row", "last_col"):
        shown = {_ALIKE.get(part, _name(part)): _style(part) for part in data["part"]}
        legend_outside(ax, [Line2D([], [], label=name, markersize=4, **style) for name, style in shown.items()])
    return ax


@styled
def flip_cost(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "per_flip") -> "Axes":
    """The share of quality that errors cost, by model and part, one below the other. Where no loss was seen the words say what
    it is at most.

    Args:
        data: `drsrobust_study.sequence_models.flip_losses`.
        ax: where to draw; None: a new figure.
        quantity: `per_flip` or `at_rate`.
    """
    floor, place = loss_floor(data, quantity, _LEAST[quantity]), list(range(len(data)))[::-1]
    for y, (_, row) in zip(place, data.iterrows(), strict=True):
        style = _style(row["part"]) | {"linestyle": "none"}
        if row[quantity] >= floor:
            draw_losses(ax, row.to_frame().T, [y], quantity, floor=floor, most=1.0, vertical=False, **style)
        else:
            words = f"at most {number(row[f'{quantity}_high'])}"
            ax.annotate(words, (floor, y), va="center", size=SMALLEST, color=style["color"])
    ax.set_yticks(place, [f"{display_name(row.model)}: {_name(row.part)}  ({row.megabytes:.2g} MB)" for row in data.itertuples()])
    ax.grid(False, axis="y")
    ax.set_title(_TITLES[quantity])
    if len(data):
        ax.set_ylim(-0.7, len(data) - 0.3)
        loss_axis(ax, floor, data[f"{quantity}_high"].max(), axis="x", label="share of quality lost (mean)")
    ax.label_outer()
    if len(data) and at_edge(ax, "last_col") and (notes := bound_handles(data, quantity, floor=floor, vertical=False)):
        legend_outside(ax, notes)
    return ax
