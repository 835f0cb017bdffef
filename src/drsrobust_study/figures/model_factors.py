"""Heat maps over the design space of the untrained dummy model: Fig. 6 to 8 of ISSRE 2025."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust_extras.pages.plots.style import at_edge, styled
from drsrobust_study.model_factors import averaged

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_TARGETS = {"all": "all parameters", "mlp": "the MLPs", "embedding": "the table"}
_MAP = ["target", "ber", "depth", "density", "embedding_dim", "width"]


def model_factors_data(table: "pd.DataFrame", *, over: tuple[str, ...] = ("depth", "density")) -> "pd.DataFrame":
    """What `model_factors` draws: one row per target, rate and cell of a heat map, of the correct look-up.

    Args:
        table: as `dummy_trials` returns it.
        over: factors whose levels are averaged.
    """
    return averaged(table[table["lookup"] == "corrected"], [name for name in _MAP if name not in over])


@styled
def model_factors(data: "pd.DataFrame", ax: "Axes | None" = None, *, value: str = "huge", title: str = "") -> "Axes":
    """A heat map, MLP width by embedding dimension: a share of maps or outputs, in %, darker for more.

    Args:
        data: the rows of one panel, with one target.
        ax: where to draw; None: a new figure. Titles are drawn in the first row, the target's name in the first column.
        value: `huge` or `moved`.
        title: of the panel's column.
    """
    widths, dims = sorted(data["width"].unique()), sorted(data["embedding_dim"].unique())
    if len(data):
        shares = data.pivot(index="width", columns="embedding_dim", values=value).to_numpy(float)
        edges = (np.arange(len(levels) + 1) - 0.5 for levels in (dims, widths))
        image = ax.pcolormesh(*edges, shares, cmap="Blues", vmin=0, vmax=1)
        image.set_rasterized(False)
        for (row, column), share in np.ndenumerate(shares):
            color = "white" if share > 0.55 else "#222222"
            ax.text(column, row, percent(share), ha="center", va="center", size=8, color=color)
        ax.set_ylabel(f"errors in {_TARGETS[data['target'].iloc[0]]}")
    ax.set_xticks(range(len(dims)), [f"{level:g}" for level in dims])
    ax.set_yticks(range(len(widths)), [f"width {level:g}" for level in widths])
    ax.tick_params(length=0)
    ax.grid(False)
    ax.set_title(title if at_edge(ax, "first_row") else "")
    ax.set_xlabel("dimension")
    ax.label_outer()
    return ax


def percent(share: float) -> str:
    """A share in % with two digits at most: `0`, `.3`, `6`, `42`, `100`.

    Example:
        >>> percent(0.0), percent(0.003), percent(0.0004), percent(0.42)
        ('0', '.3', '<.1', '42')
    """
    if 0 < share < 0.0095:
        return f"{100 * share:.1f}".lstrip("0") if share >= 0.0005 else "<.1"
    return f"{100 * share:.0f}"
