"""Saving figures and tables: pictures, plain CSV, and JSON with the words about them (`read_words`)."""

import json
import os
import sys
import textwrap
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator

from drsrobust.extend import new_file
from drsrobust_extras.pages.plots import alt_text
from drsrobust_extras.pages.plots.names import readable
from drsrobust_extras.pages.plots.style import SETTINGS, SMALLEST, WIDTH, at_edge

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

CHARACTERS = 12  # of a title, per inch of a figure's width


def figures_folder() -> Path:
    """Where figures go: `$DRSROBUST_FIGURES` (set by `python -m reproduce`), else build/lab/figures of the project, which is
    the nearest folder upwards with a pyproject.toml, else the working folder."""
    if folder := os.environ.get("DRSROBUST_FIGURES"):
        return Path(folder)
    cwd = Path.cwd()
    root = next((folder for folder in (cwd, *cwd.parents) if (folder / "pyproject.toml").is_file()), cwd)
    return root / "build" / "lab" / "figures"


def save(
    ax: "Axes",
    name: str,
    data: "pd.DataFrame",
    caption: str,
    *,
    details: str = "",
    title: str | None = None,
    timed: bool = False,
    appendix: bool = False,
    folder: Path | None = None,
) -> None:
    """Writes `<name>.svg`, `<name>.png`, `data/<name>.csv` (what was drawn) and `data/<name>.json` (`title`, `caption`,
    `details`, `alt`, `timed`, `appendix`; `points` as of `alt_text.points`). In a notebook it shows the picture with these
    words, and closes the figure.

    A figure is at most 7 inches wide, and its texts have 8 points or more.

    The bytes depend on the data, the words and the version of matplotlib alone.

    Args:
        ax: any axes of the figure.
        name: of the files, without ending.
        data: the frame behind the figure; numbers are written with 6 digits.
        caption: one sentence: what is drawn.
        details: how it was made: data, rows, trials, intervals.
        title: a sentence, which is drawn above the panels; None: the caption.
        timed: the numbers are measured times, which differ from run to run.
        appendix: reports show the figure in their appendix.
        folder: where to; then nothing is shown. None: `figures_folder()`.

    Raises:
        ValueError: the figure is wider, or a text is smaller.
    """
    figure, silent = ax.figure, folder is not None
    folder = folder or figures_folder()
    _rename(figure)
    words = {"title": title or caption, "caption": caption, "details": details}
    words |= {
        "title": readable(words["title"]),
        "alt": alt_text.text(figure, readable(words["title"])),
        "timed": timed,
        "appendix": appendix,
    }
    heading = textwrap.fill(words["title"].removesuffix("."), round(CHARACTERS * figure.get_figwidth()))
    figure.suptitle(heading, x=0.005, ha="left", size=10)
    _check_readable(figure)
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None, "Title": words["title"]}}
    with mpl.rc_context(SETTINGS):
        _lay_out(figure)
        for ending, written in metadata.items():
            with new_file(folder / f"{name}.{ending}") as part:
                figure.savefig(part, format=ending, metadata=written)
    words["points"] = [[x, y, readable(text)] for x, y, text in alt_text.points(figure)]
    _write(folder / "data" / name, data, words)
    if silent:
        plt.close(figure)
    else:
        _show(figure, folder / f"{name}.png", words)


def save_table(table: "pd.DataFrame", name: str, caption: str, *, details: str = "", timed: bool = False) -> None:
    """Writes `<name>.csv` next to the figures, and `<name>.json` (`caption`, `details`, `timed`).

    Args:
        table: numbers are written with 6 digits.
        name: of the files, without ending.
        caption, details, timed: as in `save`.
    """
    _write(figures_folder() / name, table, {"caption": caption, "details": details, "timed": timed})


def read_words(folder: Path, name: str) -> dict[str, Any]:
    """What `save` wrote to `data/<name>.json` in a folder of figures.

    Returns:
        `title`, `caption`, `details`, `alt`, `timed`, `appendix`, `points`.
    """
    return json.loads((folder / "data" / f"{name}.json").read_text())


def _rename(figure: mpl.figure.Figure) -> None:
    """Writes display names in place of the names of data sets and models in all texts."""
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            if isinstance(axis.get_major_locator(), FixedLocator):
                places, words = axis.get_majorticklocs(), axis.get_major_formatter()
                labels = [words(place) for place in places]
                if (names := [readable(label) for label in labels]) != labels:
                    axis.set_ticks(places, names)
    for text in figure.findobj(Text):
        if (words := readable(text.get_text())) != text.get_text():
            text.set_text(words)


def _lay_out(figure: mpl.figure.Figure) -> None:
    """Gives the panels their places, for the pixels of a PNG; this also fits an SVG, whose texts are narrower, but not the
    other way round. Otherwise matplotlib would lay them out again for each file."""
    if (layout := figure.get_layout_engine()) is None:
        _wrap(figure)
        return
    dpi, figure.dpi = figure.dpi, SETTINGS["savefig.dpi"]
    layout.execute(figure)
    if _wrap(figure):
        layout.execute(figure)
    figure.dpi = dpi
    figure.set_layout_engine(None)


def _wrap(figure: mpl.figure.Figure) -> bool:
    """Breaks titles and axis labels that are longer than their panel; returns whether there were any."""
    wrapped = False
    for ax in figure.axes:
        frame = ax.get_window_extent()
        headings = [text for text in ax.get_children() if isinstance(text, Text) and text.get_text()]
        headings = [text for text in headings if text.get_text() in (ax.get_title("left"), ax.get_title())]
        for text in [*headings, ax.xaxis.label, ax.yaxis.label]:
            box = text.get_window_extent()
            length, room = (box.height, frame.height) if text is ax.yaxis.label else (box.width, frame.width)
            gap = 0.0 if at_edge(ax, "last_col") else 0.15  # inches to the next panel, which a title may use
            room += figure.dpi * (gap if text in headings else 0.1)
            if text.get_text() and length > room:
                longest = max(map(len, text.get_text().splitlines()))
                letters = max(int(longest * room / length), 12)
                lines = (textwrap.fill(line, letters) for line in text.get_text().splitlines())
                text.set_text("\n".join(lines))
                wrapped = True
    return wrapped


def _check_readable(figure: mpl.figure.Figure) -> None:
    """Raises ValueError for a figure that is too wide for a page, or has texts too small to read on it."""
    if figure.get_figwidth() > WIDTH + 1e-6:
        raise ValueError(f"the figure is {figure.get_figwidth():g} inches wide; save takes at most {WIDTH:g}")
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text.get_fontsize() < SMALLEST:
            raise ValueError(
                f"the text {text.get_text()!r} has {text.get_fontsize():g} points; save takes {SMALLEST} or more"
            )


def write_csv(table: "pd.DataFrame", path: Path, digits: int | None = 6) -> None:
    """Writes a table as CSV, complete or not at all.

    A text that begins as a formula (=, +, -, @, tabulator or carriage return) gets a single quote before it, since spreadsheets
    would compute it (https://owasp.org/www-community/attacks/CSV_Injection). Numbers stay numbers, also those in texts.

    Args:
        table: the table.
        path: of the file.
        digits: of numbers; None: as many as identify each.
    """
    table = table.rename(columns=_no_formula)
    for name in table.select_dtypes(["object", "string", "category"]):
        table[name] = table[name].astype(object).map(_no_formula)
    with new_file(path) as part:
        table.to_csv(part, index=False, float_format=digits and f"%.{digits}g", lineterminator="\n")


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    with suppress(ValueError):
        float(value)
        return value
    return f"'{value}"


def _write(path: Path, table: "pd.DataFrame", words: dict[str, Any]) -> None:
    write_csv(table, path.parent / f"{path.name}.csv")
    with new_file(path.parent / f"{path.name}.json") as part:
        part.write_text(json.dumps(words, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _show(figure: mpl.figure.Figure, picture: Path, words: dict[str, Any]) -> None:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return
    from IPython.display import HTML, Image, display

    pixels = round(figure.get_figwidth() * SETTINGS["figure.dpi"])
    text = f"<p>{escape(words['caption'])} <small>{escape(words['details'])}</small></p>"
    display(Image(picture, width=pixels, alt=words["alt"]), HTML(text))
    plt.close(figure)  # else the notebook shows it again at the end of the cell
