"""Number formats of weights: what they cost without errors, and what a flipped bit costs in them."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics import ENDS
from drsrobust_extras.pages.plots.curves import interval
from drsrobust_extras.pages.plots.losses import loss_axis, loss_floor
from drsrobust_extras.pages.plots.style import SMALLEST, at_edge, legend_outside, series_style, styled
from drsrobust_study.findings import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_QUANTITIES = ("auc_change", "per_bit", "per_weight", "at_rate")
_TITLES = {
    "auc_change": "without errors",
    "per_bit": "one flipped bit",
    "at_rate": "one wrong bit in 1e9\nthat are stored",
}
_LEAST = {"per_bit": 1e-8, "at_rate": 1e-14}  # resolution of each loss
_NAMES = {"fp8_e4m3": "fp8 e4m3", "fp8_e5m2": "fp8 e5m2"}


def number_formats_data(clean: "pd.DataFrame", losses: "pd.DataFrame") -> "pd.DataFrame":
    """What `number_formats` draws: a row for each part of the model and format.

    Args:
        clean: `drsrobust_study.number_formats.clean_cost`.
        losses: `drsrobust_study.number_formats.flip_losses`.
    """
    data = losses.merge(clean, on=["part", "format"], validate="one_to_one")
    columns = ["model", "dataset", "part", "format", "numbers", "megabytes", "bits", "n", "auc"]
    return data[[*columns, *(f"{name}{end}" for name in _QUANTITIES for end in ENDS)]]


@styled
def number_formats(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "per_bit") -> "Axes":
    """A quantity by part of the model and format, one below the other. Of a loss whose interval holds 0 the words say what
    it is at most.

    Args:
        data: `number_formats_data`.
        ax: where to draw; None: a new figure.
        quantity: `auc_change` (of the model without errors), `per_bit` or `at_rate` (AUC lost).
    """
    parts = list(dict.fromkeys(data["part"]))
    place = np.arange(len(data))[::-1] - 0.7 * data["part"].map(parts.index).to_numpy(float)
    if quantity != "auc_change":
        floor = loss_floor(data, quantity, _LEAST[quantity])
    for index, part in enumerate(parts):
        style, of_part = series_style(index), (data["part"] == part).to_numpy()
        style = {"color": style["color"], "marker": style["marker"], "label": part}
        if quantity == "auc_change":
            drawn = of_part
        else:
            drawn = of_part & (data[f"{quantity}_low"] >= floor).to_numpy()
            for y, high in zip(place[of_part & ~drawn], data.loc[of_part & ~drawn, f"{quantity}_high"], strict=True):
                ax.annotate(f"at most {number(high)}", (floor, y), va="center", size=SMALLEST, color=style["color"])
        bars = {"xerr": interval(data[drawn], quantity), "capsize": 2.5, "elinewidth": 1.2, "markersize": 5}
        ax.errorbar(data.loc[drawn, quantity], place[drawn], linestyle="none", **bars, **style)
    ax.set_yticks(
        place, [f"{_NAMES.get(row.format, row.format)}  ({row.megabytes:.2g} MB)" for row in data.itertuples()]
    )
    ax.grid(False, axis="y")
    ax.set_title(_TITLES[quantity])
    if not len(data):
        return ax
    ax.set_ylim(place.min() - 0.6, place.max() + 0.6)
    if quantity == "auc_change":
        ax.axvline(0.0, color="#777777", linewidth=0.9, zorder=0)
        ax.set_xlabel("change of AUC")
        ax.locator_params(axis="x", nbins=3)
    else:
        loss_axis(ax, floor, data[f"{quantity}_high"].max(), axis="x", label="AUC lost (mean)")
    ax.label_outer()
    if at_edge(ax, "last_col"):
        legend_outside(ax)
    return ax
