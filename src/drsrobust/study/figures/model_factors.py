"""How far errors move the outputs of an untrained model, by its sizes and by where errors fall (experiment E2)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from drsrobust._environment import unknown
from drsrobust.plots.style import DASHES, LIMIT, MARKERS, apart, looks, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES = {
    "width": "MLP width",
    "depth": "MLP depth (hidden layers)",
    "embedding_dim": "embedding dimension",
    "density": "input density",
}
_PROTOCOLS = {"corrected": "fresh errors in each trial", "as_released": "as in the published scripts"}
_TARGETS = {"all": "all parameters", "mlp": "MLPs", "embedding": "embedding table"}
_RAMP = ("#8DBBDC", "#4A90C4", "#1F5E9E", "#0B2545")  # light to dark, so that levels keep their order in grey
_ENDS = ("", "_low", "_high")
_NONE_SEEN = "none off in {} trials: below this (95 %)"
_FLOOR = 1e-4  # of logarithmic shares of inputs: one of 10,000


def model_factors_data(summary: "pd.DataFrame", middle: Mapping[str, float]) -> "pd.DataFrame":
    """What `model_factors` and `model_factor_levels` draw: one row per protocol, factor, level, target and rate, the other
    factors at their middle.

    Args:
        summary: as `campaign.deviation_summary` returns it.
        middle: factor -> its middle level.
    """
    if "deviated_0.01_low" not in summary:
        raise ValueError(
            "the table has no intervals (deviated_0.01_low): give the summary, as deviation_summary(table)"
        )
    order = ["protocol", "factor", "level", "target", "ber"]
    data = _by_factor(summary, middle)
    return data[[*order, *(name for name in data if name not in order)]]


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
    """Deviation against the bit error rate, a curve per level of one factor.

    Args:
        data: as `model_factors_data` returns it.
        ax: where to draw; None: a new figure. Those of the first row have a legend; the first in which none of the trials
            deviated anywhere says what the hollow triangles there are: the interval's upper end.
        factor, protocol, target: which curves.
        value: `deviated_0.01`, `deviated_0.1` (logarithmic) or `spearman`.
    """
    if factor not in _NAMES:
        raise unknown("factor", factor, _NAMES)
    ax = ax or new_panels()[0]
    here = data[(data["factor"] == factor) & (data["protocol"] == protocol) & (data["target"] == target)]
    curves = list(here.groupby("level", sort=True))
    share, limits = value.startswith("deviated"), False
    for index, (level, curve) in enumerate(curves):
        curve = curve.sort_values("ber")
        shade = round(index * (len(_RAMP) - 1) / max(len(curves) - 1, 1))
        style = {"color": _RAMP[shade], "marker": MARKERS[index % len(MARKERS)], "linestyle": DASHES[0]}
        place = curve["ber"] * apart(index, len(curves))
        middle, low, high = (curve[f"{value}{end}"].to_numpy(float) for end in _ENDS)
        if share:
            middle, low = np.where(middle > 0, middle, np.nan), np.maximum(low, _FLOOR / 10)
            none = np.isnan(middle)
            ax.plot(place[none], high[none], marker="v", color=style["color"], markeredgecolor=style["color"], **LIMIT)
            limits |= bool(none.any())
        errors = [middle - np.minimum(low, middle), high - middle]
        style |= {"capsize": 2, "markersize": 5, "linewidth": 1.7, "elinewidth": 1}
        ax.errorbar(place, middle, yerr=errors, label=f"{level:g}", **style)
    if len(here):
        ax.set_xscale("log")
        if share:
            ax.set_yscale("log")
            ax.set_ylim(_FLOOR, 1.3)
        handles = ax.get_legend_handles_labels()[0] if _first_row(ax) else []
        if limits and not _told(ax.figure):
            mark = {"marker": "v", "color": "#444444", "markeredgecolor": "#444444"}
            handles.append(Line2D([], [], label=_NONE_SEEN.format(here["n"].min()), **mark, **LIMIT))
        if handles:
            loc, columns = "upper left" if share else "lower left", 2 if len(handles) > 1 else 1
            ax.legend(handles=handles, loc=loc, ncols=columns, columnspacing=1, handletextpad=0.4)
    ax.set(xlabel="bit error rate", ylabel=f"{_PROTOCOLS[protocol]}\n{_value_name(value)}", title=_NAMES[factor])
    _outer(ax)
    return ax


@styled
def model_factor_levels(
    data: "pd.DataFrame", ax: "Axes | None" = None, *, factor: str, ber: float, protocol: str = "corrected"
) -> "Axes":
    """Share of inputs that deviate by over 1 % at one rate, against the levels of one factor: a curve per target.

    Args:
        data: as `model_factors_data` returns it.
        ax: where to draw; None: a new figure. The first one of several has the legend.
        factor, ber, protocol: which points; the rate is the nominal one.
    """
    if factor not in _NAMES:
        raise unknown("factor", factor, _NAMES)
    ax = ax or new_panels()[0]
    here = data[(data["factor"] == factor) & (data["protocol"] == protocol) & (data["ber"] == ber)]
    levels, styles = sorted(here["level"].unique()), looks(_TARGETS)
    for index, target in enumerate(name for name in _TARGETS if name in set(here["target"])):
        curve, style = here[here["target"] == target].sort_values("level"), styles[target]
        middle, low, high = (100 * curve[f"deviated_0.01{end}"].to_numpy(float) for end in _ENDS)
        place = curve["level"].map(levels.index) + 0.06 * (index - 1)
        errors = [middle - np.maximum(low, 0), np.minimum(high, 100) - middle]
        label = f"errors in {_TARGETS[target]}"
        ax.errorbar(place, middle, yerr=errors, label=label, capsize=2.5, markersize=5.5, linewidth=1.7, **style)
    ax.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
    ax.set_xlim(-0.4, max(len(levels), 1) - 0.6)
    ax.grid(False, axis="x")
    label = f"{_PROTOCOLS[protocol]}\n{_value_name('deviated_0.01')} (%)"
    ax.set(xlabel=_NAMES[factor], ylabel=label, title=_NAMES[factor])
    place = ax.get_subplotspec()
    if len(here) and _first_row(ax) and (place is None or place.is_first_col()):
        ax.legend(loc="upper left")
    _outer(ax)
    return ax


def component_contribution_data(shares: "pd.DataFrame", middle: Mapping[str, float]) -> "pd.DataFrame":
    """What `component_contribution` draws: one row per protocol, factor and level, the other factors at their middle.

    Args:
        shares: as `campaign.component_shares` returns it, of MLP against embedding.
        middle: factor -> its middle level.
    """
    data = _by_factor(shares, middle)
    order = ["protocol", "factor", "level"]
    return data[[*order, *(name for name in data if name not in order)]]


@styled
def component_contribution(data: "pd.DataFrame", ax: "Axes | None" = None, *, protocol: str = "corrected") -> "Axes":
    """Which part of what errors do is the MLPs' (bar, with its interval), beside which part of the bits is (diamond).

    Args:
        data: as `component_contribution_data` returns it.
        ax: where to draw; None: a new figure. The last one of a row has the legend.
        protocol: whose rows are drawn.
    """
    ax = ax or new_panels()[0]
    here = data[data["protocol"] == protocol].reset_index(drop=True)
    gaps = here["factor"].map({name: number for number, name in enumerate(here["factor"].unique())})
    place = -(here.index.to_numpy() + 0.6 * gaps.to_numpy(float))
    share, low, high = (100 * here[f"share{end}"].to_numpy(float) for end in _ENDS)
    ax.barh(place, share, color=looks(["mlp"])["mlp"]["color"], label="by errors in the MLPs")
    ax.barh(
        place,
        100 - share,
        left=share,
        color="#F3D9C9",
        hatch="///",
        edgecolor="#D9A98C",
        label="in the embedding table",
    )
    ax.errorbar(share, place, xerr=[share - low, high - share], ls="", color="#222222", capsize=2.5, elinewidth=1.3)
    bits = 100 * here["bits_share"]
    options = {"marker": "D", "markersize": 6, "linestyle": "", "color": "#FFFFFF", "markeredgecolor": "#000000"}
    ax.plot(bits, place, label="the MLPs' share of all bits", zorder=4, **options)
    names = [f"{row.factor.replace('_', ' ')} {row.level:g}" for row in here.itertuples()]
    ax.set_yticks(place, names)
    ax.set_xlim(0, 100)
    ax.grid(False, axis="y")
    ax.set(title=_PROTOCOLS[protocol], xlabel="part of the deviating inputs (%)")
    spec = ax.get_subplotspec()
    if len(here) and (spec is None or spec.is_last_col()):
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    ax.label_outer()
    return ax


def _by_factor(table: "pd.DataFrame", middle: Mapping[str, float]) -> "pd.DataFrame":
    """Rows of the cells in which all factors but one are at their middle, with that `factor` and its `level`: the middle cell
    stands once for each factor. Factors of one level are left out, if another has more."""
    import pandas as pd

    parts = []
    for factor in middle:
        others = [name for name in middle if name != factor]
        here = table[np.logical_and.reduce([table[name] == middle[name] for name in others] or [True])]
        if here[factor].nunique() > 1:
            part = here.assign(factor=factor, level=here[factor].astype(float))
            parts.append(part.sort_values(["level"], kind="stable"))
    if not parts:
        raise ValueError(f"the table holds one level of each of {', '.join(middle)}; nothing is varied")
    data = pd.concat(parts)
    order = {name: number for number, name in enumerate(dict.fromkeys(table["protocol"]))}
    return data.sort_values("protocol", key=lambda names: names.map(order), kind="stable", ignore_index=True)


def _value_name(value: str) -> str:
    if value == "spearman":
        return "rank correlation"
    return f"inputs off by over {100 * float(value.removeprefix('deviated_')):g} %"


def _outer(ax: "Axes") -> None:
    """Labels at the figure's edges alone; titles in the first row."""
    if not _first_row(ax):
        ax.set_title("")
    ax.label_outer()


def _told(figure: "Figure") -> bool:
    """Whether a legend of the figure says already what a limit is."""
    legends = [ax.get_legend() for ax in figure.axes if ax.get_legend() is not None]
    start = _NONE_SEEN.split("{}")[0]
    return any(text.get_text().startswith(start) for legend in legends for text in legend.get_texts())


def _first_row(ax: "Axes") -> bool:
    place = ax.get_subplotspec()
    return place is None or place.is_first_row()
