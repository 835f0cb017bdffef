"""CPU time and memory of one injection, by method."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drsrobust.plots.style import legend_outside, series_style, styled

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
_JOINED = "float32"  # type of the models that lines join; others have a band
_BAND = "#E4DFCF"
_GREY = "#555555"
_LINE = {"markersize": 5.5, "linewidth": 1.6}


def injection_speed_data(
    table: "pd.DataFrame", *, parameters: int = 16_462_609, counts: Sequence[int] = (1_000, 100_000)
) -> "pd.DataFrame":
    """What `injection_speed` draws: rows of panel `rate` (one model, all rates) and of panel `size` (all models, at the rates
    with equal expected numbers of errors), sorted, without methods that never ran. What was measured and is in neither is of
    panel `none`.

    Args:
        table: one row per method, model and rate, with null where a method was not run.
        parameters: of the float32 model of panel `rate`.
        counts: expected numbers of errors of panel `size`.

    Returns:
        the table's columns with `panel`, `expected_errors` and `total_ms`: inject and, where the method has one, undo.
    """
    import pandas as pd

    ran = table.groupby("method")["cpu_ms"].transform("count") > 0
    bits = table["parameters"] * table["dtype"].str.extract(r"(\d+)$")[0].astype(int)
    time = table["cpu_ms"] + table["undo_cpu_ms"].fillna(0)
    table = table.assign(expected_errors=table["rate"] * bits, total_ms=time)
    parts = [table[ran & (table["parameters"] == parameters) & (table["dtype"] == _JOINED)].assign(panel="rate")]
    for count in counts:
        near = (table["expected_errors"] / count - 1).abs() < 1e-3
        parts.append(table[ran & near].assign(panel="size", expected_errors=float(count)))
    places = {place for part in parts for place in part.index}
    parts.append(table[ran & ~table.index.isin(list(places))].assign(panel="none"))
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
    """CPU time (inject and undo) or memory of one injection by method; a curve ends where its method was not run.

    Args:
        panel: `rate`: against the bit error rate, on one model; `size`: against the model's size at equal numbers of errors,
            with open markers for all but the smallest number.
        quantity: `total_ms` or `peak_mib`.
        ax: where to draw; None: a new figure.
    """
    styles = {method: series_style(index) for index, method in enumerate(data["method"].unique())}
    data, x = data[data["panel"] == panel], "rate" if panel == "rate" else "parameters"
    counts = sorted(data["expected_errors"].unique()) if panel == "size" else [None]
    for method, style in styles.items():
        measured = data[data["method"] == method].dropna(subset=[quantity])
        for count in counts:
            curve = measured if count is None else measured[measured["expected_errors"] == count]
            for dtype, line in curve.groupby("dtype", sort=False):
                options = _LINE | style
                if count != counts[0]:
                    options |= {"markerfacecolor": "white", "linewidth": 1.0}
                elif dtype == _JOINED:
                    options["label"] = method
                ax.plot(line[x], line[quantity], **options)
    ax.set(xlabel=_LABELS[x], ylabel=_LABELS[quantity])
    if len(data):
        ax.set_xscale("log")
        # A logarithmic axis alone has no place for 0, the memory that a small injection takes.
        ax.set_yscale("log") if quantity == "total_ms" else ax.set_yscale("symlog", linthresh=1, linscale=0.5)
        handles = ax.get_legend_handles_labels()[0] if panel == "rate" else _entries(ax, styles, counts, data)
        legend_outside(ax, handles)
        model = f"{data['parameters'].iloc[0]:,} float32 parameters"
        ax.set_title(model if panel == "rate" else "at equal numbers of errors")
        ax.label_outer()
    return ax


def _entries(
    ax: "Axes", styles: dict[str, dict], counts: Sequence[float], data: "pd.DataFrame"
) -> list[Line2D | Patch]:
    """Legend entries of panel `size`: methods, filled and open markers, and bands, which it draws, of other types."""
    entries = [Line2D([], [], label=method, **_LINE | style) for method, style in styles.items()]
    marker = {"color": _GREY, "marker": "o", "markersize": 5.5, "linestyle": "none", "markeredgecolor": _GREY}
    for count in counts:
        face = _GREY if count == counts[0] else "white"
        entries.append(Line2D([], [], markerfacecolor=face, label=f"{count:,.0f} errors", **marker))
    others = data[data["dtype"] != _JOINED]
    for size in others["parameters"].unique():
        ax.axvspan(size / 1.6, size * 1.6, color=_BAND, zorder=0, lw=0)
    return entries + [Patch(color=_BAND, label=f"{dtype} parameters") for dtype in others["dtype"].unique()]
