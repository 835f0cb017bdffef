"""Effect of one error by where it falls: MLPs or tables, component, layer or table, often or seldom read rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from drsrobust_extras.pages.plots.curves import picked
from drsrobust_extras.pages.plots.losses import LOST, RESOLUTION, bound_handles, draw_losses, loss_axis, loss_floor
from drsrobust_extras.pages.plots.style import at_edge, legend_outside, series_style, series_styles, styled
from drsrobust_study.part_curves import MLP, TABLE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_LOSS = ["auc_drop", "auc_drop_low", "auc_drop_high"]
_PARTS = {MLP: "MLPs", TABLE: "tables", "other": "other parts"}
_SMALLEST_TOTAL = 1e-8  # AUC loss times a share of bits


def part_losses_data(losses: "pd.DataFrame") -> "pd.DataFrame":
    """What `part_losses` draws: one row per model, data set, part and training, the data sets in order.

    Args:
        losses: `components.part_losses` of one or more models.
    """
    columns = ["dataset", "model", "part", "train_seed", "bits", "share", "n", *_LOSS, "auc_drop_error", "loss_share"]
    return losses[columns].sort_values(["dataset", "model"], kind="stable", ignore_index=True)


@styled
def part_losses(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "auc_drop") -> "Axes":
    """MLPs against tables, a row per model and data set.

    Args:
        data: `part_losses_data`.
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        quantity: `auc_drop`, the AUC lost by one flip in the part, a dot per training, with the mean as a bar and in words the
            geometric mean of the ratios; or `loss_share`, each part's share of the whole loss at one low bit error rate (mean).
    """
    rows = list(dict.fromkeys(data[["model", "dataset"]].itertuples(index=False, name=None)))
    heights = np.array(
        [len(rows) - 1 - rows.index(key) for key in data[["model", "dataset"]].itertuples(index=False, name=None)]
    )
    parts = data["part"].where(data["part"].isin([MLP, TABLE]), "other")
    left = np.zeros(len(rows))
    for index, (part, label) in enumerate(_PARTS.items()):
        of_part, colour = (parts == part).to_numpy(), "#BBBBBB" if part == "other" else series_style(index)["color"]
        means = data[of_part].groupby(heights[of_part])[quantity]
        if quantity == "loss_share":
            sums = data[of_part].groupby([heights[of_part], "train_seed"])[quantity].sum().groupby(level=0).mean()
            width = np.maximum(sums.reindex(range(len(rows)), fill_value=0.0).to_numpy(), 0)
            ax.barh(range(len(rows)), width, 0.6, left=left, color=colour, label=label)
            left += width
        elif part != "other":
            shown = of_part & (data[quantity] > 0).to_numpy()
            ax.plot(
                data[quantity][shown], heights[shown], "o", color=colour, alpha=0.5, markersize=5, markeredgewidth=0
            )
            ax.plot(means.mean(), means.mean().index, "|", color=colour, markersize=13, markeredgewidth=1.6)
    ax.set_yticks(range(len(rows))[::-1], [f"{model}\n{dataset}" for model, dataset in rows])
    ax.set_ylim(-0.6, max(len(rows), 1) - 0.4)
    ax.grid(False, axis="y")
    if quantity == "loss_share":
        ax.set(title="share of the loss at one low rate", xlabel="share of the AUC lost", xlim=(0, 1))
    else:
        ax.set(title="one flip in MLPs or tables", xlabel=LOST, xscale="log")
        lost = data.assign(height=heights).pivot_table("auc_drop", ["height", "train_seed"], "part")
        for height, trained in lost.reindex(columns=[MLP, TABLE]).groupby("height"):
            if (trained > 0).all(axis=None):  # as S20 is judged by: the mean of logarithms
                above, below = np.exp(np.log(trained).mean())
                place, text = (np.sqrt(above * below), height), f"{above / below:,.0f} times"
                ax.annotate(text, place, (0, 5), textcoords="offset points", ha="center", size=8, color="#444444")
    ax.label_outer()
    if len(data) and quantity == "loss_share":
        legend_outside(ax)
    return ax


def layer_loss_data(parts: "pd.DataFrame") -> "pd.DataFrame":
    """What `layer_loss` draws: one row per layer or table, the greatest loss per error first; `total` is the loss per error
    times the share of bits, its part in the loss by one error anywhere.

    Args:
        parts: `stratified_loss` by component and layer, of one model.
    """
    data = parts[["model", "dataset", "component", "layer", "bits", "share", "n", *_LOSS]]
    totals = {column.replace("auc_drop", "total"): data["share"] * data[column] for column in _LOSS}
    return data.assign(**totals).sort_values("auc_drop", ascending=False, kind="stable", ignore_index=True)


@styled
def layer_loss(data: "pd.DataFrame", ax: "Axes | None" = None, *, quantity: str = "auc_drop") -> "Axes":
    """Mean AUC loss by layer and table, coloured by component; an arrow at the interval's upper end where the mean is not above
    0.

    Args:
        ax: where to draw; None: a new figure. The last panel of a row has the legend.
        quantity: `auc_drop`, of an error in the layer or table, or `total`, of an error anywhere, times the chance that it
            falls there.
    """
    place = np.arange(len(data))[::-1]
    floor = loss_floor(data, quantity, _SMALLEST_TOTAL if quantity == "total" else RESOLUTION)
    for component, style in series_styles(sorted(data["component"].unique())).items():
        of_component = (data["component"] == component).to_numpy()
        style = {"color": style["color"], "marker": style["marker"], "label": component}
        draw_losses(ax, data[of_component], place[of_component], quantity, floor=floor, vertical=False, **style)
    ax.set_yticks(place, [f"{row.layer}  ({100 * row.share:.2g} %)" for row in data.itertuples()])
    ax.set_ylim(-0.6, len(data) - 0.4)
    ax.grid(False, axis="y")
    titles = {"auc_drop": "one error in this layer or table", "total": "one error anywhere, by where it falls"}
    labels = {"auc_drop": "AUC lost (mean)", "total": "AUC lost (mean) x share of bits"}
    ax.set(title=titles[quantity])
    if len(data):
        loss_axis(ax, floor, data[f"{quantity}_high"].max(), axis="x", label=labels[quantity])
    ax.label_outer()
    if len(data) and at_edge(ax, "last_col"):
        title = f"{data['model'].iloc[0]} (share of its bits)"
        legend_outside(
            ax,
            [*ax.get_legend_handles_labels()[0], *bound_handles(data, quantity, floor=floor, vertical=False)],
            title=title,
        )
    return ax


def row_loss_data(summary: "pd.DataFrame") -> "pd.DataFrame":
    """What `row_loss` draws: one row per set of rows and number of errors; `ber` is that number over the set's bits.

    Args:
        summary: `dr.summarise` of a campaign of `FixedCount` on `Rows.hot` and `Rows.cold` of tables.
    """
    picked(summary, [], "auc_drop_low")
    data = summary.dropna(subset=["target_table", "error_count"])
    share = (100 * data["target_share"]).map("{:g} %".format)
    rows = share + data["target_rows"].map({"hot": " most read", "cold": " least read"})
    data = data.assign(table=data["target_table"], rows=rows, errors=data["error_count"].astype(int))
    columns = ["model", "dataset", "table", "rows", "errors", "ber", "n", *_LOSS]
    return picked(data, columns, "auc_drop_low").sort_values(["table", "rows", "errors"], ignore_index=True)


@styled
def row_loss(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Mean AUC loss of equal numbers of errors in often and in seldom read rows of tables."""
    floor = loss_floor(data)
    for index, (table, curves) in enumerate(data.groupby("table", sort=False)):
        for number, (rows, curve) in enumerate(curves.groupby("rows", sort=False)):
            style = series_style(index) | (
                {"linestyle": "--", "markerfacecolor": "white"} if number else {"linestyle": "-"}
            )
            place = curve["errors"] * 1.06 ** (2 * index + number)  # apart, so that no bar hides another
            draw_losses(ax, curve, place, floor=floor, label=f"{table}: {rows}", **style)
    ax.set(xlabel="errors in these rows")
    if len(data):
        ax.set_xscale("log")
        loss_axis(ax, floor, data["auc_drop_high"].max())
        handles = [*ax.get_legend_handles_labels()[0], *bound_handles(data, floor=floor)]
        legend_outside(ax, handles, title=f"{data['model'].iloc[0]}, rows of")
    return ax


def error_shapes_data(summary: "pd.DataFrame", names: Mapping[str, str]) -> "pd.DataFrame":
    """What `error_shapes` draws: one row per target and shape of error, in the order of the names.

    Args:
        summary: `dr.summarise` of a campaign with one event per trial.
        names: label of an error model -> its name in the figure.
    """
    picked(summary, [], "auc_drop_low")
    data = summary[summary["error_model"].isin(names)]
    order = {label: number for number, label in enumerate(names)}
    data = data.assign(shape=data["error_model"].map(names), order=data["error_model"].map(order))
    columns = ["model", "dataset", "target", "shape", "n", *_LOSS]
    return data.sort_values(["target", "order"], kind="stable")[columns].reset_index(drop=True)


@styled
def error_shapes(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Mean AUC loss of one event by its shape, a series per target; an arrow at the interval's upper end where the mean is not
    above 0."""
    shapes, floor = list(dict.fromkeys(data["shape"])), loss_floor(data)
    targets = list(data["target"].unique())
    for index, (target, style) in enumerate(series_styles(targets).items()):
        points = data[data["target"] == target]
        place = np.array([len(shapes) - 1 - shapes.index(shape) for shape in points["shape"]], float)
        place += 0.2 * ((len(targets) - 1) / 2 - index)
        style = {"color": style["color"], "marker": style["marker"], "label": target}
        draw_losses(ax, points, place, floor=floor, vertical=False, **style)
    ax.set_yticks(range(len(shapes))[::-1], shapes)
    ax.set_ylim(-0.6, max(len(shapes), 1) - 0.4)
    ax.grid(False, axis="y")
    if len(data):
        loss_axis(ax, floor, data["auc_drop_high"].max(), axis="x", label="AUC lost by one event (mean)")
        legend_outside(
            ax,
            [*ax.get_legend_handles_labels()[0], *bound_handles(data, floor=floor, vertical=False)],
            title="errors in",
        )
    return ax
