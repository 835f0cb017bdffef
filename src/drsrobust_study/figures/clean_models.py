"""Quality of the models without errors."""

from typing import TYPE_CHECKING

from matplotlib.ticker import MaxNLocator, MultipleLocator

from drsrobust_extras.pages.plots.style import GUIDE, name_line, series_styles, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def clean_auc_data(table: "pd.DataFrame") -> "pd.DataFrame":
    """What `clean_auc` draws: one row per training, the best model of each data set (by its mean) first, without times."""
    columns = ["dataset", "model", "train_seed", "auc", "auc_low", "auc_high", "logloss", "ne", "parameters"]
    mean = table.groupby(["dataset", "model"])["auc"].transform("mean")
    order = ["dataset", "mean", "model", "train_seed"]
    return table.assign(mean=mean).sort_values(order, ascending=[True, False, True, True], ignore_index=True)[columns]


@styled
def clean_auc(
    data: "pd.DataFrame", ax: "Axes | None" = None, *, dataset: str | None = None, published: float | None = None
) -> "Axes":
    """AUC without errors, a line per model: a dot per training, and their mean as a bar and a number; the axes of all data sets
    have one scale.

    Args:
        ax: where to draw; None: a new figure.
        dataset: of the panel; None: the first in the data.
        published: an AUC of the study on this data set, as a line.
    """
    ends = data.groupby("dataset")["auc"].agg(["min", "max"])
    span = 1.3 * max((ends["max"] - ends["min"]).max(), 0.005) if len(data) else 1.0
    dataset = next(iter(data["dataset"]), None) if dataset is None else dataset
    data = data[data["dataset"] == dataset]
    models = list(data["model"].unique())
    text = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center", "size": 8, "color": "#444444"}
    for y, (model, runs) in zip(range(len(models))[::-1], data.groupby("model", sort=False), strict=True):
        colour = series_styles(models)[model]["color"]
        ax.plot(runs["auc"], [y] * len(runs), "o", markersize=5, alpha=0.55, color=colour, markeredgewidth=0)
        ax.plot([runs["auc"].mean()], [y], "|", markersize=13, markeredgewidth=1.6, color=colour)
        ax.annotate(f"{runs['auc'].mean():.4f}", (runs["auc"].mean(), y), **text)
    ax.set_yticks(range(len(models))[::-1], models)
    ax.set_ylim(-0.6, len(models) - (0.3 if published is None else -0.2))
    ax.grid(False, axis="y")
    ax.set(xlabel="AUC on test rows", title=dataset or "")
    if len(data):
        middle = (data["auc"].min() + data["auc"].max()) / 2
        ax.set_xlim(middle - span / 2, middle + span / 2)
        ax.xaxis.set_major_locator(MultipleLocator(0.01) if 0.02 < span < 0.08 else MaxNLocator(3))
    if published is not None:
        ax.axvline(published, linestyle="--", **GUIDE)
        name_line(ax, published, f"published {published:g}", axis="x")
    return ax
