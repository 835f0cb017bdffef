"""CPU time of one injection: by method, and by published tool."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust_extras.pages.plots.style import CLAIMED, COLOURS, legend_outside, series_style, styled
from drsrobust_study.injection_speed import STUDY_TOOL

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = ["panel", "method", "parameters", "dtype", "rate", "errors", "cpu_ms", "undo_cpu_ms", "total_ms"]
_COLUMNS += ["peak_mib", "note"]
_LINE = {"markersize": 5.5, "linewidth": 1.6}
_PUBLISHED = 100.0  # times the study's tool, as the study states


def injection_speed_data(table: "pd.DataFrame", *, parameters: int = 16_462_609) -> "pd.DataFrame":
    """What `injection_speed` draws: rows of panel `rate` (one model, all rates), sorted, without methods that never ran. What
    was measured of other models is of panel `none`.

    Args:
        table: one row per method, model and rate, with null where a method was not run.
        parameters: of the float32 model of panel `rate`.

    Returns:
        the table's columns with `panel` and `total_ms`: inject and, where the method has one, undo.
    """
    ran = table.groupby("method")["cpu_ms"].transform("count") > 0
    shown = table["parameters"].eq(parameters) & table["dtype"].eq("float32")
    time = table["cpu_ms"] + table["undo_cpu_ms"].fillna(0)
    data = table.assign(total_ms=time, panel=np.where(shown, "rate", "none"))[ran]
    order = {method: index for index, method in enumerate(table["method"].unique())}
    data = data.sort_values(
        ["panel", "method", "parameters", "rate"],
        key=lambda column: column.map(order) if column.name == "method" else column,
        kind="stable",
        ignore_index=True,
    )
    return data[_COLUMNS]


@styled
def injection_speed(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """CPU time (inject and undo) of one injection against the bit error rate, by method; a curve ends where its method was not
    run.

    Args:
        data: `injection_speed_data`; panel `rate` is drawn.
        ax: where to draw; None: a new figure.
    """
    styles = {method: series_style(index) for index, method in enumerate(data["method"].unique())}
    data = data[data["panel"] == "rate"]
    for method, style in styles.items():
        line = data[data["method"] == method].dropna(subset=["total_ms"])
        ax.plot(line["rate"], line["total_ms"], **_LINE | style | {"label": method})
    ax.set(xlabel="bit error rate (flips per stored bit)", ylabel="CPU time of one injection (ms)")
    if len(data):
        ax.set(xscale="log", yscale="log", title=f"{data['parameters'].iloc[0]:,} float32 parameters")
        legend_outside(ax)
    return ax


@styled
def peer_speed(table: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """CPU seconds of one injection by published tool, a point per call, with the median and how many times the study's tool it
    is. A dashed line is at so many times the study's tool, where the study places the tools that it names.

    Args:
        table: `drsrobust_study.injection_speed.peers`.
        ax: where to draw; None: a new figure.
    """
    tools = table["tool"].drop_duplicates().tolist()
    of_study = table.loc[table["tool"] == STUDY_TOOL, "cpu_s"].median()
    for place, (tool, calls) in enumerate(table.groupby("tool", sort=False)):
        median, colour = calls["cpu_s"].median(), COLOURS[0 if tool == STUDY_TOOL else 5]
        if np.isnan(median):
            text, at = calls["note"].iloc[0].partition(":")[0], of_study
        else:
            ax.plot(calls["cpu_s"], [place] * len(calls), "o", color=colour, alpha=0.7, markersize=5)
            factor = "" if tool == STUDY_TOOL or np.isnan(of_study) else f", {median / of_study:.2g} times {STUDY_TOOL}"
            text, at = f"{median:.2g} s{factor}", median
        side = "left" if not at >= of_study else "right"  # of the mark: away from the dashed line
        ax.annotate(text, (at, place), xytext=(0, 5), textcoords="offset points", ha=side, size=8)
    if of_study > 0:
        ax.axvline(_PUBLISHED * of_study, **CLAIMED)
        ax.text(
            _PUBLISHED * of_study,
            len(tools) - 0.6,
            f"{_PUBLISHED:g} times {STUDY_TOOL}, as published ",
            ha="right",
            size=8,
        )
        ax.set_xlim(table["cpu_s"].min() / 4, 4 * _PUBLISHED * of_study)
    ax.set_yticks(range(len(tools)), tools)
    ax.set_ylim(len(tools) - 0.4, -0.8)
    ax.set(xscale="log", xlabel="CPU seconds of one injection")
    if len(table):
        ax.set_title(f"{table['parameters'].iloc[0]:,} parameters, rate {table['rate'].iloc[0]:g}")
    ax.grid(False, axis="y")
    return ax
