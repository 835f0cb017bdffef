"""Errors during training: how many of the harmful ones detectors notice."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust_extras.pages.plots.style import COLOURS, SMALLEST, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def training_detection(data: "pd.DataFrame", ax: "Axes | None" = None, *, kind: str, within: int) -> "Axes":
    """How many of the harmful errors each detector notices: a bar for the share, and the counts.

    Args:
        data: `drsrobust_study.training_errors.detection`.
        ax: where to draw; None: a new figure.
        kind: of the errors.
        within: so many steps.
    """
    data = data[(data["kind"] == kind) & (data["within"] == within)]
    place = np.arange(len(data))[::-1]
    ax.barh(place, data["share"].fillna(0.0), 0.6, color=COLOURS[0])
    for y, row in zip(place, data.itertuples(), strict=True):
        text = f"{row.noticed} of {row.n}" if row.n else "no harmful error"
        ax.annotate(
            text, (row.share if row.n else 0.0, y), (4, 0), textcoords="offset points", va="center", size=SMALLEST
        )
    ax.set_yticks(place, [name.replace("_", " ") for name in data["detector"]])
    ax.set(xlim=(0, 1.3), xticks=[0, 0.5, 1], title=f"{kind} errors", xlabel=f"share noticed within {within} steps")
    ax.grid(False, axis="y")
    return ax
