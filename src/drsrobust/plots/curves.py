"""AUC against bit error rate (experiment E3).

What mitigations keep and give back, against the bit error rate (experiments E5 and E6)."""

import re
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drsrobust.plots.style import GUIDE, apart, auc_guides, look, looks, name_line, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_KEYS = ["model", "dataset", "error_model", "target"]
_NUMBERS = ["ber", "realised", "realised_low", "realised_high", "n", "auc", "auc_low", "auc_high", "auc_q10", "auc_q90"]
_NUMBERS += ["auc_golden", "share_nonfinite"]


def auc_vs_ber_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `auc_vs_ber` draws: one row per model, data set, error model, target and rate, sorted, with the realised rate and
    its binomial range.

    Args:
        summary: `dr.summarise` of a campaign's table, or a frame that this function returned.

    Raises:
        ValueError: a table of trials, or another one without means and intervals.
    """
    if missing := [column for column in (*_KEYS, *_NUMBERS) if column not in summary]:
        raise ValueError(
            f"the table has no column {missing[0]!r}: auc_vs_ber draws means over trials; give the summary, as "
            "dr.summarise(table)"
        )
    data = summary.loc[summary["error_model"].str.startswith("BitFlip"), _KEYS + _NUMBERS]
    return data.sort_values([*_KEYS, "ber"], ignore_index=True)


@styled
def auc_vs_ber(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Mean AUC with its interval (bars) and the 10-90 % quantiles over trials (band) against the bit error rate.

    Args:
        data: `dr.summarise` of a campaign's table, or `auc_vs_ber_data` of it; a curve per model, data set and target. Rates
            of 0 are not drawn. Curves stand a little beside each other, so that no bar hides another.
        ax: where to draw; None: a new figure.

    Raises:
        ValueError: a table of trials, which have no means and intervals.
    """
    data = auc_vs_ber_data(data)
    ax = ax or new_panels()[0]
    data = data[data["ber"] > 0]
    differing = [key for key in _KEYS[:3] if data[key].nunique() > 1]
    curves = list(data.groupby([*differing, "target"], sort=False))
    # Where one target is hit, and models differ, curves look as those of models do.
    series = [name[:-1] if differing and data["target"].nunique() == 1 else name for name, _ in curves]
    styles = looks(", ".join(name) for name in series)
    for index, (name, curve) in enumerate(curves):
        style = styles[", ".join(series[index])]
        place = curve["ber"] * apart(index, len(curves), step=0.07)
        ax.fill_between(place, curve["auc_q10"], curve["auc_q90"], color=style["color"], alpha=0.10, lw=0)
        errors = [curve["auc"] - curve["auc_low"], curve["auc_high"] - curve["auc"]]
        label = ", ".join(name)
        ax.errorbar(place, curve["auc"], yerr=errors, label=label, capsize=2.5, markersize=5, linewidth=1.6, **style)
    auc_guides(ax, data["auc_golden"])
    if len(curves):
        ax.set_xscale("log")
        ax.label_outer()
        band = Patch(color="#999999", alpha=0.25, lw=0, label="10-90 % of trials")
        low, high = ax.get_ylim()
        above = max(0.0, (0.5 - low) / (high - low)) + 0.07  # the line of a coin toss has its name at the left
        handles = [*ax.get_legend_handles_labels()[0], band]
        ax.legend(handles=handles, title="errors in", loc="lower left", bbox_to_anchor=(0.0, above, 1.0, 1.0 - above))
        ax.set_title(" / ".join(f"{model} on {name}" for model, name in data[_KEYS[:2]].drop_duplicates().to_numpy()))
    return ax


NONE = "none"  # how tables name the model without protection
PLAIN = "no protection"
_MITIGATION_KEYS = ["model", "dataset", "protocol", "target", "mitigation", "series", "ber"]
_AUC = ["auc_golden", "auc", "auc_low", "auc_high", "auc_q10", "auc_q90", "auc_drop", "auc_drop_low", "auc_drop_high"]
_RECOVERY = ["lost", "lost_low", "lost_high", "gained", "gained_low", "gained_high", "recovery", "recovery_low"]
_RECOVERY += ["recovery_high", "trials_harmed", "trials_harmed_low", "trials_harmed_high", "raised"]


def mitigated_auc_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `mitigated_auc` draws: one row per protocol, mitigation and rate; `series` numbers mitigations in their order, the
    same one alike under all protocols.

    Args:
        summary: `summarise` of campaigns with mitigations, over rates, of one model.
    """
    if "auc_low" not in summary:
        raise ValueError("the table has no intervals (auc_low): give the summary, as summarise(table)")
    return _numbered(summary)[[*_MITIGATION_KEYS, "n", *_AUC, "share_nonfinite", "share_raised"]].reset_index(drop=True)


@styled
def mitigated_auc(data: "pd.DataFrame", ax: "Axes | None" = None, *, protocol: str = "corrected") -> "Axes":
    """Mean AUC with its interval against the bit error rate, a curve per mitigation; without protection in black, with the
    10-90 % quantiles over trials as a band.

    Args:
        data: as `mitigated_auc_data` returns it; rates of 0 are not drawn. Curves stand a little beside each other, so that no
            bar hides another.
        ax: where to draw; None: a new figure. The last one of a row has the legend, of all protocols.
        protocol: whose curves are drawn.
    """
    ax = ax or new_panels()[0]
    whole, data = data, data[(data["ber"] > 0) & (data["protocol"] == protocol)]
    plain = data[data["mitigation"] == NONE]
    ax.fill_between(plain["ber"], plain["auc_q10"], plain["auc_q90"], color="#000000", alpha=0.08, lw=0)
    _curves(ax, data, "auc")
    auc_guides(ax, data["auc_golden"])
    if len(data):
        _finish(ax, data, whole, [Patch(color="#000000", alpha=0.12, lw=0, label="10-90 % of trials,\nno protection")])
        low, high = ax.get_ylim()
        ax.set_ylim(max(low, 0.0), min(high, 1.0))
    return ax


def recovery_vs_ber_data(found: "pd.DataFrame") -> "pd.DataFrame":
    """What `recovery_vs_ber` draws: one row per protocol, mitigation and rate.

    Args:
        found: `campaign.recovery` of campaigns over rates, of one model.
    """
    if "recovery_low" not in found:
        raise ValueError("the table has no recovery_low: give recovery(table) of a campaign's table")
    return _numbered(found)[[*_MITIGATION_KEYS, "n", "auc_golden", *_RECOVERY]].reset_index(drop=True)


@styled
def recovery_vs_ber(
    data: "pd.DataFrame",
    ax: "Axes | None" = None,
    *,
    protocol: str = "corrected",
    quantity: str = "recovery",
    claimed: float | None = None,
) -> "Axes":
    """What comes back of the lost AUC, with its interval, against the bit error rate: a curve per mitigation.

    Args:
        data: as `recovery_vs_ber_data` returns it; values that are blank or have no interval are not drawn.
        ax: where to draw; None: a new figure. The last one of a row has the legend, of all protocols.
        protocol: whose curves are drawn.
        quantity: `recovery`, as a share of the lost AUC, or `gained`, as AUC.
        claimed: a value to compare with, as a line.
    """
    ax = ax or new_panels()[0]
    whole = data[data["ber"] > 0].dropna(subset=[quantity, f"{quantity}_low"])
    data = whole[whole["protocol"] == protocol]
    _curves(ax, data, quantity)
    ax.axhline(0, linestyle="-", **GUIDE)
    labels = {"recovery": "share of the lost AUC that comes back", "gained": "AUC gained by protection"}
    ax.set(xlabel="bit error rate (flips per stored bit)", ylabel=labels[quantity])
    if claimed is not None:
        ax.axhline(claimed, linestyle=(0, (6, 3)), color="#333333", linewidth=1.1, zorder=1.5)  # above the grid
        name_line(ax, claimed, f"claimed: up to {claimed:g}")
    if quantity == "recovery":
        low, high = ax.get_ylim()
        ax.set_ylim(max(low, -1.0), min(max(high, 1.05), 1.3))  # where little is lost, bars may reach anywhere
    if len(data):
        _finish(ax, data, whole, [])
    return ax


def _numbered(table: "pd.DataFrame") -> "pd.DataFrame":
    """With `series`. What the published scripts clipped by is the same series as the same bound elsewhere."""
    if (several := table["model"].nunique()) > 1 or table["dataset"].nunique() > 1:
        raise ValueError(
            f"the table is of {several} models, {table['dataset'].nunique()} data sets; give it one by one"
        )
    refuse_one_label(table)
    names = table["mitigation"].map(series_name)
    numbers = {name: number for number, name in enumerate(name for name in dict.fromkeys(names) if name != NONE)}
    return table.assign(series=names.map(numbers | {NONE: -1}))


def refuse_one_label(table: "pd.DataFrame") -> None:
    """Raises ValueError where several mitigations have one label, which a figure could not show apart."""
    if "mitigation_id" not in table:
        return
    several = table.groupby(["protocol", "target", "mitigation"])["mitigation_id"].nunique()
    if (several > 1).any():
        label = several.idxmax()[-1]
        raise ValueError(
            f"{several.max()} mitigations are labelled {label!r}; give each a `.name` of its own before run()"
        )


def series_name(mitigation: str) -> str:
    """The name of a mitigation without what its panel's title says."""
    return mitigation.replace("clip as released ", "clip ")


def one_bit(mitigation: str) -> str:
    """The name of a mitigation, with one protected bit in the singular."""
    return re.sub(r"\bbits (?=\d+(?![-+\d]))", "bit ", mitigation)


def _label(mitigation: str) -> str:
    return PLAIN if mitigation == NONE else one_bit(series_name(mitigation))


def series_look(number: int) -> dict:
    """Colour, marker, dashes and widths of a series; black without protection."""
    if number < 0:
        return {"color": "#000000", "marker": "", "linestyle": "-", "linewidth": 2.4}
    return look(number + (number >= 6)) | {"linewidth": 1.4, "markersize": 5}  # the seventh colour is black


def _curves(ax: "Axes", data: "pd.DataFrame", value: str) -> None:
    curves = list(data.groupby("series", sort=True))
    for index, (number, curve) in enumerate(curves):
        curve = curve.sort_values("ber")
        place = curve["ber"] * apart(index, len(curves))
        ends = [curve[value] - curve[f"{value}_low"], curve[f"{value}_high"] - curve[value]]
        bars = {"yerr": np.maximum(ends, 0), "capsize": 2.5, "elinewidth": 1.2}
        ax.errorbar(place, curve[value], **bars, **series_look(number), label=_label(curve["mitigation"].iloc[0]))


def _finish(ax: "Axes", data: "pd.DataFrame", whole: "pd.DataFrame", more: list) -> None:
    protocol, target = data[["protocol", "target"]].iloc[0]
    where = "errors in all parameters" if target == "all" else f"errors in {target}"
    here = "errors as in the published scripts" if protocol == "as_released" else where
    ax.set_title(f"{data['model'].iloc[0]} on {data['dataset'].iloc[0]}:\n{here}")  # in one line too long for a panel
    ax.set_xscale("log")
    ax.label_outer()
    place = ax.get_subplotspec()
    if place is None or place.is_last_col():
        series = whole.drop_duplicates("series").sort_values("series")
        lines = [
            Line2D([], [], label=_label(name), **series_look(number))
            for number, name in zip(series["series"], series["mitigation"], strict=True)
        ]
        beside = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
        within = {"loc": "lower left", "bbox_to_anchor": (0.0, 0.14)}  # above the name of the lowest line
        alone = place is None or place.is_first_col()
        ax.legend(handles=[*lines, *more], handlelength=3, **(within if alone else beside))
