"""AUC lost to faults of DRAM chips: by mode and protection, by protection against independent flips, and by assumption."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.plots.curves import NONE, interval, mitigation_label
from drsrobust.plots.style import COLOURS, MARKERS, at_edge, legend_outside, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_LABELS = {
    "auc_drop": "AUC lost to one fault that reaches the model",
    "per_year": "AUC lost to faults of a year",
}
_KEYS = ["model", "dataset", "error_mode", "mitigation", "n", "hits_per_year"]


def memory_fault_loss_data(expected: "pd.DataFrame") -> "pd.DataFrame":
    """What `memory_fault_loss` draws: `expected_loss`, one row per mode and mitigation."""
    columns = [f"{name}{end}" for name in ("auc_drop", "per_year") for end in ("", "_low", "_high")]
    return expected[[*_KEYS, *columns]].reset_index(drop=True)


@styled
def memory_fault_loss(
    data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "auc_drop", least: float = 1e-6
) -> "Axes":
    """The loss by fault mode, a series per mitigation, on a logarithmic axis. Open triangles at the bottom are means that are
    not over `least` (no bit remained, or only harmless ones).

    Args:
        data: `memory_fault_loss_data`.
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        quantity: `auc_drop`, or `per_year`.
        least: AUC; of `per_year` it is per fault.
    """
    modes, names = (list(dict.fromkeys(data[column])) for column in ("error_mode", "mitigation"))
    floor = least * (data["hits_per_year"].min() if quantity == "per_year" and len(data) else 1.0)
    for index, name in enumerate(names):
        rows = data[data["mitigation"] == name]
        place = rows["error_mode"].map(modes.index).to_numpy(float) + 0.7 * ((index + 0.5) / len(names) - 0.5)
        value = rows[quantity].to_numpy(float)
        points, ends = (
            np.maximum(value, floor),
            np.maximum(rows[[f"{quantity}_low", f"{quantity}_high"]], floor).to_numpy().T,
        )
        colour, label = ("#000000" if name == NONE else COLOURS[index - 1]), mitigation_label(name)
        bars = {"ecolor": colour, "elinewidth": 0.9, "capsize": 2, "linestyle": "none", "color": colour}
        ax.errorbar(place, points, yerr=np.abs(ends - points), marker="", alpha=0.45, **bars)
        over = value > floor
        style = {"linestyle": "none", "color": colour, "markersize": 6}
        ax.plot(place[over], value[over], marker=MARKERS[index], label=label, **style)
        ax.plot(place[~over], points[~over], marker="v", markerfacecolor="white", **style)
    ax.set_yscale("log")
    ax.set_ylim(floor / 2, None)
    ax.set_xticks(range(len(modes)), modes)
    ax.set_xlim(-0.6, len(modes) - 0.4)
    for index in range(0, len(modes), 2):
        ax.axvspan(index - 0.5, index + 0.5, color="#F5F5F2", zorder=-1, lw=0)
    ax.grid(False, axis="x")
    ax.set(xlabel="mode of the fault", ylabel=_LABELS[quantity])
    if names and at_edge(ax, "last_col"):
        legend_outside(ax)
    return ax


@styled
def protection_ranking(data: "pd.DataFrame", ax: "Axes | None" = None, *, ber: float) -> "Axes":
    """Recovery by each mitigation under memory faults, and under independent flips, the most under faults first.

    Args:
        data: `drsrobust_study.memory_faults.ranking`.
        ax: where to draw; None: a new figure.
        ber: of the flips.
    """
    place = np.arange(len(data))[::-1]
    ax.figure.set_size_inches(7.0, 1.6 + 0.36 * len(data))
    kinds = {"faults": ("faults of chips", 0, 0.14), "flips": (f"independent flips at {ber:g}", 1, -0.14)}
    for name, (label, number, shift) in kinds.items():
        style = {
            "color": COLOURS[number],
            "marker": MARKERS[number],
            "linestyle": "none",
            "markersize": 6,
            "label": label,
        }
        ax.errorbar(data[name], place + shift, xerr=interval(data, name), elinewidth=1, capsize=2, **style)
    for line in (0.0, 1.0):
        ax.axvline(line, color="#777777", linewidth=0.9, zorder=0)
    ax.set_yticks(place, [textwrap.fill(mitigation_label(name), 34) for name in data["mitigation"]], size=9)
    ax.set_xlim(max(-1.0, min(-0.1, *data["faults_low"], *data["flips_low"])) if len(data) else -0.1, 1.08)
    ax.grid(False, axis="y")
    ax.set_xlabel("share of the lost AUC that comes back")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return ax


def fault_assumptions_data(parts: Mapping[str, "pd.DataFrame"]) -> "pd.DataFrame":
    """What `fault_assumptions` draws: the loss without protection, by mode and assumption.

    Args:
        parts: name of an assumption -> `expected_loss` under it.
    """
    import pandas as pd

    frames = [table[table["mitigation"] == NONE].assign(assumption=name) for name, table in parts.items()]
    columns = [
        "assumption",
        *_KEYS,
        "auc_drop",
        "auc_drop_low",
        "auc_drop_high",
        "per_year",
        "per_year_low",
        "per_year_high",
    ]
    return pd.concat(frames, ignore_index=True)[columns]


@styled
def fault_assumptions(data: "pd.DataFrame", ax: "Axes | None" = None, *, modes: Sequence[str]) -> "Axes":
    """The AUC that one fault costs, by assumption, a series per mode.

    Args:
        data: `fault_assumptions_data`.
        ax: where to draw; None: a new figure.
        modes: that are drawn.
    """
    names = list(dict.fromkeys(data["assumption"]))
    for index, mode in enumerate(modes):
        rows = data[data["error_mode"] == mode]
        place = rows["assumption"].map(names[::-1].index).to_numpy(float) + 0.5 * (0.5 - (index + 0.5) / len(modes))
        style = {
            "color": COLOURS[index],
            "marker": MARKERS[index],
            "linestyle": "none",
            "markersize": 5.5,
            "label": mode,
        }
        ax.errorbar(rows["auc_drop"], place, xerr=interval(rows, "auc_drop"), elinewidth=1, capsize=2, **style)
    ax.set_yticks(range(len(names)), names[::-1])
    ax.grid(False, axis="y")
    ax.axvline(0.0, color="#777777", linewidth=0.9, zorder=0)
    ax.set_xlabel(_LABELS["auc_drop"])
    legend_outside(ax, title="mode")
    return ax
