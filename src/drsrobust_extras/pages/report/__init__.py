"""One HTML page with figures, their captions and how they were made, from the files that `plots.save` writes.

Pages load nothing from elsewhere, so they can be read without a network. All text is escaped."""

import os
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from drsrobust.extend import check_instance, expanded, new_file
from drsrobust_extras.pages.plots.save import read_words

if TYPE_CHECKING:
    from drsrobust.campaign import Campaign

__all__ = ["figure_entries", "templates", "write", "write_page"]


def write(
    campaign: "Campaign", folder: str | PathLike, *, bounds: Mapping[str, tuple[float, float]] | None = None
) -> Path:
    """Writes a report of a campaign's finished trials: a page with messages, figures and intervals, the figures as SVG, PNG and
    CSV, the trials (`trials.csv`, all digits, so that `summarise` gives the same of it) and their summary (`summary.csv`).

    Args:
        campaign: with at least one finished trial.
        folder: made if it is missing. Files of an earlier report there are replaced or deleted, others stay.
        bounds: of own metrics, as of `summarise`.

    Returns:
        the page, `index.html`.

    Raises:
        ValueError: no trial is finished, or a campaign of rankings has no metrics.
        FileExistsError: the folder holds a file of such a name that is not as a report left it; then nothing was written.
    """
    from drsrobust.extend import StoredTrials
    from drsrobust_extras.pages.report.campaign import write_campaign

    check_instance("campaign", campaign, StoredTrials, "a campaign, as Campaign(...)")
    return write_campaign(campaign, expanded("folder", folder), bounds)


def write_page(figures: Path, page: Path, title: str, names: list[str] | None = None) -> None:
    """Writes a page with figures of a folder.

    Args:
        figures: a folder that `plots.save` wrote to.
        page: the HTML file; it refers to the pictures by relative paths.
        title: of the page.
        names: of the figures, in their order; None: all, sorted.
    """
    names = sorted(path.stem for path in figures.glob("*.svg")) if names is None else names
    folder = Path(os.path.relpath(figures, page.parent)).as_posix()
    template = templates().get_template("figures.html.j2")
    with new_file(page) as part:
        part.write_text(template.render(title=title, folder=folder, figures=figure_entries(figures, names)))


def figure_entries(figures: Path, names: list[str]) -> list[dict[str, Any]]:
    """What the template `figure_list.html.j2` needs of each figure.

    Returns:
        `name`, the entries of `plots.read_words`, `width` and `height` in pixels.
    """
    entries = []
    for name in names:
        picture = (figures / f"{name}.svg").read_text()
        points = {side: float(re.search(rf'{side}="([\d.]+)pt"', picture)[1]) for side in ("width", "height")}
        pixels = {side: round(length * 4 / 3) for side, length in points.items()}
        entries.append({"name": name, "points": [], "appendix": False} | read_words(figures, name) | pixels)
    return entries


def templates(*folders: Path) -> jinja2.Environment:
    """The templates of this package (`page.html.j2` with the style, `figure_list.html.j2`) and of further folders."""
    loader = jinja2.FileSystemLoader([*folders, Path(__file__).parent])
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
