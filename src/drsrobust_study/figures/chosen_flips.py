"""AUC by the number of chosen and of random flips."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from drsrobust.plots.style import legend_outside, series_styles, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


_DASHED = {"linestyle": "--", "linewidth": 1, "markersize": 4, "markerfacecolor": "white"}
_RANDOM = _DASHED | {"capsize": 2, "elinewidth": 0.8}


@styled
def worst_case(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """AUC against the number of flips, a colour for each way in which flips are allowed: solid curves chosen flips, dashed ones
    the mean of random flips with its interval.

    Args:
        data: `drsrobust_study.chosen_flips.chosen_and_random`.
        ax: where to draw; None: a new figure.
    """
    golden, handles = data["auc_golden"].max() if len(data) else 0.5, []
    for name, style in series_styles(list(dict.fromkeys(data["allowed"]))).items():
        part = data[data["allowed"] == name]
        chosen, random = (part[(part["how"] == how) & (part["flips"] > 0)] for how in ("chosen", "random"))
        colour = {"color": style["color"], "marker": style["marker"], "markersize": 4}
        handles += ax.plot(chosen["flips"], chosen["auc"], linestyle="-", label=name, **colour)
        bars = np.maximum([random["auc"] - random["auc_low"], random["auc_high"] - random["auc"]], 0)
        ax.errorbar(random["flips"], random["auc"], yerr=bars, **colour | _RANDOM)
    ax.axhline(golden, color="#777777", linewidth=0.9, zorder=0)
    ax.axhline(0.5, color="#777777", linewidth=0.9, linestyle=":", zorder=0)
    ax.set(xlabel="flipped bits", ylabel="AUC")
    if len(data):
        ax.set_xscale("log")
        handles.append(Line2D([], [], color="#444444", marker="o", label="the same at random (mean)", **_DASHED))
        legend_outside(ax, handles, title="chosen flips")
    return ax
