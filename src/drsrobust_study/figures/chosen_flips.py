"""AUC by the number of chosen and of random flips."""

from typing import TYPE_CHECKING

from matplotlib.lines import Line2D

from drsrobust_extras.pages.plots.curves import interval
from drsrobust_extras.pages.plots.style import legend_outside, series_styles, styled
from drsrobust_study.effects import pooled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


_DASHED = {"linestyle": "--", "linewidth": 1, "markersize": 4, "markerfacecolor": "white"}
_RANDOM = _DASHED | {"capsize": 2, "elinewidth": 0.8}
_NAMES = {
    "in range": "passes the range check",
    "in range, one per 8 KB": "range check, one per 8 KB",
    "in range, in tables": "range check, in tables",
}


@styled
def worst_case(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """AUC against the number of flips, a colour for each way in which flips are allowed: a solid curve of chosen flips for each
    trained model, and dashed the mean of random flips over these, with its interval.

    Args:
        data: `drsrobust_study.chosen_flips.chosen_and_random`, with `train_seed`.
        ax: where to draw; None: a new figure.
    """
    golden, handles = data["auc_golden"].mean() if len(data) else 0.5, []
    for name, style in series_styles(list(dict.fromkeys(data["allowed"]))).items():
        part = data[(data["allowed"] == name) & (data["flips"] > 0)]
        colour = {"color": style["color"], "marker": style["marker"], "markersize": 4}
        chosen = part[part["how"] == "chosen"].groupby("train_seed", sort=False)
        lines = [
            ax.plot(curve["flips"], curve["auc"], linewidth=1, label=_NAMES.get(name, name), **colour)
            for _, curve in chosen
        ]
        handles += lines[0] if lines else []
        random = part[part["how"] == "random"]
        if len(random):
            tables = dict(iter(random.groupby("train_seed")))
            mean = pooled(tables, ["allowed", "flips"], ["auc"])
            ax.errorbar(mean["flips"], mean["auc"], yerr=interval(mean, "auc"), **colour | _RANDOM)
    ax.axhline(golden, color="#777777", linewidth=0.9, zorder=0)
    ax.axhline(0.5, color="#777777", linewidth=0.9, linestyle=":", zorder=0)
    ax.set(xlabel="flipped bits", ylabel="AUC")
    if len(data):
        ax.set_xscale("log")
        handles.append(Line2D([], [], color="#444444", marker="o", label="at random (mean)", **_DASHED))
        legend_outside(ax, handles, title="chosen flips")
    return ax
