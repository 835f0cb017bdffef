"""What errors of memory cost a fleet a day."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust_extras.pages.plots.style import COLOURS, SMALLEST, at_edge, styled
from drsrobust_study.figures.memory_faults import protection_name
from drsrobust_study.findings import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_AXES = {"wrong_per_day": "wrong recommendations a day", "stops_anywhere_per_day": "hosts that stop a day"}
_STOPS = {"SECDED (72,64)": "SECDED, stops the host"}


def fleet_day_data(risk: "pd.DataFrame", rate: str) -> "pd.DataFrame":
    """What `fleet_day` draws: a row per protection, and one more where a NaN is caught if that changes what is wrong.

    Args:
        risk: tables of `Fleet.table()`, one below the other, with `rate` (the name of their failure rates).
        rate: the failure rate, by its name there.
    """
    ends = [f"{name}{end}" for name in _AXES for end in ("", "_low", "_high")]
    rows = risk[(risk["rate"] == rate) & risk["nonfinite"].isin(["wrong", "caught"])]
    rows = rows.drop_duplicates(["mitigation", "wrong_per_day"])
    return rows[["mitigation", "nonfinite", *ends]].sort_values(
        "mitigation", key=lambda names: names.map(list(dict.fromkeys(names)).index), kind="stable", ignore_index=True
    )


@styled
def fleet_day(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str) -> "Axes":
    """A bar with its interval for each protection and rule for NaN.

    Args:
        data: `fleet_day_data`.
        ax: where to draw; None: a new figure.
        quantity: `wrong_per_day` or `stops_anywhere_per_day`.
    """
    place = np.arange(len(data))[::-1]
    value, low, high = (data[f"{quantity}{end}"].to_numpy(float) for end in ("", "_low", "_high"))
    shown = np.nan_to_num(low) > 0
    ax.barh(place, value, 0.6, color=COLOURS[0 if quantity == "wrong_per_day" else 1])
    bars = np.maximum([value - low, high - value], 0)[:, shown]
    ax.errorbar(
        value[shown], place[shown], xerr=bars, marker="", linestyle="none", ecolor="#111111", elinewidth=0.9, capsize=2
    )
    for y, x, upper, has_interval in zip(place, value, high, shown, strict=True):
        text = number(x) if has_interval or upper <= x else f"at most {number(upper)}"
        ax.annotate(
            text, (upper if has_interval else x, y), (4, 0), textcoords="offset points", va="center", size=SMALLEST
        )
    names = [
        _STOPS.get(row.mitigation, protection_name(row.mitigation))
        + (", NaN caught" if row.nonfinite == "caught" else "")
        for row in data.itertuples()
    ]
    ax.set_yticks(place, names)
    ax.set_xlabel(_AXES[quantity])
    ax.grid(False, axis="y")
    if len(data):
        ax.set_xlim(0, 1.35 * max(float(np.nanmax(high[shown], initial=0.0)), float(value.max()), 1e-9))
        ax.locator_params(axis="x", nbins=4)
    if not at_edge(ax, "first_col"):
        ax.tick_params(labelleft=False)
    return ax
