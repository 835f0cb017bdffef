"""What one error does, by where it falls: component, class of bits, layer or table, rows read often or seldom (E4)."""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.plots.style import LIMIT, look, looks, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_INCORRECT = ["incorrect", "incorrect_low", "incorrect_high"]
_PVF = ["pvf", "pvf_low", "pvf_high"]
_LOSS = ["auc_drop", "auc_drop_low", "auc_drop_high"]
_OUTPUTS = {
    "decision_changed": "decisions flipped",
    "list_changed": "users' lists changed",
    "score_changed": "scores moved",
}
_CLASSES = {
    "sign": "sign\n(31)",
    "exponent_top": "exponent's\ntop bit\n(30)",
    "exponent_high": "exponent,\nhigh\n(29-27)",
    "exponent_low": "exponent,\nlow\n(26-23)",
    "mantissa": "mantissa\n(22-0)",
}
_DECADES = 7  # of a logarithmic axis at most: what is smaller is shown at its edge


def component_pvf_data(parts: "pd.DataFrame") -> "pd.DataFrame":
    """What `component_pvf` draws: one row per model, component and definition; models in their order, in each the component
    whose errors flip most decisions first.

    Args:
        parts: `stratified_pvf` (or `pvf`) by component, of one or more models.
    """
    keys = ["model", "dataset", "component"]
    models = {model: number for number, model in enumerate(parts["model"].unique())}
    flips = parts[parts["definition"] == "decision_changed"].set_index(keys)["incorrect"]
    order = parts["model"].map(models).to_frame("model")
    order["flips"] = -flips.reindex(list(parts[keys].itertuples(index=False, name=None))).to_numpy()
    places = np.lexsort((np.arange(len(parts)), order["flips"], order["model"]))
    columns = [*keys, *(["share"] if "share" in parts else []), "definition", "n", *_PVF, *_INCORRECT]
    return parts.iloc[places][columns].reset_index(drop=True)


@styled
def component_pvf(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "incorrect") -> "Axes":
    """PVF by component, a series per definition of an incorrect output.

    Args:
        data: as `component_pvf_data` returns it.
        ax: where to draw; None: a new figure.
        quantity: `incorrect`, the mean share of the outputs that one error makes incorrect (logarithmic), or `pvf`, the share
            of errors that make any output incorrect.
    """
    ax = ax or new_panels()[0]
    ends = _INCORRECT if quantity == "incorrect" else _PVF
    rows = list(dict.fromkeys(data[["model", "component"]].itertuples(index=False, name=None)))
    for index, (definition, label) in enumerate(_OUTPUTS.items()):
        here, style = data[data["definition"] == definition].dropna(subset=ends[:1]), look(index)
        place = [
            len(rows) - 1 - rows.index(row) for row in here[["model", "component"]].itertuples(index=False, name=None)
        ]
        place = np.array(place, float) + 0.22 * (1 - index)
        _dots(ax, here, ends, place, color=style["color"], marker=style["marker"], label=label)
    several = data["model"].nunique() > 1
    ax.set_yticks(range(len(rows))[::-1], [f"{model}  {part}" if several else part for model, part in rows])
    ax.set_ylim(-0.6, len(rows) - 0.4)
    for number, (one, other) in enumerate(pairwise(rows)):
        if one[0] != other[0]:
            ax.axhline(len(rows) - 1.5 - number, color="#999999", linewidth=0.8)
    ax.grid(False, axis="y")
    if quantity == "incorrect":
        ax.set(title="outputs that one error makes incorrect", xlabel="mean share of all outputs")
        _log(ax, "x", data[ends[::2]], top=1.0)
    else:
        ax.set(title="errors that make any output incorrect (PVF)", xlabel="share of errors", xlim=(-0.02, 1.02))
    ax.label_outer()
    if _at_end(ax, "last"):  # where most of the panel is empty, as a rule
        ax.legend(loc="best")
    return ax


def bit_class_pvf_data(parts: "pd.DataFrame") -> "pd.DataFrame":
    """What `bit_class_pvf` draws: one row per model, component, class of bits and definition; bits from the highest.

    Args:
        parts: `stratified_pvf` (or `pvf`) by component and bit_class, of float32 words.
    """
    data = parts[parts["bit_class"].isin(list(_CLASSES))]
    order = data["bit_class"].map({name: number for number, name in enumerate(_CLASSES)})
    columns = ["model", "dataset", "component", "bit_class", "definition", "n", *_PVF, *_INCORRECT]
    return data.iloc[np.lexsort((order, data["component"]))][columns].reset_index(drop=True)


@styled
def bit_class_pvf(
    data: "pd.DataFrame", ax: "Axes | None" = None, *, definition: str = "decision_changed", quantity: str = "incorrect"
) -> "Axes":
    """PVF by class of bits, a series per component.

    Args:
        data: as `bit_class_pvf_data` returns it, of one model.
        ax: where to draw; None: a new figure.
        definition: of an incorrect output: `decision_changed`, `list_changed` or `score_changed`.
        quantity: `incorrect`, the mean share of the outputs that one error makes incorrect (logarithmic), or `pvf`, the share
            of errors that make any output incorrect.
    """
    ax = ax or new_panels()[0]
    data = data[data["definition"] == definition]
    ends = _INCORRECT if quantity == "incorrect" else _PVF
    components = list(data["component"].unique())
    styles = looks(components)
    for index, component in enumerate(components):
        here, style = data[data["component"] == component], styles[component]
        place = here["bit_class"].map(list(_CLASSES).index) + 0.18 * (index - (len(components) - 1) / 2)
        _dots(ax, here, ends, place, vertical=True, color=style["color"], marker=style["marker"], label=component)
    ax.axvspan(0.5, 1.5, color="#F1EFE6", zorder=0, lw=0)
    ax.set_xticks(range(len(_CLASSES)), list(_CLASSES.values()), fontsize=8.5)
    ax.set_xlim(-0.5, len(_CLASSES) - 0.5)
    ax.grid(False, axis="x")
    if quantity == "incorrect":
        ax.set(title=f"{_OUTPUTS[definition]} by one error", ylabel="mean share of all outputs")
        _log(ax, "y", data[ends[::2]], top=1.6)
    else:
        ax.set(title=f"errors with any {_OUTPUTS[definition]} (PVF)", ylabel="share of errors", ylim=(-0.03, 1.03))
    if len(data):
        ax.legend(title=f"{data['model'].iloc[0]}: error in", loc="best")
    return ax


def layer_loss_data(parts: "pd.DataFrame") -> "pd.DataFrame":
    """What `layer_loss` draws: one row per layer or table, the one with the greatest loss per error first; `total` is the loss
    per error times the share of bits: its part in what one error anywhere in the model does.

    Args:
        parts: `stratified_loss` by component and layer, of one model.
    """
    data = parts[["model", "dataset", "component", "layer", "bits", "share", "n", *_LOSS]]
    totals = {column.replace("auc_drop", "total"): data["share"] * data[column] for column in _LOSS}
    return data.assign(**totals).sort_values("auc_drop", ascending=False, kind="stable", ignore_index=True)


@styled
def layer_loss(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "auc_drop") -> "Axes":
    """Mean AUC loss by layer and table, coloured by component; an arrow where the mean is not above 0 and only the interval's
    upper end can be shown.

    Args:
        data: as `layer_loss_data` returns it.
        ax: where to draw; None: a new figure.
        quantity: `auc_drop`, of an error that falls there, or `total`, of an error anywhere, times the chance that it falls
            there.
    """
    ax = ax or new_panels()[0]
    place = np.arange(len(data))[::-1]
    ends = [column.replace("auc_drop", quantity) for column in _LOSS]
    for component, style in looks(sorted(data["component"].unique())).items():
        here = (data["component"] == component).to_numpy()
        _dots(ax, data[here], ends, place[here], color=style["color"], marker=style["marker"], label=component)
    ax.set_yticks(place, [f"{row.layer}  ({100 * row.share:.2g} %)" for row in data.itertuples()])
    ax.set_ylim(-0.6, len(data) - 0.4)
    ax.grid(False, axis="y")
    titles = {"auc_drop": "one error in this layer or table", "total": "one error anywhere, by where it falls"}
    labels = {"auc_drop": "mean AUC loss", "total": "mean AUC loss x share of the model's bits"}
    ax.set(title=titles[quantity], xlabel=labels[quantity])
    _log(ax, "x", data[ends[::2]])
    if len(data):
        _first_panel(ax, title=f"{data['model'].iloc[0]} (share of its bits)")
    return ax


def row_loss_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `row_loss` draws: one row per set of rows and number of errors; `ber` is that number over the set's bits.

    Args:
        summary: of a campaign of `FixedCount` on `Rows.hot` and `Rows.cold` of tables.
    """
    if "auc_drop_low" not in summary:
        raise ValueError("the table has no intervals (auc_drop_low): give the summary, as summarise(table)")
    found = summary["target"].str.extract(r"^Rows\((?P<table>.+), (?P<kind>hot|cold) (?P<part>[\d.e-]+) of \w*\)$")
    errors = summary["error_model"].str.extract(r"^FixedCount\(k=(\d+)\)$")[0]
    known = (found["table"].notna() & errors.notna()).to_numpy()
    found, data = found[known], summary[known].assign(errors=errors[known].astype(int))
    part = (100 * found["part"].astype(float)).map("{:g} %".format)
    data = data.assign(
        table=found["table"], rows=part + found["kind"].map({"hot": " most read", "cold": " least read"})
    )
    columns = ["model", "dataset", "table", "rows", "errors", "ber", "n", *_LOSS]
    return data[columns].sort_values(["table", "rows", "errors"], ignore_index=True)


@styled
def row_loss(data: "pd.DataFrame", ax: "Axes | None" = None, *, x: str = "errors") -> "Axes":
    """Mean AUC loss of errors in often and in seldom read rows of tables.

    Args:
        data: as `row_loss_data` returns it, of one model.
        ax: where to draw; None: a new figure.
        x: `errors`: at equal numbers of errors; `ber`: at equal shares of the rows' bits.
    """
    ax = ax or new_panels()[0]
    for index, (table, curves) in enumerate(data.groupby("table", sort=False)):
        for number, (rows, curve) in enumerate(curves.groupby("rows", sort=False)):
            style = look(index) | {"linestyle": "-" if number == 0 else "--"}
            style |= {} if number == 0 else {"markerfacecolor": "white"}
            place = curve[x] * (1.06 ** (2 * index + number) if x == "errors" else 1)  # no bar hides another
            _dots(ax, curve, _LOSS, place, vertical=True, label=f"{table}: {rows}", **style)
    labels = {"errors": "errors in these rows", "ber": "errors / bits of these rows"}
    titles = {"errors": "at equal numbers of errors", "ber": "at equal error rates"}
    ax.set(xlabel=labels[x], ylabel="mean AUC loss", title=titles[x])
    if len(data):
        ax.set_xscale("log")
        _log(ax, "y", data[_LOSS[::2]])
        _first_panel(ax, title=f"{data['model'].iloc[0]}, rows of")
    return ax


def _dots(ax: "Axes", data: "pd.DataFrame", ends: list[str], place, *, vertical: bool = False, **style) -> None:
    """Values with their intervals on an axis that will be logarithmic; an arrow from the upper end where a value is not above
    0, and intervals that reach to the edge."""
    value, low, high = (data[column].to_numpy(float) for column in ends)
    place = np.asarray(place, float)
    seen, tiny = value > 0, np.finfo(float).tiny
    errors = [(value - np.maximum(low, tiny))[seen], (high - value)[seen]]
    options = {"linestyle": "none", "markersize": 6, "capsize": 2.5, "elinewidth": 1.2, "linewidth": 1.3} | style
    if vertical:
        ax.errorbar(place[seen], value[seen], yerr=errors, **options)
    else:
        ax.errorbar(value[seen], place[seen], xerr=errors, **options)
    limit = ~seen & (high > 0)
    where = (place[limit], high[limit]) if vertical else (high[limit], place[limit])
    edge = {"color": style["color"], "markeredgecolor": style["color"]}
    ax.plot(*where, marker="v" if vertical else "<", **edge, **LIMIT)


def _log(ax: "Axes", axis: str, values: "pd.DataFrame", top: float | None = None) -> None:
    """A logarithmic axis over positive values, `_DECADES` of them at most."""
    shown = values.to_numpy(float)
    shown = shown[shown > 0]
    if not len(shown):
        return
    top = 2 * shown.max() if top is None else top
    bottom = max(shown.min() / 2, top / 10**_DECADES)
    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    (ax.set_xlim if axis == "x" else ax.set_ylim)(bottom, top)


def _first_panel(ax: "Axes", title: str) -> None:
    """A legend, and labels of the vertical axis, in the first of several panels alone."""
    ax.label_outer()
    if _at_end(ax, "first"):
        ax.legend(loc="best", title=title)


def _at_end(ax: "Axes", end: str) -> bool:
    place = ax.get_subplotspec()
    return place is None or (place.is_first_col() if end == "first" else place.is_last_col())
