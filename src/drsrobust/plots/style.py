"""One look for all figures, and files that are equal byte for byte from run to run."""

import os
import textwrap
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
import seaborn as sns

from drsrobust._storage import new_file
from drsrobust.plots import description

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with any colour vision; markers and dashes tell them apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
GUIDE = {"color": "#777777", "linewidth": 0.9, "zorder": 0}  # lines to compare with
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
            axes = draw(*arguments, **options)
            interactive = mpl.is_interactive()
        # The first figure of a notebook starts its backend, which says here that cells show their figures.
        mpl.interactive(interactive)
        return axes

    return drawing


@styled
def new_panels(n: int = 1, *, rows: int = 1, scale: float = 1.0, sharey: bool = True) -> "list[Axes]":
    """The axes of a new figure, row by row; those below each other have a common horizontal axis.

    Args:
        n: how many beside each other.
        rows: of them.
        scale: of each panel's width and height.
        sharey: whether all have a common vertical axis.
    """
    width, height = SETTINGS["figure.figsize"]
    size = (scale * width * (1 + 0.72 * (n - 1)), scale * height * rows)
    _, axes = plt.subplots(rows, n, sharex="col", sharey=sharey, squeeze=False, layout="constrained", figsize=size)
    return list(axes.ravel())


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


def auc_guides(ax: "Axes", golden: Iterable[float] = ()) -> None:
    """Lines at the AUC without errors (dashed) and of a coin toss (dotted), with their names where no curve is: curves start
    at the top left and end at the bottom right. The y axis is named.

    Args:
        ax: of AUC against bit error rate.
        golden: AUC without errors, of each model; the highest line is named.
    """
    golden = sorted(set(golden))
    for value in golden:
        ax.axhline(value, linestyle=(0, (6, 3)), **GUIDE)
    ax.axhline(0.5, linestyle=":", **GUIDE)
    ax.set(xlabel="bit error rate (flips per stored bit)", ylabel="AUC")
    if golden:
        name_line(ax, golden[-1], "without errors")
    name_line(ax, 0.5, "coin toss", at="left")


def figures_folder() -> Path:
    """Where figures go: `$DRSROBUST_FIGURES` (set by `python -m reproduce`), else build/lab/figures below the project's
    root, which is the nearest folder upwards with a pyproject.toml, else the working folder."""
    if folder := os.environ.get("DRSROBUST_FIGURES"):
        return Path(folder)
    here = Path.cwd()
    root = next((place for place in (here, *here.parents) if (place / "pyproject.toml").is_file()), here)
    return root / "build" / "lab" / "figures"


def save(ax: "Axes", name: str, data: "pd.DataFrame", caption: str, *, title: str | None = None) -> None:
    """Writes `<name>.svg` and `<name>.png` with the caption below the axes, and `data/<name>.csv` with what was drawn; its
    first lines are the caption, the title, and what is seen, in words.

    The bytes depend on the data, the caption and the version of matplotlib alone.

    Args:
        ax: any axes of the figure.
        name: of the files, without ending.
        data: the frame behind the figure; numbers are written with 6 digits.
        caption: what varies, n, interval and data.
        title: a sentence; None: it is made from what is drawn.
    """
    figure, folder = ax.figure, figures_folder()
    width = int(figure.get_figwidth() * 18)
    below = figure.supxlabel(textwrap.fill(caption, width), x=0.01, ha="left", fontsize=7.5, color="#444444")
    below.set_gid("caption")  # by which it is found in the SVG
    seen = {"Title": title or description.title(figure), "Shown": description.text(figure)}
    nothing = {"svg": {"Date": None, "Creator": None, "Title": seen["Title"]}, "png": {"Software": None}}
    with mpl.rc_context(SETTINGS):
        for ending, metadata in nothing.items():
            with new_file(folder / f"{name}.{ending}") as part:
                figure.savefig(part, format=ending, metadata=metadata)
    _write(folder / "data" / f"{name}.csv", data, caption, *(f"{key}: {words}" for key, words in seen.items()))


def save_table(table: "pd.DataFrame", name: str, caption: str) -> None:
    """Writes `<name>.csv` beside the figures: a table that is read as it is.

    Args:
        table: numbers are written with 6 digits.
        name: of the file, without ending.
        caption: its first line: what the columns are, and of which data.
    """
    _write(figures_folder() / f"{name}.csv", table, caption)


def _write(path: Path, table: "pd.DataFrame", *comments: str) -> None:
    with new_file(path) as part, open(part, "w", newline="\n") as handle:
        handle.writelines(f"# {comment}\n" for comment in comments)
        table.to_csv(handle, index=False, float_format="%.6g", lineterminator="\n")
