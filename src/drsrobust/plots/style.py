"""One look for all figures, and files that are equal byte for byte from run to run."""

import os
import textwrap
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
import seaborn as sns

from drsrobust._storage import new_file

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with any colour vision; markers and dashes tell them apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
SETTINGS = {
    "figure.figsize": (7.2, 4.2),
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "axes.edgecolor": "#555555",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
    "svg.hashsalt": "drsrobust",
}


def styled(draw: Callable[..., "Axes"]) -> Callable[..., "Axes"]:
    """A drawing function in the house style; the caller's own matplotlib settings stay what they are."""

    @wraps(draw)
    def drawing(*arguments, **options):
        with mpl.rc_context():
            sns.set_theme(style="ticks", rc=SETTINGS)
            return draw(*arguments, **options)

    return drawing


@styled
def new_panels(n: int = 1, *, sharey: bool = True) -> "list[Axes]":
    """The axes of a new figure, n beside each other, with a common vertical axis unless `sharey` is false."""
    width, height = SETTINGS["figure.figsize"]
    figure, axes = plt.subplots(
        1, n, sharey=sharey, squeeze=False, layout="constrained", figsize=(width * (1 + 0.72 * (n - 1)), height)
    )
    return list(axes[0])


def look(index: int) -> dict:
    """Colour, marker and dashes of the index-th series."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def name_line(ax: "Axes", value: float, text: str, *, axis: str = "y", at: str = "right", above: bool = True) -> None:
    """Writes the name of a guide line beside it, readable where curves cross it.

    Args:
        ax: with the line.
        value: where the line stands, on its axis.
        text: its name.
        axis: `y` for a horizontal line, `x` for a vertical one, which is named at its top, to the right.
        at: `left` or `right` end of a horizontal line.
        above: whether the name stands over a horizontal line.
    """
    paper = {"facecolor": "white", "alpha": 0.75, "pad": 0.5, "linewidth": 0}
    look = {
        "color": "#444444",
        "size": 8,
        "bbox": paper,
        "textcoords": "offset points",
        "zorder": 2.3,
    }  # below the frame
    if axis == "x":
        where = {"xycoords": ax.get_xaxis_transform(), "xytext": (4, 0), "va": "top"}
        ax.annotate(text, (value, 0.99), **where, **look)
        return
    where = {
        "xycoords": ax.get_yaxis_transform(),
        "xytext": (0, 2 if above else -2),
        "va": "bottom" if above else "top",
    }
    ax.annotate(text, (0.99 if at == "right" else 0.01, value), ha=at, **where, **look)


def figures_folder() -> Path:
    """Where figures go: `$DRSROBUST_FIGURES` (set by `python -m reproduce`), else build/lab/figures below the project's
    root, which is the nearest folder upwards with a pyproject.toml, else the working folder."""
    if folder := os.environ.get("DRSROBUST_FIGURES"):
        return Path(folder)
    here = Path.cwd()
    root = next((place for place in (here, *here.parents) if (place / "pyproject.toml").is_file()), here)
    return root / "build" / "lab" / "figures"


def save(ax: "Axes", name: str, data: "pd.DataFrame", caption: str) -> None:
    """Writes `<name>.svg` and `<name>.png` with the caption below the axes, and `data/<name>.csv` with what was drawn.

    The bytes depend on the data, the caption and the version of matplotlib alone.

    Args:
        ax: any axes of the figure.
        name: of the files, without ending.
        data: the frame behind the figure; numbers are written with 6 digits.
        caption: what varies, n, interval and data.
    """
    figure, folder = ax.figure, figures_folder()
    width = int(figure.get_figwidth() * 18)
    figure.supxlabel(textwrap.fill(caption, width), x=0.01, ha="left", fontsize=7.5, color="#444444")
    nothing = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
    with mpl.rc_context(SETTINGS):
        for ending, metadata in nothing.items():
            with new_file(folder / f"{name}.{ending}") as part:
                figure.savefig(part, format=ending, metadata=metadata)
    _write(folder / "data" / f"{name}.csv", data, caption)


def save_table(table: "pd.DataFrame", name: str, caption: str) -> None:
    """Writes `<name>.csv` beside the figures: a table that is read as it is.

    Args:
        table: numbers are written with 6 digits.
        name: of the file, without ending.
        caption: its first line: what the columns are, and of which data.
    """
    _write(figures_folder() / f"{name}.csv", table, caption)


def _write(path: Path, table: "pd.DataFrame", caption: str) -> None:
    with new_file(path) as part, open(part, "w", newline="\n") as handle:
        handle.write(f"# {caption}\n")
        table.to_csv(handle, index=False, float_format="%.6g", lineterminator="\n")
