"""What encoding a large file costs, against its number of lines."""

from typing import TYPE_CHECKING

from drsrobust.plots.style import look, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SERIES = {
    "peak_rss_mib": "whole call (parsing: constant)",
    "encode_rss_mib": "encoding, column by column",
    "encode_anon_mib": "of it, not pages of files",
}


@styled
def encoding_memory(table: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Peak memory of encoding a Criteo file against its lines, from 0 up, so that growth is seen as it is.

    Args:
        table: as the benchmark `criteo` writes it: `lines`, and MiB in `peak_rss_mib`, `encode_rss_mib`, `encode_anon_mib`.
        ax: where to draw; None: a new figure.
    """
    ax = ax or new_panels()[0]
    for index, (column, label) in enumerate(_SERIES.items()):
        ax.plot(table["lines"] / 1e6, table[column], label=label, linewidth=1.6, markersize=6, **look(index))
    ax.set(xlabel="million lines", ylabel="peak memory (MiB)", title="Encoding a Criteo file", xlim=(0, None))
    ax.set_ylim(0, 1.35 * table[list(_SERIES)].to_numpy().max())
    ax.legend(loc="upper left")
    return ax
