"""Fig. 12 of ISSRE 2025: AUC with clipping and with selective bit protection, and what each gives back."""

from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drsrobust_extras.pages.plots.curves import NONE, UNPROTECTED, interval
from drsrobust_extras.pages.plots.names import display_name
from drsrobust_extras.pages.plots.style import (
    GUIDE,
    apart,
    at_edge,
    legend_outside,
    plain_number,
    series_style,
    series_styles,
    styled,
)
from drsrobust_study.recovery_curves import CLIPPING, CODES, counted_cells
from drsrobust_study.statements import interval as mean_interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_STYLES = {NONE: {"color": "#000000", "marker": "o", "linestyle": "-"}}
_STYLES |= {name: series_style(index) for index, name in enumerate((CLIPPING, *CODES))}
_SHADE, _STATED = "#DDDDD5", (0.05, 0.30)  # what clipping and selective bit protection give back in the study
_LABELS = {"share": "share of the lost\nAUC given back", "points": "AUC given back"}


def recovery_curves_data(points: "pd.DataFrame") -> "pd.DataFrame":
    """What `recovery_curves` and `given_back` draw: one row per model, data set, protection and rate, with means and 95 %
    intervals over trained models of `auc`, `share` and `points`; `golden` and `lost`, means without errors and protection;
    `trainings`, and `counted`: whether S13 and S14 are judged by the cell.

    Args:
        points: `study.recovery_curves.recovery_points`.
    """
    import pandas as pd

    rows, keys, counted = [], ["model", "dataset", "mitigation", "ber"], set(counted_cells(points).index)
    for key, group in points.groupby(keys, sort=False):
        row = dict(zip(keys, key, strict=True)) | group[["golden", "lost"]].mean().to_dict()
        for name in ("auc", "share", "points"):
            ends = mean_interval(group[name], group[f"{name}_error"])
            row |= zip((name, f"{name}_low", f"{name}_high"), ends, strict=True)
        rows.append(row | {"trainings": len(group), "counted": group.index[0] in counted})
    return pd.DataFrame(rows)


@styled
def recovery_curves(data: "pd.DataFrame", ax: "Axes | None" = None, *, model: str, dataset: str) -> "Axes":
    """Mean AUC with its interval over trained models against the bit error rate, a line per protection.

    Args:
        data: `recovery_curves_data`.
        ax: where to draw; None: a new figure. The last panel has the legend.
        model, dataset: of the panel; a panel of a pair that was not run says so.
    """
    rows = data[(data["model"] == model) & (data["dataset"] == dataset)]
    for index, (name, style) in enumerate(_STYLES.items()):
        curve, place = rows[rows["mitigation"] == name].sort_values("ber"), apart(index, len(_STYLES))
        bars = {"yerr": interval(curve, "auc"), "elinewidth": 0.9, "capsize": 1.5}
        ax.errorbar(curve["ber"] * place, curve["auc"], **style | bars | {"markersize": 3.5, "linewidth": 1.3})
    if CLIPPING not in set(rows["mitigation"]):
        ax.text(0.04, 0.09, "not run" if rows.empty else "nothing to clip", transform=ax.transAxes, color="#555555")
    ax.axhline(0.5, linestyle=":", **GUIDE)
    _finish(ax, data, title=display_name(model), ylabel=f"AUC,\n{display_name(dataset)}")
    if at_edge(ax, "last_row", "last_col"):
        names = {NONE: UNPROTECTED}
        legend_outside(ax, [Line2D([], [], label=names.get(name, name), **style) for name, style in _STYLES.items()])
    return ax


@styled
def given_back(data: "pd.DataFrame", ax: "Axes | None" = None, *, mitigation: str, quantity: str = "share") -> "Axes":
    """What a protection gives back, with its interval over trained models, a point per cell (model x data set x rate) that
    loses over 0.005 AUC; the shaded band is what the study states. Points of the first data set are filled.

    Args:
        data: `recovery_curves_data`.
        ax: where to draw; None: a new figure. The last panel has the legend.
        mitigation: of the panel.
        quantity: `share`, of the lost AUC, or `points`, as AUC.
    """
    models, sets = list(dict.fromkeys(data["model"])), list(dict.fromkeys(data["dataset"]))
    point, empty = {"linestyle": "none", "markersize": 4.5}, {"markerfacecolor": "white"}
    styles = {model: style | point for model, style in series_styles(models).items()}
    rows = data[(data["mitigation"] == mitigation) & data["counted"]]
    for (model, dataset), cell in rows.groupby(["model", "dataset"], sort=False):
        place = apart(sets.index(dataset) * len(models) + models.index(model), len(sets) * len(models), step=0.07)
        style = styles[model] | (empty if sets.index(dataset) else {})
        ax.errorbar(cell["ber"] * place, cell[quantity], yerr=interval(cell, quantity), elinewidth=0.8, **style)
    ax.axhspan(*_STATED, color=_SHADE, zorder=0, lw=0)
    ax.axhline(0, linestyle="-", **GUIDE)
    _finish(ax, data, title=mitigation, ylabel=_LABELS[quantity])
    if at_edge(ax, "last_row", "last_col"):
        handles = [Line2D([], [], label=name, **styles[name]) for name in models]
        own = [point | (empty if index else {}) for index in range(len(sets))]
        handles += [
            Line2D([], [], label=name, marker="o", color="#444444", **one) for name, one in zip(sets, own, strict=True)
        ]
        legend_outside(ax, [*handles, Patch(color=_SHADE, lw=0, label="5 to 30 %, as stated")])
    return ax


def _finish(ax: "Axes", data: "pd.DataFrame", *, title: str, ylabel: str) -> None:
    ends = (data["ber"].min(), data["ber"].max())
    ax.set(xscale="log", xlim=(ends[0] / 2, ends[1] * 2), xlabel="bit error rate", ylabel=ylabel)
    ax.set_xticks(ends, [plain_number(end) for end in ends])
    if at_edge(ax, "first_row"):
        ax.set_title(title)
    ax.label_outer()
