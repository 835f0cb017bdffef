"""How many errors codes miscorrect, by their parity check matrix."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust_extras.pages.plots.style import COLOURS, legend_outside, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def matrix_shares(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """The share of errors that each matrix miscorrects, from the least to the most over random ones, with the published share
    as a dashed line.

    Args:
        data: as of `drsrobust_study.memories.matrices`.
        ax: where to draw; None: a new figure.
    """
    place = np.arange(len(data))[::-1]
    ax.figure.set_figheight(1.2 + 0.24 * max(len(data), 3))
    for number, (errors, rows) in enumerate(data.groupby("errors", sort=False)):
        own, colour = place[data.index.get_indexer(rows.index)], COLOURS[number]
        ax.hlines(own, rows["least"], rows["most"], color=colour, lw=3)
        ax.plot(rows[["least", "most"]].mean(axis=1), own, "os"[number % 2], color=colour, ms=5, label=errors)
        published = rows["published"].iloc[0]
        label = f"published, {errors.split()[0]}: {published:g}"
        ax.plot([published] * 2, [own.min() - 0.4, own.max() + 0.4], "--", color=colour, lw=1.2, marker="", label=label)
    ax.set_yticks(place, data["matrix"])
    ax.set(xlim=(0, 1), ylim=(-0.7, len(data) - 0.3), xlabel="share that is miscorrected", ylabel="parity check matrix")
    if len(data):
        legend_outside(ax)
    return ax
