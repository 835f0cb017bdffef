"""What errors of memory cost a fleet: wrong recommendations and stops a day, and the losses that are rarer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from drsrobust.plots.curves import interval, mitigation_label
from drsrobust.plots.style import LIMIT, at_edge, legend_outside, series_style, styled
from drsrobust.statistics.columns import ENDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {"faults": "distinct faults", "events": "logged events, one bit each"}
_LABELS = {
    "wrong_per_day": "wrong recommendations a day",
    "stops_per_day": "hosts that stop a day for a word of the model",
    "stops_anywhere_per_day": "hosts that stop a day for any word",
}
_QUANTITIES = ("wrong_per_day", "nan_per_day", "auc_days_per_day", "stops_per_day", "stops_anywhere_per_day")
_LEAST = 1e-3  # of a value: where a bar to 0 ends on a logarithmic axis
_RANGE = 1e-6  # of the largest value: what is less is off the axis, but for its bar


def fleet_risk_data(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """What `fleet_risk` draws: one row per failure rate, rule for NaN and mitigation.

    Args:
        tables: name of a failure rate -> `Fleet.table()` with it, or several of these with other rules for NaN as one table.
    """
    quantities = [f"{name}{end}" for name in _QUANTITIES for end in ENDS]
    columns = ["rate", "kind", "nonfinite", "mitigation", "faults_per_day", "hits_per_day", "active", *quantities]
    parts = [table.assign(rate=name) for name, table in tables.items()]
    return pd.concat(parts, ignore_index=True)[[*columns, "loss_once_a_year", "loss_once_in_ten_years"]]


@styled
def fleet_risk(
    data: pd.DataFrame, ax: "Axes | None" = None, *, kind: str = "faults", quantity: str = "wrong_per_day"
) -> "Axes":
    """A quantity a day with its interval: a row per mitigation, a series per failure rate, by the first rule for NaN. An open
    triangle is the upper end where no trial had any; "never" is written where there is no upper end either.

    Args:
        data: `fleet_risk_data`.
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        kind: of the failure rates that are drawn, `faults` or `events`.
        quantity: `wrong_per_day`, `stops_per_day` or `stops_anywhere_per_day`.
    """
    data = data[data["nonfinite"].isin(data["nonfinite"].head(1))]
    ends, names, rates = [], list(dict.fromkeys(data["mitigation"])), list(dict.fromkeys(data["rate"]))
    styles = {rate: series_style(index) | {"linestyle": "none"} for index, rate in enumerate(rates)}
    for index, rate in enumerate(rates):
        rows = data[(data["rate"] == rate) & (data["kind"] == kind)]
        place = len(names) - 1 - rows["mitigation"].map(names.index).to_numpy(float)
        rows = rows.assign(place=place + 0.16 * ((len(rates) - 1) / 2 - index))
        positive, unseen = rows[rows[quantity] > 0], rows[(rows[quantity] == 0) & (rows[f"{quantity}_high"] > 0)]
        low = positive[f"{quantity}_low"].clip(lower=_LEAST * positive[quantity])
        bars = interval(positive.assign(**{f"{quantity}_low": low}), quantity)
        ax.errorbar(positive[quantity], positive["place"], xerr=bars, markersize=5, elinewidth=1.2, **styles[rate])
        limits = styles[rate] | LIMIT | {"marker": "<", "markeredgecolor": styles[rate]["color"]}
        ax.plot(unseen[f"{quantity}_high"], unseen["place"], **limits)
        ends += [*low, *positive[f"{quantity}_high"], *unseen[f"{quantity}_high"]]
    of_kind = data[data["kind"] == kind]
    for name in of_kind.loc[
        of_kind.groupby("mitigation")[f"{quantity}_high"].transform("max") == 0, "mitigation"
    ].unique():
        text = {"xycoords": ax.get_yaxis_transform(), "va": "center", "size": 8.5, "color": "#555555"}
        ax.annotate("never", (0.03, len(names) - 1 - names.index(name)), **text)
    ax.set_xscale("log")
    if ends:  # whole decades, since ticks within one cover each other
        least = max(min(ends), _RANGE * max(ends))
        ax.set_xlim(10 ** np.floor(np.log10(least) - 0.1), 10 ** np.ceil(np.log10(max(ends)) + 0.1))
    ax.set_yticks(range(len(names))[::-1], [mitigation_label(name) for name in names])
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.grid(False, axis="y")
    ax.set(title=_TITLES[kind], xlabel=_LABELS[quantity])
    if rates and at_edge(ax, "last_col"):
        handles = [Line2D([], [], label=rate, **style) for rate, style in styles.items()]
        bound = {"marker": "<", "color": "#444444"} | LIMIT
        legend_outside(ax, [*handles, Line2D([], [], label="none in these trials:\nupper end", **bound)])
    ax.label_outer()
    return ax


@styled
def fleet_tail(data: pd.DataFrame, ax: "Axes | None" = None) -> "Axes":
    """The AUC loss that some fault of the fleet exceeds once in a time, a step curve per mitigation.

    Args:
        data: `Fleet.tail` of several times.
    """
    for index, (name, rows) in enumerate(data.groupby("mitigation", sort=False)):
        style = series_style(index) | {"marker": "", "linewidth": 1.8}
        ax.step(rows["years"], rows["loss"], where="post", label=mitigation_label(name), **style)
    ax.set_xscale("log")
    ax.set(xlabel="years between faults that lose more", ylabel="AUC that a host loses")
    if len(data):
        legend_outside(ax)
    return ax
