"""drsrobust.plots.save"""

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

from drsrobust._files import new_file
from drsrobust.plots import alt_text as description
from drsrobust.plots.style import SETTINGS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


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
