"""Budget of stored bits against the expected loss: what a plan predicts, what no plan can beat, and what fresh maps show."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter

from drsrobust.plots.curves import mitigation_label
from drsrobust.plots.style import COLOURS, DASHED, styled
from drsrobust.statistics.columns import ENDS
from drsrobust_study.figures.protection import spread_labels
from drsrobust_study.findings import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_BUDGET = "budget"
_STORED, _LOSS = 0.01, 1e-5  # per cent of bits and AUC, under which the axes are linear
_LINES = {
    "bound": ("upper bound, all plans at once", {"color": COLOURS[1], "linestyle": "-"}),
    "loss": ("predicted by the plan's own maps", {"color": COLOURS[0], "linestyle": "-"}),
    "least": ("no plan predicts less", {"color": "#555555", "linestyle": DASHED}),
}
_POINTS = {
    "plan": ("plans on fresh maps", {"color": COLOURS[0], "marker": "o"}),
    "plan by means": ("the plan of least mean loss", {"color": COLOURS[3], "marker": "D"}),
    "uniform": ("one protection of all tensors", {"color": COLOURS[2], "marker": "s", "markerfacecolor": "white"}),
    "none": ("no protection", {"color": "#000000", "marker": "X"}),
}


def protection_plan_data(frontier: "pd.DataFrame", measured: "pd.DataFrame") -> "pd.DataFrame":
    """What `protection_plan` draws: one row per budget (`kind` is `budget`), then one per protection on fresh maps.

    Args:
        frontier: as `Plan.frontier` returns it.
        measured: as `Plan.compare` returns it.
    """
    import pandas as pd

    columns = ["kind", "mitigation", "stored_percent", "time_percent", "n", *(f"auc_drop{end}" for end in ENDS)]
    lines = frontier.assign(kind=_BUDGET)
    return pd.concat([lines, measured[columns]], ignore_index=True) if len(measured) else lines


@styled
def protection_plan(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Expected loss of AUC against stored bits, on axes that are linear near 0. Lines: the plan at each budget. Points: means
    on fresh error maps with intervals."""
    ax.figure.set_size_inches(7.0, 5.6)
    lines, points = data[data["kind"] == _BUDGET], data[data["kind"] != _BUDGET]
    for name, (label, style) in _LINES.items():
        ax.plot(lines["stored_percent"], lines[name], label=label, drawstyle="steps-post", **style)
    for kind, (label, style) in _POINTS.items():
        of_kind = points[points["kind"] == kind]
        if len(of_kind):
            bars = [of_kind["auc_drop"] - of_kind["auc_drop_low"], of_kind["auc_drop_high"] - of_kind["auc_drop"]]
            style = {"linestyle": "", "capsize": 2, "elinewidth": 0.7, "markersize": 6} | style
            ax.errorbar(of_kind["stored_percent"], of_kind["auc_drop"], yerr=np.maximum(bars, 0), label=label, **style)
    ax.set_xscale("symlog", linthresh=_STORED, linscale=0.4)
    ax.set_yscale("symlog", linthresh=_LOSS)
    highest = [*lines["bound"], *(points["auc_drop_high"] if len(points) else ()), 10 * _LOSS]
    ax.set(xlim=(-_STORED / 3, 3 * max([*data["stored_percent"], 1.0])), ylim=(-_LOSS, 3 * max(highest)))
    for axis, least in ((ax.xaxis, -2), (ax.yaxis, -5)):
        axis.set_major_locator(FixedLocator([0.0, *(10.0**power for power in range(least, 3))]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axis.set_minor_locator(FixedLocator([]))
    ax.set(xlabel="extra stored bits (%)", ylabel="expected loss of AUC")
    ax.figure.legend(loc="outside lower center", ncols=3)
    if len(points):
        names = [
            mitigation_label(name) if kind == "uniform" else ""
            for name, kind in zip(points["mitigation"], points["kind"], strict=True)
        ]
        spread_labels(ax, points["stored_percent"].to_numpy(float), points["auc_drop"].to_numpy(float), names)
    return ax
