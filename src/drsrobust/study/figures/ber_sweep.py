"""AUC against bit error rate of many models, and where it gives way (experiment E3)."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from drsrobust.plots.style import apart, auc_guides, look, looks, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KEYS = ["dataset", "protocol", "model", "target"]
_AUC = ["auc_golden", "auc", "auc_low", "auc_high", "auc_q10", "auc_q90", "auc_drop", "auc_drop_low", "auc_drop_high"]
_PROTOCOLS = {"corrected": "errors in all parameters", "as_released": "errors as in the published scripts"}
# How far it has come: filling tells the thresholds apart, colour and height the protocols.
_FILLS = ("white", None, "black")
_BROKEN = {"markerfacecolor": "white", "linestyle": "none", "zorder": 2.2}


def model_curves_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `model_curves` draws: one row per data set, protocol, model and rate; models keep their numbers in all panels.

    Args:
        summary: `summarise` of campaigns of `BitFlip` over rates.
    """
    if "auc_low" not in summary:
        raise ValueError("the table has no intervals (auc_low): give the summary, as summarise(table)")
    data = summary[summary["error_model"].str.startswith("BitFlip")]
    numbers = {model: number for number, model in enumerate(dict.fromkeys(data["model"]))}
    data = data.assign(series=data["model"].map(numbers))
    return data[[*_KEYS, "series", "ber", "n", *_AUC, "share_nonfinite", "share_raised"]].reset_index(drop=True)


@styled
def model_curves(data: "pd.DataFrame", ax: "Axes | None" = None, *, dataset: str, protocol: str) -> "Axes":
    """Mean AUC with its interval against the bit error rate, a line per model, of one data set and protocol.

    Args:
        data: as `model_curves_data` returns it; rates of 0 are not drawn.
        ax: where to draw; None: a new figure. The last one of the first row has the legend, of all models. Curves stand a
            little beside each other, so that no bar hides another. Points are hollow where most trials had scores that are not
            finite: their AUC is what ties make of them.
        dataset, protocol: of the panel.
    """
    ax = ax or new_panels()[0]
    here = data[(data["dataset"] == dataset) & (data["protocol"] == protocol) & (data["ber"] > 0)]
    styles, several = looks(data.sort_values("series")["model"]), data["series"].nunique()
    for number, curve in here.groupby("series", sort=True):
        curve = curve.sort_values("ber")
        place = curve["ber"] * apart(number, several)
        ends = [curve["auc"] - curve["auc_low"], curve["auc_high"] - curve["auc"]]
        model = curve["model"].iloc[0]
        style = styles[model] | {"linewidth": 1.5, "markersize": 4.5, "capsize": 2, "elinewidth": 0.9}
        ax.errorbar(place, curve["auc"], yerr=np.maximum(ends, 0), label=model, **style)
        broken = curve["share_nonfinite"] > 0.5
        about = {"marker": style["marker"], "markersize": 4.5, "markeredgecolor": style["color"]} | _BROKEN
        ax.plot(place[broken], curve.loc[broken, "auc"], **about)
    auc_guides(ax)
    ax.set_title(f"{dataset}: {_PROTOCOLS.get(protocol, protocol)}", fontsize=10)
    if len(here):
        ax.set_xscale("log")
    ax.label_outer()
    place = ax.get_subplotspec()
    if len(data) and (place is None or (place.is_first_row() and place.is_last_col())):
        handles = [Line2D([], [], label=model, markersize=4.5, **style) for model, style in styles.items()]
        if (data["share_nonfinite"] > 0.5).any():
            label = "hollow: most error maps\nleave NaN or infinite scores"
            handles.append(
                Line2D([], [], label=label, marker="o", markersize=4.5, markeredgecolor="#444444", **_BROKEN)
            )
        ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=3)
    return ax


def ber_knees_data(found: "pd.DataFrame") -> "pd.DataFrame":
    """What `ber_knees` draws: `knees` of campaigns, the model of a data set that gives way last first.

    Args:
        found: `campaign.knees`; the order follows the second threshold of the first protocol.
    """
    losses = list(dict.fromkeys(found["loss"]))
    first = found[(found["loss"] == losses[min(1, len(losses) - 1)])].drop_duplicates(["dataset", "model"])
    order = first.set_index(["dataset", "model"])["knee"]
    sets = {name: number for number, name in enumerate(dict.fromkeys(found["dataset"]))}
    keys = list(found[["dataset", "model"]].itertuples(index=False, name=None))
    places = np.lexsort((np.arange(len(found)), -order.reindex(keys).to_numpy(), found["dataset"].map(sets)))
    return found.iloc[places].reset_index(drop=True)


@styled
def ber_knees(data: "pd.DataFrame", ax: "Axes | None" = None, *, dataset: str, highest: float) -> "Axes":
    """From where AUC begins to give way to where it is half gone: the rates at which each threshold is passed, with their
    intervals, a line per model and protocol.

    Args:
        data: as `ber_knees_data` returns it.
        ax: where to draw; None: a new figure. The last one has the legend.
        dataset: of the panel.
        highest: rate of the campaigns: an arrow stands there for what is not passed up to it.
    """
    ax = ax or new_panels()[0]
    here = data[data["dataset"] == dataset]
    models = list(dict.fromkeys(here["model"]))
    losses, protocols = list(dict.fromkeys(data["loss"])), list(dict.fromkeys(data["protocol"]))
    for index, protocol in enumerate(protocols):
        style = look(index)
        for model, line in here[here["protocol"] == protocol].groupby("model", sort=False):
            y = len(models) - 1 - models.index(model) + 0.17 * (1 - 2 * index) * (len(protocols) > 1)
            end = np.minimum(line["knee"], highest)
            ax.plot([end.min(), end.max()], [y, y], color=style["color"], linewidth=3, alpha=0.35, zorder=1)
            for loss, knee, low, high in line[["loss", "knee", "knee_low", "knee_high"]].itertuples(index=False):
                number = losses.index(loss)
                ends = np.minimum([low, high], highest)
                ax.plot(ends, [y, y], color=style["color"], marker="|", markersize=7, linewidth=1.1, zorder=1.5)
                fill = _FILLS[number % 3] or style["color"]
                mark = {"marker": style["marker"] if np.isfinite(knee) else ">", "markersize": 6.5, "linestyle": "none"}
                reached = "" if np.isfinite(knee) else ", not reached"
                mark["label"] = f"{_lost(loss)}, {_PROTOCOLS.get(protocol, protocol)}{reached}"
                ax.plot(min(knee, highest), y, markerfacecolor=fill, markeredgecolor=style["color"], zorder=2, **mark)
    ax.set_yticks(range(len(models))[::-1], models)
    ax.set_ylim(-0.6, len(models) - 0.4)
    ax.grid(False, axis="y")
    ax.set(title=dataset, xlabel="bit error rate at which the mean AUC loss is reached")
    if len(here):
        ax.set_xscale("log")
        ax.set_xlim(data["knee_low"].min() / 1.6, highest * 1.6)  # of all panels, to compare them
    place = ax.get_subplotspec()
    if len(data) and (place is None or place.is_last_col()):
        line, mark = (
            {"linewidth": 3, "markersize": 7},
            {"marker": "o", "linestyle": "none", "markeredgecolor": "#444444"},
        )
        handles = [
            Line2D([], [], label=_PROTOCOLS.get(protocol, protocol), **line, **look(index) | {"linestyle": "-"})
            for index, protocol in enumerate(protocols)
        ]
        fills = [_FILLS[number % 3] or "#888888" for number in range(len(losses))]
        handles += [
            Line2D([], [], markerfacecolor=fill, label=_lost(loss), markersize=6.5, **mark)
            for fill, loss in zip(fills, losses, strict=True)
        ]
        ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def _lost(loss: str) -> str:
    return f"lost: {'half of AUC - 0.5' if loss == 'half' else f'{loss} AUC'}"
