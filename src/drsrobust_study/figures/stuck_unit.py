"""A defective compute unit: AUC lost by bit and by lane, and who sees it."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust_extras.pages.plots.style import COLOURS, GUIDE, SMALLEST, at_edge, legend_outside, series_style, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_FIELDS = (23, 31)  # the first bits of exponent and sign, with a line below


@styled
def stuck_unit_bits(data: "pd.DataFrame", ax: "Axes | None" = None, *, kind: str) -> "Axes":
    """The AUC lost by the bit that is wrong in all words of one lane, with the range over trained models.

    Args:
        data: `auc_drop` with `_least` and `_most` by `part`, `kind` and `bit`.
        ax: where to draw; None: a new figure.
        kind: of the defect.
    """
    data = data[data["kind"] == kind]
    for index, part in enumerate(dict.fromkeys(data["part"])):
        points, style = data[data["part"] == part].sort_values("bit"), series_style(index)
        ax.plot(points["bit"], points["auc_drop"], **style, markersize=3.5, linewidth=1.2, label=part)
        ends = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
        ax.fill_between(points["bit"], points["auc_drop_least"], points["auc_drop_most"], **ends)
    for bit in _FIELDS:
        ax.axvline(bit - 0.5, **GUIDE)
    ax.set(title=kind, xlabel="bit", xticks=[0, 8, 16, 23, 31])
    return _at_edges(ax)


@styled
def stuck_unit_lanes(data: "pd.DataFrame", ax: "Axes | None" = None, *, part: str) -> "Axes":
    """The AUC lost by the lane that is defective, a curve for each inverted bit; bars: the range over trained models.

    Args:
        data: `auc_drop` with `_least` and `_most` by `part`, `lane` and `bit`.
        ax: where to draw; None: a new figure.
        part: of the lane.
    """
    data = data[data["part"] == part]
    bits = sorted(data["bit"].unique(), reverse=True)
    for index, bit in enumerate(bits):
        points, style = data[data["bit"] == bit].sort_values("lane"), series_style(index)
        ends = np.abs(points[["auc_drop_least", "auc_drop_most"]].to_numpy().T - points["auc_drop"].to_numpy())
        shift = 0.12 * (index - (len(bits) - 1) / 2)
        bars = {"yerr": ends, "elinewidth": 0.8, "markersize": 4, "linestyle": "none"}
        ax.errorbar(points["lane"] + shift, points["auc_drop"], **style | bars, label=f"bit {bit}")
    ax.set(title=part, xlabel="lane", xticks=range(0, int(data["lane"].max()) + 1, 2) if len(data) else ())
    return _at_edges(ax)


@styled
def stuck_unit_seen(data: "pd.DataFrame", ax: "Axes | None" = None, *, what: str) -> "Axes":
    """A bar for each protection: the share of the harmful defects that it reports, with the counts, or the share of the AUC
    that it gives back, with the range over trained models.

    Args:
        data: `drsrobust_study.stuck_unit.joined`.
        ax: where to draw; None: a new figure.
        what: `share` or `given_back`.
    """
    place, values = np.arange(len(data))[::-1], data[what].astype(float)
    colours = {name: COLOURS[number] for number, name in enumerate(dict.fromkeys(data["looks_at"]))}
    for looks_at, colour in colours.items():
        own = (data["looks_at"] == looks_at).to_numpy()
        ax.barh(place[own], values[own].fillna(0.0), 0.6, color=colour, label=f"looks at {looks_at}")
    for y, row, value in zip(place, data.itertuples(), values, strict=True):
        text = f"{row.harmful_reported} of {row.harmful}"
        if what == "given_back":
            text = "changes nothing" if np.isnan(value) else f"{value:.2f}"
            if row.given_back_most - row.given_back_least > 0.005:
                text += f" ({row.given_back_least:.2f} to {row.given_back_most:.2f})"
        at = max(0.0, 0.0 if np.isnan(value) else value)
        ax.annotate(text, (at, y), (4, 0), textcoords="offset points", va="center", size=SMALLEST)
    ax.set_yticks(place, data["protection"])
    titles = {"share": "harmful defects that it reports", "given_back": "lost AUC that it gives back"}
    ends = (0.0, 1.75) if what == "share" else (min(0.0, 1.05 * float(values.min())), 2.4)  # room for the text
    ax.set(title=titles[what], xlabel="share", xlim=ends, xticks=[0, 0.5, 1])
    ax.axvline(0, **GUIDE)
    ax.grid(False, axis="y")
    if at_edge(ax, "last_col"):
        legend_outside(ax)
    return ax


def _at_edges(ax: "Axes") -> "Axes":
    """A panel that has the label of losses in the first column, and the legend in the last one."""
    if at_edge(ax, "first_col"):
        ax.set_ylabel("AUC lost")
    if at_edge(ax, "last_col"):
        legend_outside(ax)
    return ax
