"""Fig. 12 of ISSRE 2025: AUC with clipping and with selective bit protection, and what each gives back."""

from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drsrobust.plots.curves import NONE, UNPROTECTED, interval
from drsrobust.plots.names import display_name
from drsrobust.plots.style import (
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
_STATED = (0.05, 0.30)  # what clipping and selective bit protection give back in the study
_LABELS = {"share": "share of the lost\nAUC given back", "points": "AUC given back"}


def recovery_curves_data(points: "pd.DataFrame") -> "pd.DataFrame":
    """What `recovery_curves` and `given_back` draw: one row per model, data set, protection and rate, with means and 95 %
    intervals over trained models of `auc`, `share` and `points`.

    Args:
        points: `study.recovery_curves.recovery_points`.

    Returns:
        also `golden` and `lost` without protection (means), `trainings`, and `counted`: whether statements are judged by the cell.
    """
    import pandas as pd

    rows, keys = [], ["model", "dataset", "mitigation", "ber"]
    counted = set(counted_cells(points).index)
    for key, group in points.groupby(keys, sort=False):
        row = dict(zip(keys, key, strict=True)) | {"golden": group["golden"].mean(), "lost": group["lost"].mean()}
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
        curve = rows[rows["mitigation"] == name].sort_values("ber")
        options = style | {"markersize": 3.5, "linewidth": 1.3, "elinewidth": 0.9, "capsize": 1.5}
        place = curve["ber"] * apart(index, len(_STYLES))
        ax.errorbar(place, curve["auc"], yerr=interval(curve, "auc"), **options)
    if rows.empty:
        ax.text(0.5, 0.5, "not run", ha="center", transform=ax.transAxes)
    elif CLIPPING not in set(rows["mitigation"]):
        ax.text(0.04, 0.09, "nothing to clip", transform=ax.transAxes, color="#555555")
    ax.axhline(0.5, linestyle=":", **GUIDE)
    ends = (data["ber"].min(), data["ber"].max())
    ax.set(xscale="log", xlabel="bit error rate", ylabel=f"AUC,\n{display_name(dataset)}")
    ax.set_xticks(ends, [plain_number(end) for end in ends])
    if at_edge(ax, "first_row"):
        ax.set_title(display_name(model))
    ax.label_outer()
    if at_edge(ax, "last_row", "last_col"):
        names = {NONE: UNPROTECTED}
        legend_outside(ax, [Line2D([], [], label=names.get(name, name), **style) for name, style in _STYLES.items()])
    return ax


@styled
def given_back(data: "pd.DataFrame", ax: "Axes | None" = None, *, mitigation: str, quantity: str = "share") -> "Axes":
    """What a protection gives back, with its interval over trained models, a point per cell (model x data set x rate) that loses
    over 0.005 AUC; the shaded band is what the study states. Points of the first data set are filled.

    Args:
        data: `recovery_curves_data`.
        ax: where to draw; None: a new figure. The last panel has the legend.
        mitigation: of the panel.
        quantity: `share`, of the lost AUC, or `points`, as AUC.
    """
    models, sets = list(dict.fromkeys(data["model"])), list(dict.fromkeys(data["dataset"]))
    styles, rows = series_styles(models), data[(data["mitigation"] == mitigation) & data["counted"]]
    shown = [{"markeredgecolor": None}, {"markerfacecolor": "white"}]
    for (model, dataset), cell in rows.groupby(["model", "dataset"], sort=False):
        number = sets.index(dataset) * len(models) + models.index(model)
        place = cell["ber"] * apart(number, len(sets) * len(models), step=0.07)
        style = {key: styles[model][key] for key in ("color", "marker")} | shown[sets.index(dataset) > 0]
        bars = {"yerr": interval(cell, quantity), "elinewidth": 0.8, "linestyle": "none", "markersize": 4.5}
        ax.errorbar(place, cell[quantity], **style | bars)
    ax.axhspan(*_STATED, color="#DDDDD5", zorder=0, lw=0)
    ax.axhline(0, linestyle="-", **GUIDE)
    ends = (data["ber"].min(), data["ber"].max())
    ax.set(xscale="log", xlim=(ends[0] / 2, ends[1] * 2), xlabel="bit error rate", ylabel=_LABELS[quantity])
    ax.set_xticks(ends, [plain_number(end) for end in ends])
    if at_edge(ax, "first_row"):
        ax.set_title(mitigation)
    ax.label_outer()
    if at_edge(ax, "last_row", "last_col"):
        line = {"linestyle": "none", "markersize": 5}
        handles = [Line2D([], [], label=name, **styles[name] | line) for name in models]
        handles += [
            Line2D([], [], label=name, marker="o", color="#444444", **line | shown[index > 0])
            for index, name in enumerate(sets)
        ]
        legend_outside(ax, [*handles, Patch(color="#DDDDD5", lw=0, label="5 to 30, as stated")])
    return ax
