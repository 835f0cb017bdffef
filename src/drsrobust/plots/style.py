"""One look for all figures, and files that are equal byte for byte from run to run."""

import os
import textwrap
from collections.abc import Callable, Hashable, Iterable
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

# Okabe and Ito's colours first, told apart with any colour vision; markers and dashes tell all of them apart in grey.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31"),
    *("#882255", "#332288", "#8A8A00", "#44AA99"),
)
MARKERS = ("o", "s", "^", "D", "p", "P", "X", "*", "d", "h", "8", "H")  # triangles that point down or aside are limits
DASHES = (
    *("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (8, 2)), (0, (1, 1))),
    *((0, (4, 1, 1, 1, 1, 1)), (0, (12, 1)), (0, (6, 2, 2, 2)), (0, (2, 2))),
)
# Number of the look that each model has in all figures. Components begin anew: they stand in no legend with models.
_MODELS = {"fm": 0, "dcn": 1, "afm": 2, "wide_deep": 3, "deepfm": 4, "dlrm": 5, "dlrm_dcn": 6, "afn": 7}
_COMPONENTS = {
    **{"mlp": 0, "embedding": 1, "over_mlp": 2, "deep_mlp": 3, "linear": 4, "cross": 5, "all": 6, "head": 7},
    **{"attention": 8, "dense_mlp": 9, "logarithmic": 10, "interaction": 11},
}
# Of an upper limit, where nothing was seen: hollow, so that it is not read as a value.
LIMIT = {"linestyle": "none", "markerfacecolor": "white", "markersize": 5.5, "markeredgewidth": 1.2}
_DECADES = 0.16  # that all curves of a panel are moved apart on a logarithmic axis, at most
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
    lap = index // len(COLOURS)  # from the second on with other markers and dashes, so that no two are alike
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + lap) % len(MARKERS)],
        "linestyle": DASHES[(index + lap) % len(DASHES)],
    }


def looks(names: Iterable[Hashable]) -> dict[Hashable, dict]:
    """Name -> `look`, for models or components: those that are known look alike in all figures, others have the looks that are
    left, in their order.

    Args:
        names: of all series of the figure: models, or components, not both.
    """
    names = list(dict.fromkeys(names))
    known = _MODELS if any(name in _MODELS for name in names) else _COMPONENTS
    numbers = {name: known[name] for name in names if name in known}
    left = (number for number in range(len(names) + len(known)) if number not in numbers.values())
    return {name: look(numbers[name] if name in numbers else next(left)) for name in names}


def apart(index: int, n: int, step: float = 0.05) -> float:
    """The factor by which the index-th of n curves is moved on a logarithmic axis, so that no bar hides another and each point
    is still read at its place.

    Args:
        index: of the curve.
        n: how many curves there are.
        step: decades between neighbours, less where there are many.
    """
    return 10 ** (min(step, _DECADES / max(n - 1, 1)) * (index - (n - 1) / 2))


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
        title: a sentence; None: it is made from what is drawn, and begins with the data set if all numbers are of one.
    """
    figure, folder = ax.figure, figures_folder()
    width = int(figure.get_figwidth() * 18)
    below = figure.supxlabel(textwrap.fill(caption, width), x=0.01, ha="left", fontsize=7.5, color="#444444")
    below.set_gid("caption")  # by which it is found in the SVG
    seen = {"Title": title or _of_one_set(description.title(figure), data), "Shown": description.text(figure)}
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


def _of_one_set(sentence: str, data: "pd.DataFrame") -> str:
    """The sentence, behind the data set's name if there is one alone: figures of other sets may say the same."""
    names = list(data["dataset"].dropna().unique()) if "dataset" in data else []
    return f"{names[0]}: {sentence}" if len(names) == 1 else sentence


def _write(path: Path, table: "pd.DataFrame", *comments: str) -> None:
    with new_file(path) as part, open(part, "w", newline="\n") as handle:
        handle.writelines(f"# {comment}\n" for comment in comments)
        table.to_csv(handle, index=False, float_format="%.6g", lineterminator="\n")
