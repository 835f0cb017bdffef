"""One call for a figure or a table of a notebook: its panels, its words of `captions.toml`, and its files."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drsrobust.extend import unknown
from drsrobust_extras.pages.plots import new_panels, save
from drsrobust_extras.pages.plots import save_table as write_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def show(
    draw: "Callable[..., Axes] | Axes",
    data: "pd.DataFrame",
    name: str,
    *,
    details: str = "",
    words: Mapping[str, Any] | None = None,
    by: Mapping[str, Iterable] | None = None,
    scale: float | None = None,
    sharey: bool = True,
    **options: Any,
) -> None:
    """Draws a figure, saves it with its words, and shows it (`dr.plots.save`).

    Args:
        draw: called as `draw(data, ax, **options)` for each panel; or the axes of a figure that is drawn.
        data: the frame behind the figure.
        name: of the figure in `captions.toml`, and of its files.
        details: how it was made (`study.details`).
        words: values of the names in its caption.
        by: option of `draw` -> its values; a panel for each, of two options a row of panels for each of the first.
        scale, sharey: as in `dr.plots.new_panels`. Without `by` and `scale` `draw` makes the figure.
        options: of `draw`, in all panels.

    Raises:
        ValueError: no such name in `captions.toml`.
    """
    about = _words(name, words)
    if not callable(draw):
        ax = draw
    elif by is None and scale is None:
        ax = draw(data, **options)
    else:
        by = {option: list(values) for option, values in (by or {}).items()}
        panels = [dict(zip(by, values, strict=True)) for values in product(*by.values())]
        rows = len(next(iter(by.values()))) if len(by) > 1 else 1
        axes = new_panels(len(panels) // rows, rows=rows, scale=1.0 if scale is None else scale, sharey=sharey)
        for panel, own in zip(axes, panels, strict=True):
            draw(data, panel, **own, **options)
        ax = axes[0]
    save(ax, name, data, details=details, **about)


def save_table(table: "pd.DataFrame", name: str, *, details: str = "", words: Mapping[str, Any] | None = None) -> None:
    """Saves a table with its words (`dr.plots.save_table`); arguments and errors as of `show`."""
    write_table(table, name, details=details, **_words(name, words))


def sentence(name: str, **values: Any) -> str:
    """A sentence of `details` from `captions.toml`, with values of its names.

    Raises:
        ValueError: no such sentence.
    """
    known = _captions()["sentences"]
    if name not in known:
        raise unknown("sentence in captions.toml", name, known)
    return known[name].format(**values)


def _words(name: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """`caption`, and `title`, `appendix`, `timed` where the file has them."""
    known = _captions()
    if name not in known:
        raise unknown("name in captions.toml", name, known)
    return known[name] | {"caption": known[name]["caption"].format(**(values or {}))}


@cache
def _captions() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("captions.toml").read_text())
