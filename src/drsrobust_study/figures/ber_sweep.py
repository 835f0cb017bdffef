"""AUC against the bit error rate for many models, and the rate at which a given loss is reached."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from drsrobust.plots.curves import interval, picked, under_golden
from drsrobust.plots.names import display_name
from drsrobust.plots.style import (
    DASHES,
    apart,
    at_edge,
    auc_guides,
    label_lines,
    legend_outside,
    series_style,
    series_styles,
    shade_rates,
    styled,
)
from drsrobust_study.as_released import ERRORS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KEYS = ["dataset", "protocol", "model", "target"]
_AUC = ["auc_golden", "auc", "auc_low", "auc_high", "auc_q10", "auc_q90", "auc_drop", "auc_drop_low", "auc_drop_high"]
_FILLS = ("white", None, "black")  # of markers, by loss; None: the protocol's colour
_HOLLOW = {"markerfacecolor": "white", "linestyle": "none", "zorder": 2.2}


def model_curves_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `model_curves` draws: one row per data set, protocol, model and rate; `series` numbers models, in all panels alike.

    Args:
        summary: `dr.summarise` of campaigns of `BitFlip` over rates.
    """
    picked(summary, [])
    data = summary[summary["rate"] == summary["ber"]]
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
    rows = data[(data["dataset"] == dataset) & (data["protocol"] == protocol) & (data["ber"] > 0)]
    styles = series_styles(data.sort_values("series")["model"])
    for number, curve in under_golden(rows).groupby("series", sort=True):
        curve = curve.sort_values("ber")
        place, model = curve["ber"] * apart(number, data["series"].nunique()), curve["model"].iloc[0]
        style = styles[model] | {"linewidth": 1.5, "markersize": 4.5, "capsize": 2, "elinewidth": 0.9}
        ax.errorbar(place, curve["auc"], yerr=interval(curve, "auc"), label=model, **style)
        broken = curve["share_nonfinite"] > 0.5
        style = {"marker": style["marker"], "markersize": 4.5, "markeredgecolor": style["color"]} | _HOLLOW
        ax.plot(place[broken], curve.loc[broken, "auc"], **style)
    auc_guides(ax)
    ax.set_title(f"{dataset}:\n{ERRORS[protocol]}")
    if len(rows):
        ax.set_xscale("log")
    ax.label_outer()
    if len(data) and at_edge(ax, "first_row", "last_col"):
        handles = [Line2D([], [], label=model, markersize=4.5, **style) for model, style in styles.items()]
        if (data["share_nonfinite"] > 0.5).any():
            style = {"marker": "o", "markersize": 4.5, "markeredgecolor": "#444444"} | _HOLLOW
            handles.append(Line2D([], [], label="open: most trials had\nNaN or infinite scores", **style))
        legend_outside(ax, handles, handlelength=3)
    return ax


@styled
def lead_curves(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Mean AUC with its interval (band) against the bit error rate, a line per model with its name at its end; the ranges of
    rates of the field and of stress are shaded.

    Args:
        data: `model_curves_data` of one data set and protocol.
        ax: where to draw; None: a new figure.
    """
    styles, ends = series_styles(data.sort_values("series")["model"]), {}
    for model, curve in under_golden(data[data["ber"] > 0]).groupby("model", sort=False):
        curve, style = curve.sort_values("ber"), styles[model]
        ax.fill_between(curve["ber"], curve["auc_low"], curve["auc_high"], color=style["color"], alpha=0.18, lw=0)
        ax.plot(
            curve["ber"], curve["auc"], linewidth=2.2, color=style["color"], linestyle=style["linestyle"], label=model
        )
        ends[display_name(model)] = (curve["ber"].iloc[-1], curve["auc"].iloc[-1])
    auc_guides(ax)
    if len(data):
        ax.set(xscale="log", xlim=(data["ber"].min() / 1.3, data["ber"].max() * 1.1))
        shade_rates(ax)
        label_lines(ax, ends, {display_name(model): style["color"] for model, style in styles.items()})
    return ax


@styled
def scoring_rules(data: "pd.DataFrame", ax: "Axes | None" = None, *, dataset: str) -> "Axes":
    """Mean AUC against the bit error rate, a colour per ranking rule and a dash per model, without intervals.

    Args:
        data: `drsrobust_study.scoring_rules.scoring_rules`.
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        dataset: of the panel.
    """
    rows = data[data["dataset"] == dataset]
    models = list(dict.fromkeys(data["model"]))
    rules = list(dict.fromkeys(data["rule"]))
    for (model, rule), curve in rows.groupby(["model", "rule"], sort=False):
        index, curve = rules.index(rule), curve.sort_values("ber")
        style = series_style(index) | {"linestyle": DASHES[models.index(model)], "linewidth": 1.6, "markersize": 5}
        ax.plot(curve["ber"] * apart(index, len(rules)), curve["auc"], label=f"{model}, {rule}", **style)
    auc_guides(ax)
    ax.set_title(dataset)
    if len(rows):
        ax.set_xscale("log")
    ax.label_outer()
    if len(data) and at_edge(ax, "last_col"):
        handles = [
            Line2D([], [], label=rule, **series_style(index) | {"linestyle": ""}) for index, rule in enumerate(rules)
        ]
        handles += [Line2D([], [], label=name, color="#444444", linestyle=DASHES[i]) for i, name in enumerate(models)]
        legend_outside(ax, handles)
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
    rows = data[data["dataset"] == dataset]
    models = list(dict.fromkeys(rows["model"]))
    losses, protocols = list(dict.fromkeys(data["loss"])), list(dict.fromkeys(data["protocol"]))
    for index, protocol in enumerate(protocols):
        style = series_style(index)
        for model, line in rows[rows["protocol"] == protocol].groupby("model", sort=False):
            y = len(models) - 1 - models.index(model) + 0.17 * (1 - 2 * index) * (len(protocols) > 1)
            end = np.minimum(line["knee"], highest)
            ax.plot([end.min(), end.max()], [y, y], color=style["color"], linewidth=3, alpha=0.35, zorder=1)
            for loss, rate, low, high in line[["loss", "knee", "knee_low", "knee_high"]].itertuples(index=False):
                ends = np.minimum([low, high], highest)
                ax.plot(ends, [y, y], color=style["color"], marker="|", markersize=7, linewidth=1.1, zorder=1.5)
                is_reached = np.isfinite(rate)
                marker = {"marker": style["marker"] if is_reached else ">", "markersize": 6.5, "linestyle": "none"}
                marker["markerfacecolor"] = _FILLS[losses.index(loss) % 3] or style["color"]
                label = f"{_lost(loss)}, {ERRORS[protocol]}{'' if is_reached else ', not reached'}"
                ax.plot(min(rate, highest), y, label=label, markeredgecolor=style["color"], zorder=2, **marker)
    ax.set_yticks(range(len(models))[::-1], models)
    ax.set_ylim(-0.6, len(models) - 0.4)
    ax.grid(False, axis="y")
    ax.set(title=dataset, xlabel="bit error rate at which the mean AUC loss is reached")
    if len(rows):
        ax.set_xscale("log")
        ax.set_xlim(data["knee_low"].min() / 1.6, highest * 1.6)  # the same in all panels, to compare them
    if len(data) and at_edge(ax, "last_col"):
        line = {"linewidth": 3, "markersize": 7}
        handles = [
            Line2D([], [], label=ERRORS[protocol], **line, **series_style(index) | {"linestyle": "-"})
            for index, protocol in enumerate(protocols)
        ]
        marker = {"marker": "o", "linestyle": "none", "markeredgecolor": "#444444", "markersize": 6.5}
        for number, loss in enumerate(losses):
            fill = _FILLS[number % 3] or "#888888"
            handles.append(Line2D([], [], markerfacecolor=fill, label=_lost(loss), **marker))
        legend_outside(ax, handles)
    return ax


def _lost(loss: str) -> str:
    return f"lost: {'half of AUC - 0.5' if loss == 'half' else f'{loss} AUC'}"
