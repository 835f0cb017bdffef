"""AUC against the bit error rate for many models, and the rate at which a given loss is reached (experiment E3)."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from drsrobust.plots.curves import interval, picked
from drsrobust.plots.style import OUTSIDE, apart, at_edge, auc_guides, series_style, series_styles, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KEYS = ["dataset", "protocol", "model", "target"]
_AUC = ["auc_golden", "auc", "auc_low", "auc_high", "auc_q10", "auc_q90", "auc_drop", "auc_drop_low", "auc_drop_high"]
_PROTOCOLS = {"corrected": "errors in all parameters", "as_released": "errors as in the published scripts"}
_FILLS = ("white", None, "black")  # of markers, by loss; None: the protocol's colour
_HOLLOW = {"markerfacecolor": "white", "linestyle": "none", "zorder": 2.2}


def model_curves_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `model_curves` draws: one row per data set, protocol, model and rate; `series` numbers models, in all panels alike.

    Args:
        summary: `dr.summarise` of campaigns of `BitFlip` over rates.
    """
    picked(summary, [])
    data = summary[summary["error_kind"] == "BitFlip"]
    numbers = {model: number for number, model in enumerate(dict.fromkeys(data["model"]))}
    columns = [*_KEYS, "series", "ber", "n", *_AUC, "share_nonfinite", "share_raised"]
    return picked(data.assign(series=data["model"].map(numbers)), columns)


@styled
def model_curves(data: "pd.DataFrame", ax: "Axes | None" = None, *, dataset: str, protocol: str) -> "Axes":
    """Mean AUC with its interval against the bit error rate, a line per model, of one data set and protocol. Points are open
    where most trials had NaN or infinite scores. Curves are shifted slightly, so that no bar hides another.

    Args:
        ax: where to draw; None: a new figure. The last panel of the first row has the legend.
        dataset, protocol: of the panel.
    """
    shown = data[(data["dataset"] == dataset) & (data["protocol"] == protocol) & (data["ber"] > 0)]
    styles = series_styles(data.sort_values("series")["model"])
    for number, curve in shown.groupby("series", sort=True):
        curve = curve.sort_values("ber")
        place, model = curve["ber"] * apart(number, data["series"].nunique()), curve["model"].iloc[0]
        style = styles[model] | {"linewidth": 1.5, "markersize": 4.5, "capsize": 2, "elinewidth": 0.9}
        ax.errorbar(place, curve["auc"], yerr=interval(curve, "auc"), label=model, **style)
        broken = curve["share_nonfinite"] > 0.5
        style = {"marker": style["marker"], "markersize": 4.5, "markeredgecolor": style["color"]} | _HOLLOW
        ax.plot(place[broken], curve.loc[broken, "auc"], **style)
    auc_guides(ax)
    ax.set_title(f"{dataset}: {_PROTOCOLS.get(protocol, protocol)}", fontsize=10)
    if len(shown):
        ax.set_xscale("log")
    ax.label_outer()
    if len(data) and at_edge(ax, "first_row", "last_col"):
        handles = [Line2D([], [], label=model, markersize=4.5, **style) for model, style in styles.items()]
        if (data["share_nonfinite"] > 0.5).any():
            style = {"marker": "o", "markersize": 4.5, "markeredgecolor": "#444444"} | _HOLLOW
            handles.append(Line2D([], [], label="open: most trials had\nNaN or infinite scores", **style))
        ax.legend(handles=handles, handlelength=3, **OUTSIDE)
    return ax


def ber_knees_data(rates: "pd.DataFrame") -> "pd.DataFrame":
    """What `ber_knees` draws: in each data set the most robust model first.

    Args:
        rates: `rate_at_loss`; models are ordered by the second loss of the first protocol.
    """
    losses = list(dict.fromkeys(rates["loss"]))
    first = rates[rates["loss"] == losses[min(1, len(losses) - 1)]].drop_duplicates(["dataset", "model"])
    order = first.set_index(["dataset", "model"])["knee"]
    sets = {name: number for number, name in enumerate(dict.fromkeys(rates["dataset"]))}
    keys = list(rates[["dataset", "model"]].itertuples(index=False, name=None))
    places = np.lexsort((np.arange(len(rates)), -order.reindex(keys).to_numpy(), rates["dataset"].map(sets)))
    return rates.iloc[places].reset_index(drop=True)


@styled
def ber_knees(data: "pd.DataFrame", ax: "Axes | None" = None, *, dataset: str, highest: float) -> "Axes":
    """The rates at which the mean AUC loss reaches each threshold, with their intervals, a line per model and protocol.

    Args:
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        dataset: of the panel.
        highest: rate of the campaigns; an arrow at it means that a threshold was not reached.
    """
    shown = data[data["dataset"] == dataset]
    models = list(dict.fromkeys(shown["model"]))
    losses, protocols = list(dict.fromkeys(data["loss"])), list(dict.fromkeys(data["protocol"]))
    for index, protocol in enumerate(protocols):
        style = series_style(index)
        for model, line in shown[shown["protocol"] == protocol].groupby("model", sort=False):
            y = len(models) - 1 - models.index(model) + 0.17 * (1 - 2 * index) * (len(protocols) > 1)
            end = np.minimum(line["knee"], highest)
            ax.plot([end.min(), end.max()], [y, y], color=style["color"], linewidth=3, alpha=0.35, zorder=1)
            for loss, rate, low, high in line[["loss", "knee", "knee_low", "knee_high"]].itertuples(index=False):
                ends = np.minimum([low, high], highest)
                ax.plot(ends, [y, y], color=style["color"], marker="|", markersize=7, linewidth=1.1, zorder=1.5)
                reached = np.isfinite(rate)
                marker = {"marker": style["marker"] if reached else ">", "markersize": 6.5, "linestyle": "none"}
                marker["markerfacecolor"] = _FILLS[losses.index(loss) % 3] or style["color"]
                label = f"{_lost(loss)}, {_PROTOCOLS.get(protocol, protocol)}{'' if reached else ', not reached'}"
                ax.plot(min(rate, highest), y, label=label, markeredgecolor=style["color"], zorder=2, **marker)
    ax.set_yticks(range(len(models))[::-1], models)
    ax.set_ylim(-0.6, len(models) - 0.4)
    ax.grid(False, axis="y")
    ax.set(title=dataset, xlabel="bit error rate at which the mean AUC loss is reached")
    if len(shown):
        ax.set_xscale("log")
        ax.set_xlim(data["knee_low"].min() / 1.6, highest * 1.6)  # the same in all panels, to compare them
    if len(data) and at_edge(ax, "last_col"):
        line = {"linewidth": 3, "markersize": 7}
        handles = [
            Line2D([], [], label=_PROTOCOLS.get(protocol, protocol), **line, **series_style(index) | {"linestyle": "-"})
            for index, protocol in enumerate(protocols)
        ]
        marker = {"marker": "o", "linestyle": "none", "markeredgecolor": "#444444", "markersize": 6.5}
        for number, loss in enumerate(losses):
            fill = _FILLS[number % 3] or "#888888"
            handles.append(Line2D([], [], markerfacecolor=fill, label=_lost(loss), **marker))
        ax.legend(handles=handles, **OUTSIDE)
    return ax


def _lost(loss: str) -> str:
    return f"lost: {'half of AUC - 0.5' if loss == 'half' else f'{loss} AUC'}"
