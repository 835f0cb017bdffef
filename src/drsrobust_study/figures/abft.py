"""ABFT: share of errors detected, false alarms, overhead, and AUC after repair."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust.plots.curves import NONE, UNPROTECTED, interval
from drsrobust.plots.style import (
    CLAIMED,
    DASHED,
    GUIDE,
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
    from collections.abc import Iterable, Mapping

    import pandas as pd
    from matplotlib.axes import Axes

_LEAST_DRAWN = 1e-8  # AUC: a smaller change is drawn here
WITHIN = 1e-4  # AUC: the largest change that repair may leave
_BAR = {"linestyle": "none", "capsize": 2, "elinewidth": 1.1, "markersize": 5}
_REPAIR = ["panel", "model", "dataset", "mitigation", "ber", "n", "auc", "auc_low", "auc_high", "auc_golden", "change"]


def abft_detection_data(shares: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_detection` draws: one row per mitigation, model, component and bit, sorted.

    Args:
        shares: `noticed_shares` of single errors by bit.
    """
    if "noticed_low" not in shares:
        raise ValueError("the table has no column 'noticed_low'; give it as noticed_shares(errors)")
    names = {name: number for number, name in enumerate(shares["mitigation"].unique())}
    keys = ["mitigation", "model", "component", "bit"]
    data = shares.sort_values(keys, key=lambda column: column.map(names) if column.name == "mitigation" else column)
    return data.reset_index(drop=True)


@styled
def abft_detection(
    data: "pd.DataFrame", ax: "Axes | None" = None, *, mitigation: str, published: float | None = None
) -> "Axes":
    """Share of single errors that one check detects, by bit and component: of all (pale line), of significant ones (points).

    Args:
        mitigation: the check.
        published: a share to compare with, drawn as a line.
    """
    data = data[data["mitigation"] == mitigation]
    components = list(data["component"].unique())
    for index, (component, style) in enumerate(series_styles(components).items()):
        points = data[data["component"] == component].sort_values("bit")
        place = points["bit"] + 0.26 * (index - (len(components) - 1) / 2)
        pale = {"color": style["color"], "linestyle": style["linestyle"], "alpha": 0.45, "linewidth": 1.3}
        ax.plot(place, points["noticed"], **pale)
        ends = interval(points, "significant_noticed")
        ax.errorbar(place, points["significant_noticed"], yerr=ends, label=component, **style | _BAR)
    highest = int(data["bit"].max()) if len(data) else 31
    if published is not None:
        ax.axhline(published, zorder=1, **CLAIMED)
        name_line(ax, published, f"published: {100 * published:g} %", above=False)
    ax.set(xlabel="bit position (the highest at the left)", ylabel="share detected", ylim=(-0.04, 1.08))
    ax.set_xlim(highest + 0.7, -0.7)
    step = 1 if highest < 8 else 4
    ax.set_xticks(range(highest % step, highest + 1, step))
    ax.set_title(f"{mitigation}, {data['model'].iloc[0] if len(data) else ''}")
    ax.label_outer()
    if len(data) and at_edge(ax, "last_col"):
        legend_outside(ax, title="errors in (points:\nharmful, lines: all)")
    return ax


def abft_overhead_data(runs: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_overhead` draws: one row per scope, mitigation and batch size, the median of several runs.

    Args:
        runs: `time_cost` of several timings.
    """
    keys = ["model", "scope", "mitigation", "batch"]
    values = ["plain_ms", "protected_ms", "overhead_percent"]
    data = runs.groupby(keys, sort=False)[values].median()
    spread = runs.groupby(keys, sort=False)["overhead_percent"].agg(lowest="min", highest="max")
    return data.join(spread).reset_index()


@styled
def abft_overhead(
    data: "pd.DataFrame",
    ax: "Axes | None" = None,
    *,
    scope: str = "model",
    published: "Mapping[str, float] | None" = None,
) -> "Axes":
    """Measured overhead by mitigation, a series per batch size; bars: the range of several runs.

    Args:
        scope: `model` or `operator`: whose time is 100 %.
        published: start of a mitigation's name -> a value to compare with, in per cent.
    """
    several, published = data["model"].nunique() > 1, published or {}
    labels = data["mitigation"] + ("\n" + data["model"] if several else "")
    data, names = data.assign(label=labels), list(labels.unique())
    sizes = sorted(data["batch"].unique())
    data = data[data["scope"] == scope]
    for index, size in enumerate(sizes):
        points, value = data[data["batch"] == size], data.loc[data["batch"] == size, "overhead_percent"]
        place = len(names) - 1 - points["label"].map(names.index).to_numpy(float) - 0.2 * (index - (len(sizes) - 1) / 2)
        ends = np.maximum([value - points["lowest"], points["highest"] - value], 0)
        ax.errorbar(value, place, xerr=ends, label=f"batch {size:,}", **series_style(index) | _BAR)
    for start, value in published.items():
        _published_limit(ax, names, start, value, f"{value:g} %")
    ax.set_yticks(range(len(names))[::-1], names)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ends = np.array([*data["lowest"], *data["highest"], *published.values()], float)
    # Overheads of an operator span decades; a logarithmic axis cannot show those that noise brings below 0.
    logarithmic = scope == "operator" and len(ends) > 0 and ends.min() > 0
    if logarithmic:
        low, high = ends.min() / 1.6, 1.6 * ends.max()
        ax.set(xscale="log", xlim=(low, high))
        ticks = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]
        ticks = [tick for tick in ticks if low <= tick <= high]
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
    else:
        ax.set_xlim(min(-1.0, ends.min(initial=0) - 1), 1.1 * ends.max(initial=10))
        ax.axvline(0, **GUIDE)
    label = f"extra time, per cent of the {scope}'s{' (logarithmic)' if logarithmic else ''}"
    ax.set(xlabel=label, title=f"overhead, of the {scope}'s time")
    ax.grid(False, axis="y")
    if scope == "model":
        ax.legend(loc="best")
    ax.label_outer()
    return ax


def _published_limit(ax: "Axes", names: "Iterable[str]", start: str, value: float, text: str) -> None:
    """A dashed line at the rows whose names begin with `start`; the first name is the top row."""
    names = list(names)
    rows = [len(names) - 1 - number for number, name in enumerate(names) if name.startswith(start)]
    if rows:
        ax.plot([value] * 2, [min(rows) - 0.4, max(rows) + 0.4], zorder=1, **CLAIMED)
        ax.text(value, max(rows) + 0.4, f" published: under {text}", color="#444444", size=8, va="top")


def abft_repair_data(summary: "pd.DataFrame", single: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_repair` draws: panel `rate`, a row per mitigation and rate with the mean AUC and its interval; panel `single`,
    a row per mitigation and trial, sorted by |AUC - golden| (`change`).

    Args:
        summary: `dr.summarise` of a campaign over bit error rates, without and with repair.
        single: the table of a campaign of one error per trial, without and with repair.
    """
    import pandas as pd

    rate = summary.assign(panel="rate").sort_values(["mitigation", "ber"], kind="stable")
    trials = single.assign(panel="single", change=single["auc_drop"].abs(), n=1)
    trials = trials.sort_values(["mitigation", "change"], kind="stable")
    parts = [part.reindex(columns=_REPAIR).dropna(axis=1, how="all") for part in (rate, trials)]
    return pd.concat(parts, ignore_index=True)[_REPAIR]


@styled
def abft_repair(data: "pd.DataFrame", ax: "Axes | None" = None, *, panel: str = "rate") -> "Axes":
    """AUC without and with repair.

    Args:
        panel: `rate`: mean AUC with its interval against the bit error rate; `single`: share of trials with one error whose
            AUC differs from the golden one by at least x.
    """
    data = data[data["panel"] == panel]
    for index, name in enumerate(data["mitigation"].drop_duplicates().sort_values(key=lambda names: names != NONE)):
        points, style = data[data["mitigation"] == name], series_style(index)
        style |= {"color": "#000000", "label": UNPROTECTED} if name == NONE else {"label": "rows and layers repaired"}
        if panel == "rate":
            points = points[points["ber"] > 0]
            style |= {"yerr": interval(points, "auc"), "capsize": 2.5, "markersize": 5, "linewidth": 1.6}
            ax.errorbar(points["ber"] * apart(index, 2), points["auc"], **style)
        else:
            change = points["change"].fillna(np.inf).to_numpy()
            least = np.unique(np.append(change[change > _LEAST_DRAWN], _LEAST_DRAWN))
            share = (change >= least[:, None]).mean(axis=1)
            style |= {"marker": "", "linewidth": 1.8}
            ax.step(np.append(least.clip(_LEAST_DRAWN, 1), 1.0), np.append(share, 0.0), where="pre", **style)
    if panel == "rate":
        auc_guides(ax, data["auc_golden"])
        ax.set_title("errors in all parameters")
    else:
        ax.axvline(WITHIN, linestyle=DASHED, **GUIDE)
        name_line(ax, WITHIN, f"within {WITHIN:g}", axis="x")
        ax.set(xlabel="|AUC - golden|", ylabel="share of trials with at least x", title="one error per trial")
        ax.set(xlim=(_LEAST_DRAWN, 1.0), ylim=(-0.03, 1.03))
    ax.set_xscale("log")
    if len(data):
        ax.legend(loc="best")
    return ax
