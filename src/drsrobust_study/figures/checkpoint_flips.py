"""Files of weights with one flipped bit: what becomes of them, by reader."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust_extras.pages.plots.style import COLOURS, SMALLEST, legend_outside, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_PARTS = {  # column -> its name and colour
    "silent": ("loaded, other words", COLOURS[1]),
    "same": ("loaded, same words", "#bbbbbb"),
    "refused": ("refused", COLOURS[0]),
}


@styled
def checkpoint_flips(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """A bar per reader, of the shares of files that it loads with other words than were saved, loads with the same, and refuses;
    and the count of the first.

    Args:
        data: `drsrobust_study.checkpoint_flips.outcomes`.
        ax: where to draw; None: a new figure.
    """
    place, left = np.arange(len(data))[::-1], np.zeros(len(data))
    for column, (name, colour) in _PARTS.items():
        share = (data[column] / data["n"]).to_numpy(float)
        ax.barh(place, share, 0.6, left=left, color=colour, label=name)
        left = left + share
    for y, row in zip(place, data.itertuples(), strict=True):
        text = f"{row.silent} of {row.n} silently wrong"
        ax.annotate(text, (0.02, y), va="center", size=SMALLEST, color="white")
    ax.set_yticks(place, data["reader"])
    ax.set(xlim=(0, 1), xticks=[0, 0.5, 1], xlabel="share of files with one flipped bit")
    ax.grid(False, axis="y")
    if len(data):
        legend_outside(ax, ax.get_legend_handles_labels()[0])
    return ax
