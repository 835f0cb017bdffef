"""Recovery by mitigation, and where each one acts."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from drsrobust_extras.pages.plots.curves import interval, mitigation_label, refuse_one_label
from drsrobust_extras.pages.plots.style import SMALLEST, series_style, styled
from drsrobust_study.findings import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KEYS = ["model", "dataset", "protocol", "target", "mitigation", "ber", "n", "auc_golden"]
_POINT = {"linestyle": "none", "markersize": 4.5, "elinewidth": 1.1, "capsize": 2}


def recovery_rows_data(recovery: pd.DataFrame, rank_at: float) -> pd.DataFrame:
    """One row per mitigation and rate, ranked by the AUC gained at one rate.

    Args:
        recovery: `dr.recovery` over rates, of one model, target and protocol.
        rank_at: the rate.

    Raises:
        ValueError: a rate that the table does not have; several mitigations with one label.
    """
    refuse_one_label(recovery)
    ranked = recovery[recovery["ber"] == rank_at]
    if not len(ranked):
        rates = ", ".join(f"{ber:g}" for ber in sorted(recovery["ber"].unique()))
        raise ValueError(f"rank_at is {rank_at!r}; the table has the rates {rates}")
    order = ranked.set_index("mitigation")["gained"].rank(ascending=False, method="first").astype(int)
    names, ends = ("lost", "gained", "recovery", "trials_harmed"), ("", "_low", "_high")
    columns = [*_KEYS, *(f"{name}{end}" for name in names for end in ends), "raised"]
    data = recovery[columns].assign(rank=recovery["mitigation"].map(order))
    return data.sort_values(["rank", "ber"], kind="stable", ignore_index=True)


def protection_places_data(points: pd.DataFrame, places: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """What `protection_places` draws: one row per mitigation, the most recovery of a place first.

    Args:
        points: `cost_benefit`, at one rate.
        places: name of a place, in the order of the data's way -> names of the mitigations that act there.
    """
    parts = [points[points["mitigation"].isin(names)].assign(place=place) for place, names in places.items()]
    columns = ["place", "model", "dataset", "ber", "mitigation", "recovery", "recovery_low", "recovery_high"]
    columns += ["overhead_percent", "stored_percent"]
    parts = [part.sort_values("recovery", ascending=False, kind="stable")[columns] for part in parts]
    return pd.concat(parts, ignore_index=True)


@styled
def protection_places(data: pd.DataFrame, ax: "Axes | None" = None) -> "Axes":
    """The share of the lost AUC that each mitigation gives back, with its interval; rows are grouped by the place where they
    act, on the way of a weight from memory to the score. Extra time and extra storage stand at the right.

    Args:
        data: `protection_places_data`.
        ax: where to draw; None: a new figure.
    """
    places, labels, y = list(dict.fromkeys(data["place"])), {}, 0.0
    margin = {"xycoords": ax.get_yaxis_transform(), "va": "center", "size": SMALLEST, "annotation_clip": False}
    for index, place in enumerate(places):
        rows, style = data[data["place"] == place], series_style(index)
        ax.annotate(place, (-0.02, y), ha="right", color=style["color"], weight="bold", **margin)
        heights = y - 1 - np.arange(len(rows))
        bars = interval(rows, "recovery")
        ax.errorbar(rows["recovery"], heights, xerr=bars, label=place, **style | _POINT)
        for height, row in zip(heights, rows.itertuples(), strict=True):
            labels[height] = textwrap.fill(
                re.sub(r" \((provable, )?restore\)", "", mitigation_label(row.mitigation)), 50
            )
            costs = [f"+{number(row.overhead_percent)} % time"] if row.overhead_percent >= 0.5 else []
            costs += [f"+{number(row.stored_percent)} % bits"] if row.stored_percent >= 0.01 else []
            ax.annotate(", ".join(costs) or "hardly any", (1.02, height), color="#444444", **margin)
        y = heights[-1] - 1.4
    ax.annotate("cost", (1.02, 0.0), color="#444444", weight="bold", **margin)
    for line in (0.0, 1.0):
        ax.axvline(line, color="#777777", linewidth=0.9, zorder=0)
    ax.set_yticks(list(labels), list(labels.values()))
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    ax.set(ylim=(y + 0.8, 0.8), xlim=(-0.15, 1.1), xlabel="share of the lost AUC that comes back")
    ax.figure.set_figheight(0.9 + 0.19 * max(-y, 3.0))
    return ax
