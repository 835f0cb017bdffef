"""AUC lost to faults of DRAM chips: by mode and protection, and by protection against independent flips."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics import ENDS
from drsrobust_extras.pages.plots.curves import NONE, interval, mitigation_label
from drsrobust_extras.pages.plots.style import COLOURS, MARKERS, SMALLEST, legend_outside, styled
from drsrobust_study.findings import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_LOST = "AUC lost to one fault that reaches the model"
_NAMES = {
    "SECDED (72,64)": "SECDED, keeps bad words",
    "SECDED (72,64), restore": "SECDED, reloads bad words",
    "range per tensor": "range check of weights",
}
_MODES = {
    "column": "column of a bank",
    "row": "row of a bank",
    "banks": "banks\n(all of a chip)",
    "ranks": "ranks\n(a chip in every rank)",
    "any": "any of these,\nby their rates",
}
_BAR = {"elinewidth": 0.9, "capsize": 2}
_KEYS = ["model", "dataset", "error_mode", "mitigation", "n", "hits_per_year"]


def protection_name(mitigation: str) -> str:
    """A protection as these figures name it: what SECDED does with words that it cannot correct is in its name."""
    return _NAMES.get(mitigation, mitigation_label(mitigation))


def memory_fault_loss_data(expected: "pd.DataFrame") -> "pd.DataFrame":
    """What `memory_fault_loss` draws: `expected_loss`, one row per mode and mitigation."""
    columns = [f"{name}{end}" for name in ("auc_drop", "per_year") for end in ("", "_low", "_high")]
    return expected[[*_KEYS, *columns]].reset_index(drop=True)


@styled
def memory_fault_loss(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """The AUC that one fault costs, by mode, a bar per mitigation with its interval, which begins at 0. A number is written
    where the bar of the model without protection is too short to see.

    Args:
        data: `memory_fault_loss_data`, of the mitigations to draw.
        ax: where to draw; None: a new figure.
    """
    modes, names = (list(dict.fromkeys(data[column])) for column in ("error_mode", "mitigation"))
    highest, width = data["auc_drop_high"].max() if len(data) else 1.0, 0.84 / max(len(names), 1)
    ax.figure.set_figheight(1.2 + 0.46 * max(len(modes), 3))
    for index, name in enumerate(names):
        rows = data[data["mitigation"] == name]
        place = _rows(rows, modes) + width * ((len(names) - 1) / 2 - index)
        value, low, high = (rows[f"auc_drop{end}"].clip(lower=0).to_numpy(float) for end in ENDS)
        colour = "#C4C4C4" if name == NONE else COLOURS[index - 1]  # differ in grey
        ax.barh(place, value, width, color=colour, lw=0, label=protection_name(name))
        seen = high > 0
        bars = np.maximum([value - low, high - value], 0)[:, seen]
        ax.errorbar(value[seen], place[seen], xerr=bars, marker="", linestyle="none", ecolor="#111111", **_BAR)
        for x, y, upper in zip(value, place, high, strict=True):
            if x == 0 or (name == NONE and x < 0.005 * highest):
                ax.annotate(
                    number(x), (np.fmax(x, upper), y), (4, 0), textcoords="offset points", va="center", size=SMALLEST
                )
    ax.set_yticks(range(len(modes))[::-1], [_MODES.get(mode, mode) for mode in modes])
    ax.set(xlim=(0, 1.05 * highest), ylim=(-0.6, len(modes) - 0.4), ylabel="mode of the fault", xlabel=_LOST)
    ax.grid(False, axis="y")
    if names:
        legend_outside(ax)
    return ax


def _rows(data: "pd.DataFrame", modes: Sequence[str]) -> np.ndarray:
    """The height of each row's mode, the first mode at the top."""
    return len(modes) - 1 - data["error_mode"].map(list(modes).index).to_numpy(float)


@styled
def protection_ranking(data: "pd.DataFrame", ax: "Axes | None" = None, *, ber: float) -> "Axes":
    """Recovery by each mitigation under memory faults, and under independent flips, the most under faults first.

    Args:
        data: `drsrobust_study.memory_faults.ranked`.
        ax: where to draw; None: a new figure.
        ber: of the flips.
    """
    place = np.arange(len(data))[::-1]
    ax.figure.set_figheight(1.7 + 0.36 * len(data))
    kinds = {"faults": ("faults of chips", 0, 0.14), "flips": (f"independent flips at {ber:g}", 1, -0.14)}
    for name, (label, style_number, shift) in kinds.items():
        style = {
            "color": COLOURS[style_number],
            "marker": MARKERS[style_number],
            "linestyle": "none",
            "markersize": 6,
            "label": label,
        }
        ax.errorbar(data[name], place + shift, xerr=interval(data, name), elinewidth=1, capsize=2, **style)
    for line in (0.0, 1.0):
        ax.axvline(line, color="#777777", linewidth=0.9, zorder=0)
    ax.set_yticks(place, [textwrap.fill(protection_name(name), 34) for name in data["mitigation"]])
    lowest = np.nanmin([0.0, *data["faults_low"], *data["flips_low"]])
    ax.set_xlim(max(-1.0, lowest - 0.08), 1.08)
    ax.grid(False, axis="y")
    ax.set_xlabel("share of the lost AUC that comes back")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return ax
