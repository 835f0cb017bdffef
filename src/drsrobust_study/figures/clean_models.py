"""Quality of the models without errors, and their learning curves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.ticker import MaxNLocator, MultipleLocator

from drsrobust.plots.curves import interval
from drsrobust.plots.style import legend_outside, series_styles, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_CURVE = ["model", "dataset", "epoch", "train_loss", "valid_loss", "valid_auc", "valid_ne"]
_LABELS = {
    "valid_auc": "AUC on validation rows",
    "valid_loss": "log loss on validation rows (nats)",
    "valid_ne": "normalised entropy on validation rows",
    "train_loss": "log loss on training rows (nats)",
}


def clean_auc_data(table: "pd.DataFrame") -> "pd.DataFrame":
    """What `clean_auc` draws: one row per data set and model, the best of each data set first, without training times."""
    columns = ["dataset", "model", "auc", "auc_low", "auc_high", "logloss", "ne", "parameters"]
    return table[columns].sort_values(["dataset", "auc"], ascending=[True, False], ignore_index=True)


@styled
def clean_auc(data: "pd.DataFrame", ax: "Axes | None" = None, *, dataset: str | None = None) -> "Axes":
    """AUC without errors, with its interval, a line per model; the axes of all data sets have one scale.

    Args:
        ax: where to draw; None: a new figure.
        dataset: of the panel; None: the first in the data.
    """
    ends_of = data.groupby("dataset")[["auc_low", "auc_high"]].agg({"auc_low": "min", "auc_high": "max"})
    span = 1.15 * (ends_of["auc_high"] - ends_of["auc_low"]).max()
    dataset = next(iter(data["dataset"]), None) if dataset is None else dataset
    data = data[data["dataset"] == dataset]
    place, ends, styles = range(len(data))[::-1], interval(data, "auc"), series_styles(data["model"])
    text = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "size": 8, "color": "#444444"}
    for row, (y, model, auc) in enumerate(zip(place, data["model"], data["auc"], strict=True)):
        ax.errorbar(auc, y, xerr=ends[:, [row]], capsize=3, markersize=6, **styles[model])
        ax.annotate(f"{auc:.4f}", (auc, y), **text)
    ax.set_yticks(list(place), data["model"])
    ax.set_ylim(-0.6, len(data) - 0.3)
    ax.grid(False, axis="y")
    ax.set(xlabel="AUC on test rows", title=dataset or "")
    if len(data):
        middle = (data["auc_low"].min() + data["auc_high"].max()) / 2
        ax.set_xlim(middle - span / 2, middle + span / 2)
        ax.xaxis.set_major_locator(MultipleLocator(0.01) if 0.02 < span < 0.08 else MaxNLocator(3))
    return ax


def learning_curves_data(curves: "pd.DataFrame") -> "pd.DataFrame":
    """What `learning_curves` draws: one row per data set, model and epoch, without times.

    Args:
        curves: the models' `curve.csv`, with columns `model` and `dataset`.
    """
    return curves[_CURVE].sort_values(["dataset", "model", "epoch"], ignore_index=True)


@styled
def learning_curves(
    data: "pd.DataFrame",
    ax: "Axes | None" = None,
    *,
    quantity: str = "valid_auc",
    models: "Sequence[str] | None" = None,
) -> "Axes":
    """A quantity against the epoch, a curve per model; a ring marks the epoch whose weights were kept.

    Args:
        quantity: `valid_auc`, `valid_loss`, `valid_ne` or `train_loss`.
        models: all models of the figure, so that each looks alike in all panels; None: those of `data`.
    """
    models = list(data["model"].unique() if models is None else models)
    styles = series_styles(models)
    for model, curve in sorted(data.groupby("model"), key=lambda group: models.index(group[0])):
        ax.plot(curve["epoch"], curve[quantity], label=model, markersize=3.5, linewidth=1.4, **styles[model])
        best = curve.loc[curve["valid_auc"].idxmax()]
        ax.plot(best["epoch"], best[quantity], "o", markersize=10, fillstyle="none", color=styles[model]["color"])
    ax.set(xlabel="epoch", ylabel=_LABELS[quantity])
    ax.xaxis.get_major_locator().set_params(integer=True)
    if len(data):
        legend_outside(ax, title="ring: weights kept")
        ax.set_title(data["dataset"].iloc[0])
    return ax
