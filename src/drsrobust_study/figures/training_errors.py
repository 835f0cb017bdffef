"""Errors during training: AUC lost by place, harmful errors that detectors notice, what actions leave."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from drsrobust.plots.losses import bound_handles, draw_losses, loss_axis, loss_floor
from drsrobust.plots.style import at_edge, legend_outside, series_styles, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LEAST = 1e-5  # resolution of the losses
FEWEST = 3  # trials behind an interval that is drawn: of one trial it says nothing


@styled
def training_losses(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """AUC lost by an error during training, by place, a series for each class of bits: the mean of three trials or more with
    its interval, and to its right a small ring for each trial, at the lower edge where it lost less than that.

    Args:
        data: `drsrobust_study.training_errors.losses`.
        ax: where to draw; None: a new figure.
    """
    means, trials = (data[data["what"] == what] for what in ("mean", "trial"))
    ring = {"marker": "o", "markersize": 3, "markerfacecolor": "none", "markeredgewidth": 0.6, "linestyle": "none"}
    handle = Line2D([], [], color="#444444", label="a trial", **ring)
    _losses(ax, means, "place", "bit_class", "AUC lost (mean)", [handle], fewest=FEWEST)
    places, classes = list(dict.fromkeys(means["place"])), list(dict.fromkeys(means["bit_class"]))
    floor = loss_floor(means, lowest=LEAST)
    for index, (name, style) in enumerate(series_styles(classes).items()):
        points = trials[trials["bit_class"] == name]
        place = (points["place"].map(places.index).astype(float) + _shift(index, len(classes)) + 0.07).to_numpy(float)
        lost, shown = points["auc_drop"].to_numpy(float), (points["auc_drop"] >= floor).to_numpy()
        ax.plot(place[shown], lost[shown], color=style["color"], label=f"{name}, a trial", **ring)
        ax.plot(place[~shown], np.full((~shown).sum(), floor / 1.3), color=style["color"], **ring)
    return ax


@styled
def training_actions(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """AUC lost by the harmful errors with each action, a series for errors that are stored and for those of one step.

    Args:
        data: `drsrobust_study.training_errors.left_by_actions`.
        ax: where to draw; None: a new figure.
    """
    _losses(ax, data.dropna(subset=["auc_drop"]), "action", "kind", "AUC lost by harmful errors (mean)", [])
    return ax


def _shift(index: int, n: int) -> float:
    """Of the index-th of n series at one place."""
    return 0.25 * (index - (n - 1) / 2)


def _losses(
    ax: "Axes", data: "pd.DataFrame", across: str, series: str, label: str, more: list[Line2D], fewest: int = 1
) -> None:
    floor, columns = loss_floor(data, lowest=LEAST), list(dict.fromkeys(data[across]))
    names = list(dict.fromkeys(data[series]))
    drawn, handles = data[data["n"] >= fewest], []
    for index, (name, style) in enumerate(series_styles(names).items()):
        points, style = drawn[drawn[series] == name], {"color": style["color"], "marker": style["marker"]}
        place = points[across].map(columns.index).astype(float) + _shift(index, len(names))
        draw_losses(ax, points, place, floor=floor, **style, label=name)
        handles.append(Line2D([], [], linestyle="none", markersize=5, label=name, **style))
    ax.set_xticks(range(len(columns)), [name.replace(" ", "\n").replace("_", " ") for name in columns])
    ax.set_xlim(-0.5, max(len(columns), 1) - 0.5)
    ax.grid(False, axis="x")
    if len(data):
        loss_axis(ax, floor, data["auc_drop_high"].max(), label=label)
        legend_outside(ax, [*handles, *more, *bound_handles(drawn, floor=floor)])


@styled
def training_detection(data: "pd.DataFrame", ax: "Axes | None" = None, *, kind: str) -> "Axes":
    """Shares of harmful errors that each detector notices, a series for the steps within which it does.

    Args:
        data: `drsrobust_study.training_errors.detection`.
        ax: where to draw; None: a new figure.
        kind: of the errors.
    """
    detectors, steps = list(dict.fromkeys(data["detector"])), sorted(set(data["within"]))
    data, handles = data[(data["kind"] == kind) & data["share"].notna()], []
    for index, (within, style) in enumerate(series_styles(steps).items()):
        points = data[data["within"] == within]
        place = (
            len(detectors)
            - 1
            - points["detector"].map(detectors.index).astype(float)
            - 0.2 * (index - (len(steps) - 1) / 2)
        )
        bars = np.maximum([points["share"] - points["share_low"], points["share_high"] - points["share"]], 0)
        style = {
            "color": style["color"],
            "marker": style["marker"],
            "label": f"within {within} step{'s' * (within > 1)}",
        }
        style |= {"linestyle": "none", "capsize": 2.5, "elinewidth": 1.2, "markersize": 5}
        handles.append(ax.errorbar(points["share"], place, xerr=bars, **style))
    ax.set_yticks(range(len(detectors))[::-1], [name.replace("_", " ") for name in detectors])
    ax.set(
        xlim=(-0.03, 1.03), xlabel="share noticed", title=f"{kind} errors (n = {data['n'].max() if len(data) else 0})"
    )
    ax.grid(False, axis="y")
    ax.label_outer()
    if steps and at_edge(ax, "last_col"):
        legend_outside(ax, handles)
    return ax
