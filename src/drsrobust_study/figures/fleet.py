"""What errors of memory cost a fleet: the losses that are rare."""

from typing import TYPE_CHECKING

from drsrobust.plots.curves import mitigation_label
from drsrobust.plots.style import legend_outside, series_style, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def fleet_tail(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """The AUC loss that some fault of the fleet exceeds once in a time, a step curve per mitigation.

    Args:
        data: `Fleet.tail` of several times.
    """
    for index, (name, rows) in enumerate(data.groupby("mitigation", sort=False)):
        style = series_style(index) | {"marker": "", "linewidth": 1.8}
        ax.step(rows["years"], rows["loss"], where="post", label=mitigation_label(name), **style)
    ax.set_xscale("log")
    ax.set(xlabel="years between faults that lose more", ylabel="AUC that a host loses")
    if len(data):
        legend_outside(ax)
    return ax
