"""Curves against the bit error rate: AUC by target, AUC by mitigation, recovery by mitigation.

For each figure `<name>_data` picks the numbers and `<name>` draws them."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter

from drsrobust.statistics import DROP
from drsrobust_extras.pages.plots.losses import (
    FAR,
    OPEN_NOTE,
    WIDE,
    bound_handles,
    draw_losses,
    is_unbounded,
    loss_axis,
    loss_floor,
)
from drsrobust_extras.pages.plots.style import (
    COIN_TOSS,
    DASHED,
    GUIDE,
    OPEN_MARK,
    SMALLEST,
    apart,
    at_edge,
    auc_guides,
    legend_outside,
    name_line,
    series_style,
    series_styles,
    styled,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NO_NAMES: Mapping[str, str] = MappingProxyType({})
NONE, UNPROTECTED = "none", "no protection"  # the model without a mitigation, in tables and in figures
_KEYS = ["model", "dataset", "error_model", "target"]
METRIC = "auc"  # of which all curves are
_NUMBERS = ["ber", "realised", "realised_low", "realised_high", "n", "auc", "auc_low", "auc_high", "auc_q10", "auc_q90"]
_NUMBERS += ["auc_golden", "share_nonfinite"]
_LOSS = ["auc_drop", "auc_drop_low", "auc_drop_high"]
_MITIGATION_KEYS = ["model", "dataset", "protocol", "target", "mitigation", "series", "ber"]
_AUC = ["auc_golden", "auc", "auc_low", "auc_high", "auc_q10", "auc_q90", *_LOSS]
_RECOVERY = ["lost", "lost_low", "lost_high", "gained", "gained_low", "gained_high", "recovery", "recovery_low"]
_RECOVERY += ["recovery_high", "trials_harmed", "trials_harmed_low", "trials_harmed_high", "raised"]


def picked(
    summary: "pd.DataFrame", columns: Sequence[str], needed: str = "auc_low", source: str = "summarise"
) -> "pd.DataFrame":
    """These columns of a summary, with `interval` and `confidence` where it has them.

    Raises:
        ValueError: there is no column `needed`; the message names `source`, the function that makes one.
    """
    if needed not in summary:
        raise ValueError(f"the table has no column {needed!r}; give means with intervals, as dr.{source}(table)")
    return summary[[*columns, *(name for name in ("interval", "confidence") if name in summary)]].reset_index(drop=True)


def auc_vs_ber_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `auc_vs_ber` draws: one row per model, data set, error model, target and rate, sorted, with the realised rate and
    its binomial range, and with the loss where the summary has it.

    Args:
        summary: `dr.summarise` of a campaign's table, or a frame that this function returned.

    Raises:
        ValueError: a table of trials, which has no means and intervals.
    """
    columns = [*_KEYS, *_NUMBERS, "rate"]
    missing = [name for name in columns if name not in summary]
    columns += _LOSS if set(_LOSS) <= set(summary) else []
    data = picked(summary if missing else summary[summary["rate"] == summary["ber"]], columns, *missing[:1])
    return data.sort_values([*_KEYS, "ber"], ignore_index=True)


@styled
def auc_vs_ber(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Mean AUC with the interval of what is lost (bars) and the 10-90 % quantiles over trials (band) against the bit error
    rate, a curve per model, data set and target. Curves are shifted slightly, so that no bar hides another; rates of 0 are not
    drawn. Bars and bands end at the AUC without errors, which a bound of the loss cannot exceed, and bars at the coin toss. A
    mark is open, without a bar, where trials bound the loss by over ten times its mean.

    Args:
        data: `dr.summarise` of a campaign's table, or `auc_vs_ber_data` of it.
        ax: where to draw; None: a new figure.

    Raises:
        ValueError: a table of trials, which has no means and intervals.
    """
    data = auc_vs_ber_data(data)
    data = data[data["ber"] > 0]
    differing = [key for key in _KEYS[:3] if data[key].nunique() > 1]
    curves = list(data.groupby([*differing, "target"], sort=False))
    # With a single target, the curve of a model has the model's colour.
    names = [", ".join(key[:-1] if differing and data["target"].nunique() == 1 else key) for key, _ in curves]
    styles = series_styles(names)
    for index, (key, curve) in enumerate(curves):
        style, place = styles[names[index]], curve["ber"] * apart(index, len(curves), step=0.07)
        curve = within_bounds(curve)
        ax.fill_between(place, curve["auc_q10"], curve["auc_q90"], color=style["color"], alpha=0.10, lw=0)
        style = style | {"label": ", ".join(key), "capsize": 2.5, "markersize": 4.5, "linewidth": 1.5}
        is_open = _is_open(curve)
        ax.errorbar(place, curve["auc"], yerr=np.where(is_open, 0, interval(curve, "auc")), **style)
        mark = style | OPEN_MARK | {"label": None, "linestyle": "none", "zorder": 2.5}
        ax.plot(place[is_open], curve["auc"][is_open], **{name: mark[name] for name in mark if name != "capsize"})
    auc_guides(ax, data["auc_golden"])
    if len(curves):
        ax.set_xscale("log")
        ax.label_outer()
        band = Patch(color="#999999", alpha=0.25, lw=0, label="10-90 % of trials")
        handles = [*ax.get_legend_handles_labels()[0], band]
        handles += [Line2D([], [], label=WIDE, **OPEN_NOTE)] * bool(_is_open(within_bounds(data)).any())
        legend_outside(ax, handles, title="errors in")
        ax.set_title(" / ".join(f"{model} on {name}" for model, name in data[_KEYS[:2]].drop_duplicates().to_numpy()))
    return ax


def mitigated_auc_data(summary: "pd.DataFrame", names: Mapping[str, str] = NO_NAMES) -> "pd.DataFrame":
    """What `mitigated_auc` draws: one row per label of a campaign (column `protocol`), mitigation and rate; `series`
    numbers mitigations, the same under all labels.

    Args:
        summary: `dr.summarise` of campaigns of one model over mitigations and rates.
        names: display names of mitigations; those of one name look alike.
    """
    return picked(_numbered(summary, names), [*_MITIGATION_KEYS, "n", *_AUC, "share_nonfinite", "share_raised"])


@styled
def mitigated_auc(
    data: "pd.DataFrame",
    ax: "Axes | None" = None,
    *,
    label: str | None = None,
    errors: str | None = None,
    names: Mapping[str, str] = NO_NAMES,
) -> "Axes":
    """AUC lost under errors with its interval, on a logarithmic axis, against the bit error rate, a curve per mitigation;
    without protection in black, with the 10-90 % quantiles over trials as a band. An open triangle is the upper end of an
    interval that holds no loss; an open mark has that end far above it. Curves are shifted slightly.

    Args:
        data: `mitigated_auc_data`; rates of 0 are not drawn.
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        label: of the campaign whose curves are drawn; None: the first in the data.
        errors: what the title says of them; None: their target.
        names: as of `mitigated_auc_data`.
    """
    drawn = data[data["ber"] > 0].replace({"mitigation": dict(names)})
    rows, floor = _of_label(drawn, label), loss_floor(drawn)
    plain = rows[rows["mitigation"] == NONE].sort_values("ber")
    band = [np.maximum(plain["auc_golden"] - plain[f"auc_{end}"], floor / 100) for end in ("q90", "q10")]
    ax.fill_between(plain["ber"], *band, color="#000000", alpha=0.08, lw=0)
    curves = list(rows.groupby("series", sort=True))
    for index, (number, curve) in enumerate(curves):
        curve, name = curve.sort_values("ber"), mitigation_label(curve["mitigation"].iloc[0])
        style = _mitigation_style(number) | ({"marker": "o"} if number < 0 else {})
        ends = {"floor": floor, "most": rows["auc_golden"].max() - COIN_TOSS}
        draw_losses(ax, curve, curve["ber"] * apart(index, len(curves)), **ends, label=name, **style)
    ax.set(xlabel="bit error rate (flips per stored bit)")
    notes = [Patch(color="#000000", alpha=0.12, lw=0, label="10-90 % of trials,\nno protection")]
    notes += bound_handles(rows, floor=floor)
    _finish(ax, rows, notes, errors)
    if len(rows):
        loss_axis(ax, floor, float(np.nanmax([*drawn["auc_drop_high"], *(drawn["auc_golden"] - COIN_TOSS)])))
        at_random = rows["auc_golden"].max() - COIN_TOSS
        ax.axhline(at_random, linestyle=DASHED, **GUIDE)
        name_line(ax, at_random, "coin toss", at="left", above=False)
    return ax


def recovery_vs_ber_data(recovery: "pd.DataFrame", names: Mapping[str, str] = NO_NAMES) -> "pd.DataFrame":
    """What `recovery_vs_ber` draws: one row per label of a campaign, mitigation and rate.

    Args:
        recovery: `dr.recovery` of campaigns of one model over rates.
        names: as of `mitigated_auc_data`.
    """
    return picked(
        _numbered(recovery, names), [*_MITIGATION_KEYS, "n", "auc_golden", *_RECOVERY], "recovery_low", "recovery"
    )


@styled
def recovery_vs_ber(
    data: "pd.DataFrame",
    ax: "Axes | None" = None,
    *,
    label: str | None = None,
    errors: str | None = None,
    names: Mapping[str, str] = NO_NAMES,
    quantity: str = "recovery",
) -> "Axes":
    """Recovered AUC with its interval against the bit error rate, a curve per mitigation.

    Args:
        data: `recovery_vs_ber_data`; values that are blank or have no interval are not drawn.
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        label: of the campaign whose curves are drawn; None: the first in the data.
        errors: what the title says of them; None: their target.
        names: as of `mitigated_auc_data`.
        quantity: `recovery`, as a share of the lost AUC, or `gained`, as AUC.
    """
    rows = _of_label(data, label).replace({"mitigation": dict(names)})
    rows = rows[rows["ber"] > 0].dropna(subset=[quantity, f"{quantity}_low"])
    _curves(ax, rows, quantity)
    ax.axhline(0, linestyle="-", **GUIDE)
    labels = {"recovery": "share of the lost AUC that comes back", "gained": "AUC gained by protection"}
    ax.set(xlabel="bit error rate (flips per stored bit)", ylabel=labels[quantity])
    if quantity == "recovery":
        ax.set_ylim(max(ax.get_ylim()[0], -0.6), 1.25)  # bars are very long where little is lost; room for the labels
        for ber, lost in rows.groupby("ber")["lost"].first().items():
            place = {"xycoords": ax.get_xaxis_transform(), "va": "top", "ha": "center", "color": "#555555"}
            place["size"] = SMALLEST
            ax.annotate(f"{lost:.2g}\nlost", (ber, 0.985), **place)
    _finish(ax, rows, [], errors)
    return ax


def interval(data: "pd.DataFrame", value: str) -> np.ndarray:
    """Lengths [2, n] of error bars from `value` to `<value>_low` and `<value>_high`, 0 where rounding makes one negative."""
    return np.maximum([data[value] - data[f"{value}_low"], data[f"{value}_high"] - data[value]], 0)


def _is_open(data: "pd.DataFrame") -> "pd.Series":
    """Where trials bound the loss by over `FAR` times its mean, and by more than what harms."""
    lost, most = data["auc_golden"] - data["auc"], data["auc_golden"] - data["auc_low"]
    return is_unbounded(lost, most, DROP / FAR)


def within_bounds(data: "pd.DataFrame") -> "pd.DataFrame":
    """With `auc_high` and `auc_q90` no higher than the AUC without errors, or than the mean where that is higher still: a bound
    of the loss says nothing of a gain; and `auc_low` no lower than a coin toss. The interval is that of the loss, where there
    is one."""
    most = np.maximum(data["auc_golden"], data["auc"])
    if "auc_drop_low" in data:  # of several trained models the AUC differs, and its loss less
        ends = {
            "auc_low": data["auc_golden"] - data["auc_drop_high"],
            "auc_high": data["auc_golden"] - data["auc_drop_low"],
        }
        data = data.assign(**ends)
    ends = {name: np.minimum(data[name], most) for name in ("auc_high", "auc_q90") if name in data}
    return data.assign(**ends, auc_low=np.maximum(data["auc_low"], np.minimum(data["auc"], COIN_TOSS)))


def refuse_one_label(table: "pd.DataFrame") -> None:
    """Raises ValueError where several mitigations have one label, which a figure cannot tell apart."""
    if "mitigation_id" not in table:
        return
    several = table.groupby(["protocol", "target", "mitigation"])["mitigation_id"].nunique()
    if (several > 1).any():
        raise ValueError(
            f"{several.max()} mitigations are labelled {several.idxmax()[-1]!r}; set a `.name` for each before run()"
        )


def mitigation_label(mitigation: str) -> str:
    """The name of a mitigation in a figure: a single protected bit in the singular."""
    return UNPROTECTED if mitigation == NONE else re.sub(r"\bbits (?=\d+(?![-+\d]))", "bit ", mitigation)


def _of_label(data: "pd.DataFrame", label: str | None) -> "pd.DataFrame":
    """The rows of one campaign's label, by default the first."""
    labels = data["protocol"]
    return data[labels == (next(iter(labels), None) if label is None else label)]


def _numbered(table: "pd.DataFrame", display_names: Mapping[str, str]) -> "pd.DataFrame":
    """With `series`: one number for a mitigation under all labels of campaigns, -1 without protection."""
    if (models := table["model"].nunique()) > 1 or table["dataset"].nunique() > 1:
        raise ValueError(
            f"the table holds {models} models and {table['dataset'].nunique()} data sets; give one of each"
        )
    refuse_one_label(table)
    shown = table["mitigation"].replace(dict(display_names))
    numbers = {name: number for number, name in enumerate(name for name in dict.fromkeys(shown) if name != NONE)}
    return table.assign(series=shown.map(numbers | {NONE: -1}))


def _mitigation_style(number: int) -> dict:
    if number < 0:
        return {"color": "#000000", "marker": "", "linestyle": "-", "linewidth": 2.4}
    return series_style(number + (number >= 6)) | {"linewidth": 1.4, "markersize": 5}  # the seventh colour is black


def _curves(ax: "Axes", data: "pd.DataFrame", value: str) -> None:
    curves = list(data.groupby("series", sort=True))
    for index, (number, curve) in enumerate(curves):
        curve = curve.sort_values("ber")
        style = _mitigation_style(number) | {"yerr": interval(curve, value), "capsize": 2.5, "elinewidth": 1.2}
        label = mitigation_label(curve["mitigation"].iloc[0])
        ax.errorbar(curve["ber"] * apart(index, len(curves)), curve[value], label=label, **style)


def _finish(ax: "Axes", labels: "pd.DataFrame", notes: list[Patch], errors: str | None) -> None:
    """Title, scale and legend of a panel."""
    if labels.empty:
        return
    model, dataset, target = labels[["model", "dataset", "target"]].iloc[0]
    where = "all parameters" if target == "all" else target
    ax.set_title(f"{model} on {dataset}:\n{errors or f'errors in {where}'}")  # names of data sets are long
    ax.set_xscale("log")
    if labels["ber"].nunique() == 1:  # an axis of less than a decade, whose own ticks would be of no rate
        ax.set_xticks(labels["ber"].unique())
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.label_outer()
    if at_edge(ax, "last_col"):
        series = labels.drop_duplicates("series").sort_values("series")
        lines = [
            Line2D([], [], label=mitigation_label(name), **_mitigation_style(number))
            for number, name in zip(series["series"], series["mitigation"], strict=True)
        ]
        legend_outside(ax, [*lines, *notes], handlelength=3)
