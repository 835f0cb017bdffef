"""Where errors go in a model: the share of each module's outputs that they change, in the order of the forward pass.

`propagation_data` picks the numbers, `propagation_message` says in a sentence what they show, `propagation` draws them."""

import textwrap
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from drsrobust_extras.pages.plots.save import CHARACTERS
from drsrobust_extras.pages.plots.style import COLOURS, SMALLEST, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MODEL = "(model)"  # the model itself, in the table of `dr.trace`
_MAX_ROWS = 60  # drawn of one model, if a limit of depth can do it
_COLUMNS = ["module", "type", "call", "depth", "share_changed", "largest_change", "nan", "own_errors"]
_LETTERS = 44  # of a module's name
_HIT = COLOURS[1]


def propagation_data(table: "pd.DataFrame") -> "pd.DataFrame":
    """What `propagation` draws: one row per call of a module. Of more than 60 calls only those of modules up to the greatest
    depth at which 60 or fewer are left, at least depth 1; flipped bits of deeper modules count for the modules around them.

    Args:
        table: of `dr.trace`, or a frame that this function returned.

    Raises:
        ValueError: another table.
    """
    if missing := [name for name in _COLUMNS if name not in table]:
        raise ValueError(f"the table has no column {missing[0]!r}; give the table of dr.trace(model, batch, error_map)")
    data, depth = table[_COLUMNS].reset_index(drop=True), int(table["depth"].max()) if len(table) else 0
    while (data["depth"] <= depth).sum() > _MAX_ROWS and depth > 1:
        depth -= 1
    deeper = data[data["depth"] > depth].drop_duplicates("module")
    data = data[data["depth"] <= depth].reset_index(drop=True)
    modules = set(data["module"])
    for name, bits in zip(deeper["module"], deeper["own_errors"], strict=True):
        while name and name not in modules:
            name = name.rpartition(".")[0]
        data.loc[data["module"] == (name or _MODEL), "own_errors"] += bits
    return data


def propagation_message(data: "pd.DataFrame") -> str:
    """One sentence: where errors show first, and how many scores they change or where they are masked.

    Args:
        data: `propagation_data`, or the table of `dr.trace`.
    """
    raised = data.attrs.get("raised")
    flipped = data.drop_duplicates("module")["own_errors"].sum()
    subject, verb, at = ("The error", "s", "at") if flipped == 1 else ("The errors", "", "first at")
    changed = data[data["share_changed"] > 0]
    if changed.empty:
        return f"{subject} make{verb} the model raise {raised}." if raised else "No output of any module changes."
    start = f"{subject} enter{verb} {at} {_name(changed.iloc[0], data)} and"
    if raised:
        return f"{start} make{verb} the model raise {raised}."
    of_model = data[data["module"] == _MODEL]
    scores = (of_model if len(of_model) else data).iloc[-1]
    if np.isnan(scores["share_changed"]):
        return f"{start} change{verb} the shape of the scores."
    if not scores["share_changed"]:
        return f"{start} {'is' if verb else 'are'} masked after {_name(changed.iloc[-1], data)}: no score changes."
    share = 100 * scores["share_changed"]
    text = f"{start} reach{'es' if verb else ''} {'over 99' if 99 < share < 100 else f'{share:.3g}'} % of the scores"
    wrong = data[data["nan"].fillna(0) > 0]
    return f"{text}; the first NaN is at {_name(wrong.iloc[0], data)}." if len(wrong) else f"{text}."


def propagation(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """The share of changed outputs of each call of a module as a bar, from the first call to the last, with the largest change
    next to it. The larger it is, the darker is the bar, on a logarithmic scale; infinite and NaN are red, as are the names of
    modules with flipped bits.

    Args:
        data: the table of `dr.trace`, or `propagation_data` of it.
        ax: where to draw, with the message as its title; None: a new figure, as high as its rows need, with the message above.

    Raises:
        ValueError: another table.
    """
    data = propagation_data(data)
    if ax is not None:
        return _draw(data, ax, titled=True)
    ax = new_panels()[0]
    ax.figure.set_figheight(1.3 + 0.19 * len(data))
    ax.figure.get_layout_engine().set(w_pad=0.12)  # long names are not equally wide in all formats of files
    heading = textwrap.fill(propagation_message(data), round(CHARACTERS * ax.figure.get_figwidth()))
    ax.figure.suptitle(heading, x=0.005, ha="left", size=10)
    return _draw(data, ax, titled=False)


@styled
def _draw(data: "pd.DataFrame", ax: "Axes", *, titled: bool) -> "Axes":
    share, largest = data["share_changed"].to_numpy(float), data["largest_change"].to_numpy(float)
    places, measured = np.arange(len(data)), largest[np.isfinite(largest) & (largest > 0)]
    scale = LogNorm(*(measured.min(), measured.max()) if len(measured) else (1, 10))
    finite = np.isfinite(largest)
    colours = mpl.colormaps["Blues"](0.35 + 0.65 * scale(np.clip(np.where(finite, largest, 1), scale.vmin, scale.vmax)))
    colours[~finite] = mpl.colors.to_rgba(_HIT)
    ax.barh(places, np.nan_to_num(share), height=0.7, color=colours)
    is_reached, first_nan = share > 0, np.flatnonzero(data["nan"].fillna(0) > 0)[:1]
    ax.scatter(share[is_reached], places[is_reached], s=9, color="#333333", zorder=3)  # shows small shares too
    margin = {"xycoords": ax.get_yaxis_transform(), "va": "center", "size": SMALLEST, "annotation_clip": False}
    for place in places[is_reached | np.isnan(share)]:
        text = "other shape or calls" if np.isnan(share[place]) else f"{largest[place]:.2g}".replace("nan", "NaN")
        text += "  first NaN" if place in first_nan else ""
        ax.annotate(text, (1.015, place), color=_HIT if place in first_nan else "#444444", **margin)
    ax.annotate("largest change", (1.015, -1.1), color="#444444", **margin)
    ax.set_yticks(places, [_label(row, data) for _, row in data.iterrows()], fontsize=SMALLEST)
    for label, bits in zip(ax.get_yticklabels(), data["own_errors"], strict=True):
        label.set_color(_HIT if bits else "#222222")
    ax.set(
        xlabel="share of outputs changed", xlim=(0, 1.02 * np.nanmax([*share, 0]) or 1), ylim=(len(data) - 0.4, -0.6)
    )
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.grid(False, axis="y")
    if titled:
        width = ax.get_position().width * ax.figure.get_figwidth()  # without room for the names, which is not known yet
        ax.set_title(textwrap.fill(propagation_message(data), round(0.6 * CHARACTERS * width)), size=9, pad=16)
    return ax


def _name(row: "pd.Series", data: "pd.DataFrame") -> str:
    """A module, with its class if its name ends in a number, and with the number of the call if there are several."""
    name = row["module"]
    type_name = [row["type"]] if name.rpartition(".")[2].isdigit() else []
    if (data["module"] == name).sum() > 1:
        type_name.append(f"call {row['call']}")
    return f"{name} ({', '.join(type_name)})" if type_name else name


def _label(row: "pd.Series", data: "pd.DataFrame") -> str:
    """As `_name`, without parts in the middle of a long one, with the flipped bits."""
    (first, *parts), bits = _name(row, data).split("."), row["own_errors"]
    name = ".".join((first, *parts))
    while len(name) > _LETTERS and len(parts) > 1:
        parts = parts[1:]
        name = f"{first}…{'.'.join(parts)}"
    return name if not bits else f"{name}  [{bits:,} bit{'s' * (bits > 1)} flipped]"
