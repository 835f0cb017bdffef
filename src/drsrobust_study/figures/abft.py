"""Checksums: alarms by bit error rate, share of errors detected, overhead."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drsrobust.statistics import wilson
from drsrobust_extras.pages.plots.style import CLAIMED, COLOURS, GUIDE, legend_outside, series_style, styled
from drsrobust_study.findings import interval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

_BAR = {"linestyle": "none", "capsize": 2, "elinewidth": 1.1, "markersize": 5}
_HUES = (0, 4, 2, 5)  # of checks: neighbours differ in grey
_COUNTS = ["injections", "significant", "significant_detected", "detected"]
_MISSED, _HARMLESS = {"facecolor": "#000000", "lw": 0}, "pale, on top: harmless, detected"


def abft_detection_data(errors: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_detection` draws: one row per mitigation, model and bit, over all components, in the order of mitigations.

    Args:
        errors: `drsrobust_study.abft.by_bit`.
    """
    order = {name: number for number, name in enumerate(errors["mitigation"].unique())}
    data = errors.groupby(["mitigation", "model", "bit"])[_COUNTS].sum().reset_index()
    return data.sort_values("mitigation", key=lambda names: names.map(order), kind="stable", ignore_index=True)


@styled
def abft_detection(
    data: "pd.DataFrame",
    ax: "Axes | None" = None,
    *,
    mitigations: "Sequence[str]",
    published: float | None = None,
) -> "Axes":
    """Single errors by bit, a bar per check: the share that is harmful, detected or missed, and on top of it the share of
    harmless ones that is detected. The legend has the detected share of all harmful errors with its interval (Wilson).

    Args:
        data: `abft_detection_data`.
        ax: where to draw; None: a new figure.
        mitigations: the checks.
        published: the share of harmful errors to compare with.
    """
    handles, width, every = [], 0.84 / max(len(mitigations), 1), list(data["mitigation"].unique())
    for index, name in enumerate(mitigations):
        rows, colour = data[data["mitigation"] == name], COLOURS[_HUES[every.index(name) % len(_HUES)]]
        parts = {
            "detected": (rows["significant_detected"], {"color": colour, "lw": 0}),
            "missed": (rows["significant"] - rows["significant_detected"], _MISSED),
            "harmless, detected": (
                rows["detected"] - rows["significant_detected"],
                {"color": colour, "alpha": 0.35, "lw": 0},
            ),
        }
        place, top = rows["bit"] + width * ((len(mitigations) - 1) / 2 - index), np.zeros(len(rows))
        for label, (count, style) in parts.items():
            share = (count / rows["injections"]).to_numpy(float)
            ax.bar(place, share, width, bottom=top, label=f"{name}: {label}", **style)
            top = top + share
        found, harmful = int(rows["significant_detected"].sum()), int(rows["significant"].sum())
        text = f"{name}: {found:,} of {harmful:,} harmful errors detected"
        text += f", {interval(*(100 * end for end in wilson(found, harmful)))} %" if harmful else ""
        handles.append(Patch(facecolor=colour, lw=0, label=text))
    highest = int(data["bit"][data["mitigation"].isin(list(mitigations))].max()) if len(data) else 31
    ax.set(xlabel="bit position (the highest at the left)", ylabel="share of errors", ylim=(0, 1.04))
    ax.set_xlim(highest + 0.7, -0.7)
    step = 1 if highest < 8 else 4
    ax.set_xticks(range(highest % step, highest + 1, step))
    ax.grid(False, axis="x")
    ax.set_title(data["model"].iloc[0] + f", int{highest + 1}" * (highest < 31) if len(data) else "")
    ax.label_outer()
    if len(data):
        shown, harmless = data[data["mitigation"].isin(list(mitigations))], {"color": "#999999", "alpha": 0.45, "lw": 0}
        handles.append(Patch(label="harmful, missed", **_MISSED))
        handles += [Patch(label=_HARMLESS, **harmless)] * bool(
            (shown["detected"] > shown["significant_detected"]).any()
        )
        if published is not None:
            handles.append(
                Line2D([], [], linestyle="", label=f"(published: over {100 * published:g} % of harmful errors)")
            )
        legend_outside(ax, handles)
    return ax


def abft_overhead_data(runs: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_overhead` draws: one row per scope, mitigation and batch size, the median of several runs.

    Args:
        runs: `time_cost` of several timings.
    """
    keys = ["model", "scope", "mitigation", "batch"]
    values = ["plain_ms", "protected_ms", "overhead_percent"]
    data = runs.groupby(keys, sort=False)[values].median()
    spread = runs.groupby(keys, sort=False)["overhead_percent"].agg(lowest="min", highest="max")
    return data.join(spread).reset_index()


@styled
def abft_overhead(
    data: "pd.DataFrame",
    ax: "Axes | None" = None,
    *,
    scope: str = "model",
    published: "Mapping[str, float] | None" = None,
) -> "Axes":
    """Measured overhead by mitigation, a series per batch size; bars: the range of several runs.

    Args:
        scope: `model` or `operator`: whose time is 100 %.
        published: start of a mitigation's name -> a value to compare with, in per cent.
    """
    several, published = data["model"].nunique() > 1, published or {}
    labels = data["mitigation"] + ("\n" + data["model"] if several else "")
    data, names = data.assign(label=labels), list(labels.unique())
    sizes = sorted(data["batch"].unique())
    data = data[data["scope"] == scope]
    for index, size in enumerate(sizes):
        points, value = data[data["batch"] == size], data.loc[data["batch"] == size, "overhead_percent"]
        place = len(names) - 1 - points["label"].map(names.index).to_numpy(float) - 0.2 * (index - (len(sizes) - 1) / 2)
        ends = np.maximum([value - points["lowest"], points["highest"] - value], 0)
        ax.errorbar(value, place, xerr=ends, label=f"batch {size:,}", **series_style(index) | _BAR)
    for start, value in published.items():
        _published_limit(ax, names, start, value, f"{value:g} %")
    ax.set_yticks(range(len(names))[::-1], names)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ends = np.array([*data["lowest"], *data["highest"], *published.values()], float)
    # Overheads of an operator span decades; a logarithmic axis cannot show those that noise brings below 0.
    logarithmic = scope == "operator" and len(ends) > 0 and ends.min() > 0
    if logarithmic:
        low, high = ends.min() / 1.6, 1.6 * ends.max()
        ax.set(xscale="log", xlim=(low, high))
        ticks = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]
        ticks = [tick for tick in ticks if low <= tick <= high]
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
    else:
        ax.set_xlim(min(-1.0, ends.min(initial=0) - 1), 1.1 * ends.max(initial=10))
        ax.axvline(0, **GUIDE)
    ax.set(xlabel="extra time (%)", title=f"of the {scope}'s time")
    ax.grid(False, axis="y")
    if scope == "model":
        legend_outside(ax)
    ax.label_outer()
    return ax


def _published_limit(ax: "Axes", names: "Iterable[str]", start: str, value: float, text: str) -> None:
    """A dashed line at the rows whose names begin with `start`; the first name is the top row."""
    names = list(names)
    rows = [len(names) - 1 - number for number, name in enumerate(names) if name.startswith(start)]
    if rows:
        ax.plot([value] * 2, [min(rows) - 0.4, max(rows) + 0.4], zorder=1, **CLAIMED)
        ax.text(value, max(rows) + 0.4, f" published: under {text}", color="#444444", size=8, va="top")


@styled
def abft_alarms(
    points: "pd.DataFrame", ax: "Axes | None" = None, *, dataset: str, part: str, limit: float = 1e-4
) -> "Axes":
    """Share of forward passes that alarm against the bit error rate, a colour per model: markers measured (means over training
    seeds), lines the probability that any stored bit of the part is wrong.

    Args:
        points: `alarm_points`, with errors that stay.
        ax: where to draw; None: a new figure.
        dataset, part: of the panel.
        limit: the rate over which the study calls checksums with re-execution infeasible.
    """
    shown = points[points["dataset"].eq(dataset) & points["part"].eq(part)]
    for index, name in enumerate(points["model"].unique()):
        means, style = shown[shown["model"] == name].groupby("ber")[["alarms", "bits"]].mean(), series_style(index)
        if len(means):
            rates = np.geomspace(means.index.min(), means.index.max(), 200)
            exact = -np.expm1(means["bits"].iloc[0] * np.log1p(-rates))
            ax.plot(rates, exact, color=style["color"], lw=1.1, alpha=0.75)
        ax.plot(means.index, means["alarms"], **style | {"linestyle": "none", "markersize": 5, "label": name})
    ax.axvline(limit, **CLAIMED)
    ax.set(xscale="log", ylim=(-0.04, 1.04), xlabel="bit error rate", title=f"{part}, {dataset}")
    ax.set_ylabel("forward passes that alarm")
    handles = [
        *ax.get_legend_handles_labels()[0],
        Line2D([], [], color="#555555", lw=1.1, label="any stored bit wrong"),
    ]
    legend_outside(ax, [*handles, Line2D([], [], label="limit of the study", **CLAIMED)])
    ax.label_outer()
    return ax
