"""One weight with each of its bits flipped: the weight, the probability and rank of one item, and AUC, by bit."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from drsrobust_extras.pages.plots.style import new_panels, styled
from drsrobust_study.figures.bit_sensitivity import FIELDS
from drsrobust_study.findings import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_PANELS = {
    "value": "|weight|",
    "probability": "click probability\nof one item",
    "rank": "rank of the item",
    "auc": "AUC",
}
_LARGEST = 1e39  # where infinite values and NaN are drawn; the largest float32 is 3.4e38
_PLAIN, _MARKED = "#0072B2", "#C1272D"


@styled
def one_flip(data: "pd.DataFrame", *, marked_bit: int | None = None) -> "Axes":
    """Four panels, one above the other, over the bit that is flipped; the dashed line is the model without errors.

    Args:
        data: as `drsrobust_study.one_flip.one_flip` returns it.
        marked_bit: a bit to mark, with its numbers; None: none.
    """
    golden, flips = data[data["flipped"] < 0].iloc[0], data[data["flipped"] >= 0]
    axes = new_panels(rows=len(_PANELS), sharey=False)
    axes[0].figure.set_size_inches(7.0, 7.6)
    marked = flips["flipped"] == marked_bit
    for ax, (name, title) in zip(axes, _PANELS.items(), strict=True):
        start, ends = golden[name], flips[name]
        if name == "value":
            start, ends = abs(start), ends.abs().clip(upper=_LARGEST).fillna(_LARGEST)
        ax.axvspan(22.5, 30.5, color="#F1EFE6", zorder=0, lw=0)
        ax.axhline(start, color="#777777", linestyle="--", linewidth=0.9, zorder=1)
        colours = np.where(marked, _MARKED, _PLAIN)
        ax.vlines(flips["flipped"], start, ends, colors=colours, linewidth=1.6)
        for some, colour, label in ((~marked, _PLAIN, "other bits"), (marked, _MARKED, f"bit {marked_bit}")):
            style = {"color": colour, "marker": "o", "linestyle": "none", "markersize": 4.5}
            ax.plot(flips["flipped"][some], ends[some], label=label, **style)
        for bit, end, value in zip(flips["flipped"][marked], ends[marked], flips[name][marked], strict=True):
            down = -10 if np.isclose(end, start, rtol=0.05) else 0  # clear of the points of the other bits
            place = {"xytext": (7, down), "textcoords": "offset points", "va": "center", "color": _MARKED, "size": 9}
            ax.annotate(number(value), (bit, end), **place)
        ax.set_ylabel(title, size=9)
        ax.set(xlim=(31.7, -0.7), xticks=range(32))
        ax.tick_params(axis="x", labelsize=8, labelbottom=ax is axes[-1])
    axes[0].set_yscale("log")
    axes[1].set_ylim(-0.07, 1.07)
    axes[2].yaxis.set_major_locator(MaxNLocator(4, integer=True))
    lowest = max(10, flips["rank"].max())
    axes[2].set_ylim(1.08 * lowest, 1 - 0.08 * lowest)
    axes[3].set_ylim(min(0.45, flips["auc"].min()), None)
    axes[3].set_xlabel("bit that is flipped (31: sign, 0: lowest of the mantissa)")
    for name, low, high in FIELDS:
        place = {"transform": axes[0].get_xaxis_transform(), "ha": "center", "size": 8, "color": "#666666"}
        axes[0].text((low + high) / 2, 1.03, name, **place)
    return axes[0]
