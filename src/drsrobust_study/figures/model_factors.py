"""Deviation of an untrained model's outputs under errors, by its sizes and by where errors fall."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from drsrobust._choices import unknown
from drsrobust.plots.losses import bound_handles, draw_losses
from drsrobust.plots.style import DASHES, MARKERS, apart, at_edge, legend_outside, series_styles, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_NAMES = {
    "width": "MLP width",
    "depth": "MLP depth",
    "embedding_dim": "embedding dimension",
    "density": "input density",
}
_PROTOCOLS = {"corrected": "fresh errors in each trial", "as_released": "as in the published scripts"}
_TARGETS = {"all": "all parameters", "mlp": "MLPs", "embedding": "embedding table"}
_RAMP = ("#8DBBDC", "#4A90C4", "#1F5E9E", "#0B2545")  # light to dark, so that levels keep their order in grey
_ENDS = ("", "_low", "_high")
_FLOOR = 1e-4  # of logarithmic shares of inputs: one of 10,000


def model_factors_data(summary: "pd.DataFrame", middle: Mapping[str, float]) -> "pd.DataFrame":
    """What `model_factors` and `model_factor_levels` draw: one row per protocol, factor, level, target and rate, the other
    factors at their middle.

    Args:
        summary: `deviation_summary`.
        middle: factor -> its middle level.
    """
    if "deviated_0.01_low" not in summary:
        raise ValueError("the table has no column 'deviated_0.01_low'; give the summary, as deviation_summary(table)")
    return _by_factor(summary, middle, ["protocol", "factor", "level", "target", "ber"])


@styled
def model_factors(
    data: "pd.DataFrame",
    ax: "Axes | None" = None,
    *,
    factor: str,
    protocol: str = "corrected",
    target: str = "all",
    value: str = "deviated_0.01",
) -> "Axes":
    """Deviation against the bit error rate, a curve per level of one factor. An open triangle is the upper end of an interval
    that reaches under one input of 10,000.

    Args:
        ax: where to draw; None: a new figure. Panels of the first row have a legend.
        factor, protocol, target: which curves.
        value: `deviated_0.01`, `deviated_0.1` (logarithmic) or `spearman`.
    """
    if factor not in _NAMES:
        raise unknown("factor", factor, _NAMES)
    rows = data[(data["factor"] == factor) & (data["protocol"] == protocol) & (data["target"] == target)]
    curves = list(rows.groupby("level", sort=True))
    share = value.startswith("deviated")
    for index, (level, curve) in enumerate(curves):
        curve = curve.sort_values("ber")
        color = _RAMP[round(index * (len(_RAMP) - 1) / max(len(curves) - 1, 1))]
        place = curve["ber"] * apart(index, len(curves))
        middle, low, high = (curve[f"{value}{end}"].to_numpy(float) for end in _ENDS)
        style = {"color": color, "marker": MARKERS[index % len(MARKERS)], "linestyle": DASHES[0]}
        style |= {"capsize": 2, "markersize": 4.5, "linewidth": 1.7, "elinewidth": 1, "label": f"{level:g}"}
        if share:
            draw_losses(ax, curve, place, value, floor=_FLOOR, **style)
        else:
            middle, low, high = (curve[f"{value}{end}"].to_numpy(float) for end in _ENDS)
            ax.errorbar(place, middle, yerr=[middle - np.minimum(low, middle), high - middle], **style)
    if len(rows):
        ax.set_xscale("log")
        if share:
            ax.set_yscale("log")
            ax.set_ylim(_FLOOR, 1.3)
        if at_edge(ax, "first_row"):
            place = {"loc": "upper left" if share else "lower left", "handletextpad": 0.4}
            ax.legend(handles=ax.get_legend_handles_labels()[0], **place)
        notes = bound_handles(rows, value, floor=_FLOOR) if share else []
        if notes and not ax.figure.legends:
            ax.figure.legend(handles=notes, loc="outside lower center")
    ax.set(xlabel="bit error rate", ylabel=f"{_PROTOCOLS[protocol]}\n{_value_name(value)}")
    ax.set_title(_NAMES[factor] if at_edge(ax, "first_row") else "")
    ax.label_outer()
    return ax


@styled
def model_factor_levels(
    data: "pd.DataFrame", ax: "Axes | None" = None, *, factor: str, ber: float, protocol: str = "corrected"
) -> "Axes":
    """Share of inputs that deviate by over 1 % at one rate, against the levels of one factor: a curve per target.

    Args:
        ax: where to draw; None: a new figure.
        factor, ber, protocol: which points; the rate is the nominal one.
    """
    if factor not in _NAMES:
        raise unknown("factor", factor, _NAMES)
    rows = data[(data["factor"] == factor) & (data["protocol"] == protocol) & (data["ber"] == ber)]
    levels, styles = sorted(rows["level"].unique()), series_styles(_TARGETS)
    for index, target in enumerate(name for name in _TARGETS if name in set(rows["target"])):
        curve = rows[rows["target"] == target].sort_values("level")
        middle, low, high = (100 * curve[f"deviated_0.01{end}"].to_numpy(float) for end in _ENDS)
        place = curve["level"].map(levels.index) + 0.06 * (index - 1)
        errors = [middle - np.maximum(low, 0), np.minimum(high, 100) - middle]
        style = styles[target] | {"label": f"errors in {_TARGETS[target]}"}
        ax.errorbar(place, middle, yerr=errors, capsize=2.5, markersize=5.5, linewidth=1.7, **style)
    ax.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
    ax.set_xlim(-0.4, max(len(levels), 1) - 0.6)
    ax.grid(False, axis="x")
    ax.set(xlabel=_NAMES[factor], ylabel=f"{_PROTOCOLS[protocol]}\nchanged inputs (%)")
    if len(rows) and at_edge(ax, "first_row", "first_col"):
        legend_outside(ax)
    ax.label_outer()
    return ax


def component_contribution_data(shares: "pd.DataFrame", middle: Mapping[str, float]) -> "pd.DataFrame":
    """What `component_contribution` draws: one row per protocol, factor and level, the other factors at their middle.

    Args:
        shares: `component_shares` of MLP against embedding.
        middle: factor -> its middle level.
    """
    return _by_factor(shares, middle, ["protocol", "factor", "level"])


@styled
def component_contribution(data: "pd.DataFrame", ax: "Axes | None" = None, *, protocol: str = "corrected") -> "Axes":
    """The MLPs' part of the deviating inputs (bar, with its interval) and of the bits (diamond).

    Args:
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        protocol: whose rows are drawn.
    """
    rows = data[data["protocol"] == protocol].reset_index(drop=True)
    gaps = rows["factor"].map({name: number for number, name in enumerate(rows["factor"].unique())})
    place = -(rows.index.to_numpy() + 0.6 * gaps.to_numpy(float))
    share, low, high = (100 * rows[f"share{end}"].to_numpy(float) for end in _ENDS)
    table_style = {"color": "#F3D9C9", "hatch": "///", "edgecolor": "#D9A98C", "label": "in the embedding table"}
    ax.barh(place, share, color=series_styles(["mlp"])["mlp"]["color"], label="by errors in the MLPs")
    ax.barh(place, 100 - share, left=share, **table_style)
    ax.errorbar(share, place, xerr=[share - low, high - share], ls="", color="#222222", capsize=2.5, elinewidth=1.3)
    diamond = {"marker": "D", "markersize": 6, "linestyle": "", "color": "#FFFFFF", "markeredgecolor": "#000000"}
    ax.plot(100 * rows["bits_share"], place, label="the MLPs' share of all bits", zorder=4, **diamond)
    ax.set_yticks(place, [f"{row.factor.replace('_', ' ')} {row.level:g}" for row in rows.itertuples()])
    ax.set_xlim(0, 100)
    ax.grid(False, axis="y")
    ax.set(title=_PROTOCOLS[protocol], xlabel="part of the deviating inputs (%)")
    if len(rows) and at_edge(ax, "last_col"):
        legend_outside(ax)
    ax.label_outer()
    return ax


def _by_factor(table: "pd.DataFrame", middle: Mapping[str, float], first: list[str]) -> "pd.DataFrame":
    """Rows of the cells in which all factors but one are at their middle, with that `factor` and its `level`: the middle cell
    once for each factor that has several levels.

    Args:
        first: the first columns of the result.
    """
    import pandas as pd

    parts = []
    for factor in middle:
        others = [name for name in middle if name != factor]
        cells = table[np.logical_and.reduce([table[name] == middle[name] for name in others] or [True])]
        if cells[factor].nunique() > 1:
            part = cells.assign(factor=factor, level=cells[factor].astype(float))
            parts.append(part.sort_values(["level"], kind="stable"))
    if not parts:
        raise ValueError(f"the table holds one level of each of {', '.join(middle)}; one factor needs several")
    data = pd.concat(parts)
    order = {name: number for number, name in enumerate(dict.fromkeys(table["protocol"]))}
    data = data.sort_values("protocol", key=lambda names: names.map(order), kind="stable", ignore_index=True)
    return data[[*first, *(name for name in data if name not in first)]]


def _value_name(value: str) -> str:
    if value == "spearman":
        return "rank correlation"
    return f"inputs changed > {100 * float(value.removeprefix('deviated_')):g} %"
