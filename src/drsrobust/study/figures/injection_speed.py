"""What one injection costs, by several methods (experiment E9)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drsrobust.plots.style import look, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = ["panel", "method", "parameters", "dtype", "rate", "expected_errors", "cpu_ms", "undo_cpu_ms", "total_ms"]
_COLUMNS += ["peak_mib", "note"]
_LABELS = {
    "rate": "bit error rate (flips per stored bit)",
    "parameters": "parameters of the model",
    "total_ms": "CPU time of one injection (ms)",
    "peak_mib": "extra memory of one injection (MiB)",
}
_DTYPE = "float32"  # of the models that lines join
_NO_NAME = {"label": None}
_BAND = "#E4DFCF"
_X = {"rate": "rate", "size": "parameters"}


def injection_speed_data(
    table: "pd.DataFrame", *, parameters: int = 16_462_609, counts: Sequence[int] = (1_000, 100_000)
) -> "pd.DataFrame":
    """What `injection_speed` draws: rows of panel `rate` (one model, all rates) and of panel `size` (all models, at the rates
    that give equal numbers of errors on average), sorted. Methods that ran nowhere are left out.

    Args:
        table: one row per method, model and rate, with null where a method was not run.
        parameters: of the float32 model of panel `rate`.
        counts: expected numbers of errors of panel `size`.

    Returns:
        the table's columns with `panel`, `expected_errors` and `total_ms`: inject and, where there is one, undo.
    """
    import pandas as pd

    ran = table.groupby("method")["cpu_ms"].transform("count") > 0
    bits = table["parameters"] * table["dtype"].str.extract(r"(\d+)$")[0].astype(int)
    table = table.assign(
        expected_errors=table["rate"] * bits, total_ms=table["cpu_ms"] + table["undo_cpu_ms"].fillna(0)
    )
    parts = [table[ran & (table["parameters"] == parameters) & (table["dtype"] == "float32")].assign(panel="rate")]
    for count in counts:
        near = (table["expected_errors"] / count - 1).abs() < 1e-3
        parts.append(table[ran & near].assign(panel="size", expected_errors=float(count)))
    order = {method: index for index, method in enumerate(table["method"].unique())}
    data = pd.concat(parts).sort_values(
        ["panel", "method", "expected_errors", "parameters", "rate"],
        key=lambda column: column.map(order) if column.name == "method" else column,
        kind="stable",
        ignore_index=True,
    )
    return data[_COLUMNS]


@styled
def injection_speed(
    data: "pd.DataFrame", ax: "Axes | None" = None, *, panel: str = "rate", quantity: str = "total_ms"
) -> "Axes":
    """CPU time (inject and undo), or memory, of one injection by method; where one was not run, a cross at the upper edge.

    Args:
        data: as `injection_speed_data` returns it.
        ax: where to draw; None: a new figure.
        panel: `rate`: against the bit error rate, on one model; `size`: against the model's size at equal numbers of errors,
            filled markers for the smallest number, open ones for more.
        quantity: `total_ms` or `peak_mib`.
    """
    ax = ax or new_panels()[0]
    styles = {method: look(index) for index, method in enumerate(data["method"].unique())}
    data = data[data["panel"] == panel]
    counts = sorted(data["expected_errors"].unique()) if panel == "size" else [None]
    for method, style in styles.items():
        here = data[data["method"] == method]
        for count in counts:
            curve = here if count is None else here[here["expected_errors"] == count]
            curve = curve.dropna(subset=[quantity])
            most = {"markerfacecolor": "white", "linewidth": 1.0} if count != counts[0] else {"label": method}
            for dtype, line in curve.groupby("dtype", sort=False):  # models of another type are on no line with these
                options = {"markersize": 5.5, "linewidth": 1.6} | style | (most if dtype == _DTYPE else most | _NO_NAME)
                ax.plot(line[_X[panel]], line[quantity], **options)
    ax.set(xlabel=_LABELS[_X[panel]], ylabel=_LABELS[quantity])
    if len(data):
        ax.set_xscale("log")
        # A small injection takes no memory that can be measured: a logarithmic axis alone has no place for it.
        ax.set_yscale("log") if quantity == "total_ms" else ax.set_yscale("symlog", linthresh=1, linscale=0.5)
        if panel == "size":
            _shade_others(ax, data)
        handles = ax.get_legend_handles_labels()[0] if panel == "rate" else _entries(styles, counts, data)
        beside = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
        handles += _crosses(ax, data, _X[panel], styles)
        ax.legend(handles=handles, **({"loc": "best"} if panel == "rate" else beside))
        model = f"{data['parameters'].iloc[0]:,} float32 parameters"
        ax.set_title(model if panel == "rate" else "at equal numbers of errors")
        ax.label_outer()
    return ax


def _crosses(ax: "Axes", data: "pd.DataFrame", x: str, styles: dict[str, dict]) -> list[Line2D]:
    """A cross at the upper edge where a method was not run; what the legend says of it."""
    look_of = {"marker": "x", "linestyle": "none", "markersize": 4.5}
    missing = data[data["cpu_ms"].isna()]
    for index, (method, style) in enumerate(styles.items()):  # each in a row of its own, so that none hides another
        places = missing.loc[missing["method"] == method, x].unique()
        edge = [0.98 - 0.035 * index] * len(places)
        ax.plot(places, edge, transform=ax.get_xaxis_transform(), color=style["color"], **look_of)
    if missing.empty:
        return []
    low, high = ax.get_ylim()
    ax.set_ylim(low, 4 * high)  # no curve runs where the crosses are
    return [Line2D([], [], color="#555555", label="not run", **look_of)]


def _shade_others(ax: "Axes", data: "pd.DataFrame") -> None:
    """A band at each model that is not of float32."""
    for size in data.loc[data["dtype"] != _DTYPE, "parameters"].unique():
        ax.axvspan(size / 1.6, size * 1.6, color=_BAND, zorder=0, lw=0)


def _entries(styles: dict[str, dict], counts: Sequence[float], data: "pd.DataFrame") -> list[Line2D | Patch]:
    """Legend entries: methods, filled and open markers, and the bands of other types."""
    some = {"markersize": 5.5, "linewidth": 1.6}
    entries = [Line2D([], [], label=method, **some | style) for method, style in styles.items()]
    grey = {"color": "#555555", "marker": "o", "markersize": 5.5, "linestyle": "none"}
    fill = ["#555555"] + ["white"] * (len(counts) - 1)
    entries += [
        Line2D([], [], markerfacecolor=face, markeredgecolor="#555555", label=f"{count:,.0f} errors", **grey)
        for face, count in zip(fill, counts, strict=True)
    ]
    others = data.loc[data["dtype"] != _DTYPE, "dtype"].unique()
    return entries + [Patch(color=_BAND, label=f"{dtype} parameters") for dtype in others]
