"""AUC against the bit error rate by part of the model, and the rate that costs 0.01 AUC."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from drsrobust_extras.pages.plots.names import display_name
from drsrobust_extras.pages.plots.style import apart, at_edge, auc_guides, legend_outside, series_styles, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PART_NAMES = {
    "all": "errors in all parameters",
    "mlp": "errors in MLPs",
    "table": "errors in tables",
    "as_released": "errors as in the published scripts",
}


@styled
def part_curves(data: "pd.DataFrame", ax: "Axes | None" = None, *, dataset: str, part: str) -> "Axes":
    """Mean AUC over maps and trainings against the bit error rate, a line per model; bars: least to greatest single run.

    Args:
        data: `part_curves.over_trainings`.
        ax: where to draw; None: a new figure. The last panel of the first row has the legend.
        dataset, part: of the panel.
    """
    rows = data[(data["dataset"] == dataset) & (data["part"] == part)]
    styles = series_styles(data["model"])
    for number, (model, style) in enumerate(styles.items()):
        curve = rows[rows["model"] == model].sort_values("ber")
        if curve.empty:
            continue
        place = curve["ber"] * apart(number, len(styles))
        ends = np.stack([curve["auc"] - curve["least"], curve["most"] - curve["auc"]]).clip(0)
        ax.errorbar(place, curve["auc"], yerr=ends, **style | {"linewidth": 1.6, "markersize": 4, "elinewidth": 0.7})
    auc_guides(ax)
    ax.set_title(f"{dataset}:\n{PART_NAMES[part]}")
    if len(rows):
        ax.set_xscale("log")
    ax.label_outer()
    if len(data) and at_edge(ax, "first_row", "last_col"):
        legend_outside(ax, [Line2D([], [], label=model, markersize=4, **style) for model, style in styles.items()])
    return ax


@styled
def rates_at_loss(data: "pd.DataFrame", ax: "Axes | None" = None, *, laws: "pd.DataFrame | None" = None) -> "Axes":
    """The bit error rate that costs 0.01 AUC, errors everywhere: a row per model, a colour per data set, with its interval over
    trainings; open dots: single trainings.

    Args:
        data: `part_curves.law_over_trainings` of the part `all`.
        ax: where to draw; None: a new figure.
        laws: `part_curves.loss_per_flip` of the same part, for the single trainings.
    """
    models, sets = list(dict.fromkeys(data["model"])), list(dict.fromkeys(data["dataset"]))
    styles = dict(zip(sets, series_styles(sets).values(), strict=True))
    for number, dataset in enumerate(sets):
        style = styles[dataset] | {"linestyle": "none"}
        shift = 0.16 * (number - (len(sets) - 1) / 2)
        rows = data[(data["dataset"] == dataset) & np.isfinite(data["rate"])]
        places = np.array([len(models) - 1 - models.index(model) - shift for model in rows["model"]])
        ends = np.stack([rows["rate"] - rows["rate_low"], rows["rate_high"] - rows["rate"]])
        ax.errorbar(rows["rate"], places, xerr=np.nan_to_num(ends), markersize=6.5, capsize=2.5, label=dataset, **style)
        if laws is not None:
            single = laws[(laws["dataset"] == dataset) & laws["model"].isin(models)]
            heights = [len(models) - 1 - models.index(model) - shift for model in single["model"]]
            ax.plot(single["rate"], heights, "o", markersize=3, markerfacecolor="white", color=style["color"], zorder=3)
    ax.set_yticks(range(len(models))[::-1], [display_name(model) for model in models])
    ax.set_ylim(-0.6, max(len(models), 1) - 0.4)
    ax.grid(False, axis="y")
    ax.set_xlabel("bit error rate that costs 0.01 AUC")
    if len(data):
        ax.set_xscale("log")
        legend_outside(ax)
    return ax
