"""What trials of a campaign cost, and how that grows."""

from math import log10
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from drsrobust.plots.style import DASHES, SETTINGS, series_style, series_styles, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_OURS, _LOOP = "drsrobust", "reload loop"
_GREY = "#777777"
_VARIED = {"rows": "rows", "parameters": "parameters", "workers": "processes"}


def campaign_trials_data(table: "pd.DataFrame") -> "pd.DataFrame":
    """What `campaign_trials` draws: `model`, `method` (of drsrobust and of the published loop), `target`, `rate` (null: one
    error in each trial), `trials_per_s`.

    Args:
        table: as the benchmark `campaign` writes it.
    """
    data = table[table["method"].isin([_OURS, _LOOP])]
    data = data.assign(trials_per_s=1e3 / data["ms_per_trial"])
    return data[["model", "method", "target", "rate", "trials_per_s"]].reset_index(drop=True)


def campaign_growth_data(growth: "pd.DataFrame") -> "pd.DataFrame":
    """What `campaign_growth` draws: `varied`, `target`, `error` (one, or a rate), `factor` (how many times the smallest),
    `times` (how many times a trial's time there: CPU time, by numbers of processes the wall clock's).

    Args:
        growth: as the benchmark `campaign` writes it.
    """
    import pandas as pd

    parts = []
    for varied in _VARIED:
        here = growth[growth["varied"] == varied].sort_values(varied)
        here = here.assign(error=here["rate"].map(_error), size=here[varied].astype(float))
        here["time"] = here["wall_ms_per_trial" if varied == "workers" else "ms_per_trial"]
        for _, curve in here.groupby(["target", "error"], sort=False):
            curve = curve.assign(factor=curve["size"] / curve["size"].iloc[0])
            parts.append(curve.assign(times=curve["time"] / curve["time"].iloc[0]))
    columns = ["varied", "target", "error", "factor", "times"]
    return pd.concat(parts)[columns].reset_index(drop=True) if parts else pd.DataFrame(columns=columns)


@styled
def campaign_trials(data: "pd.DataFrame", ax: "Axes | None" = None, *, model: str | None = None) -> "Axes":
    """Trials per second against the bit error rate by target, one error in each trial at the left end; the published loop's for
    all targets as a grey band.

    Args:
        data: as `campaign_trials_data` returns it.
        ax: where to draw; None: a new figure.
        model: which; None: the first.
    """
    ax = ax or _panels(1)[0]
    targets = data.loc[
        data["method"] == _OURS, "target"
    ].unique()  # of all models, so that colours mean the same in each
    model = data["model"].iloc[0] if model is None else model
    data = data[data["model"] == model]
    rates = sorted(data["rate"].dropna().unique())
    single = min(rates, default=1e-9) / 10
    loop = data[data["method"] == _LOOP].assign(rate=lambda frame: frame["rate"].fillna(single))
    if len(loop):
        band = loop.groupby("rate")["trials_per_s"].agg(["min", "max"])
        ax.fill_between(band.index, band["min"], band["max"], color=_GREY, alpha=0.45, linewidth=1.6)
        place = (single, float(band["max"].iloc[0]))
        ax.annotate("reload loop, any target", place, (0, 4), textcoords="offset points", color="#555555", fontsize=9)
    for target, look_of in series_styles(targets).items():
        curve = data[(data["method"] == _OURS) & (data["target"] == target)]
        if curve.empty:
            continue
        style = {"markersize": 5, "linewidth": 1.6} | look_of
        ours = curve.dropna(subset=["rate"]).sort_values("rate")
        ax.plot(ours["rate"], ours["trials_per_s"], label=_target(target), **style)
        one = curve[curve["rate"].isna()]
        ax.plot([single] * len(one), one["trials_per_s"], **style | {"linestyle": "none"})
    ax.set(xscale="log", yscale="log", title=model, ylabel="trials per second, one thread")
    ax.set_xlabel("bit error rate (at the left end: one error in each trial)")
    ax.xaxis.set_major_locator(FixedLocator([single, *rates]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda rate, _: "1 error" if rate == single else f"$10^{{{round(log10(rate))}}}$")
    )
    ax.set_ylim(top=ax.get_ylim()[1] * 4)  # room for the legend
    ax.legend(loc="upper right", ncols=3)
    return ax


@styled
def campaign_growth(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """How many times as long a trial takes when there are several times as many rows, parameters or processes.

    Args:
        data: as `campaign_growth_data` returns it.
        ax: where to draw; None: a new figure.
    """
    ax = ax or _panels(1)[0]
    top = max(data["factor"].max(), 2) if len(data) else 2
    ax.plot([1, top], [1, top], color=_GREY, linewidth=1)
    ax.annotate("in proportion", (top, top), (-6, 0), textcoords="offset points", ha="right", color=_GREY, fontsize=9)
    curves = data.groupby(["target", "error"], sort=False).ngroup()
    for index, varied in enumerate(_VARIED):
        here = data[data["varied"] == varied]
        for number, curve in here.groupby(curves):
            style = {"markersize": 5, "linewidth": 1.6} | series_style(index) | {"linestyle": DASHES[number]}
            ax.plot(curve["factor"], curve["times"], **style)
    ax.set(xscale="log", yscale="log", title="Growth: time of a trial", xlabel="times as many", ylabel="times as long")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(2, numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    handles = [
        Line2D([], [], label=name, **series_style(index) | {"linestyle": "none"}) for index, name in _enumerated(data)
    ]
    for number, (target, error) in enumerate(data[["target", "error"]].drop_duplicates().to_numpy()):
        handles.append(Line2D([], [], color="#555555", linestyle=DASHES[number], label=f"{target}, {error}"))
    ax.legend(handles=handles, loc="upper left")
    return ax


def _enumerated(data: "pd.DataFrame") -> list[tuple[int, str]]:
    """Number and name of each quantity that is varied."""
    there = set(data["varied"])
    return [(index, name) for index, (varied, name) in enumerate(_VARIED.items()) if varied in there]


@styled
def campaign_cost(table: "pd.DataFrame", growth: "pd.DataFrame | None" = None) -> "Axes":
    """A panel of `campaign_trials` for each model, and one of `campaign_growth`; gives the first panel.

    Args:
        table, growth: as the benchmark `campaign` writes them.
    """
    data = campaign_trials_data(table)
    models = list(data["model"].unique())
    with_growth = growth is not None and len(growth) > 0
    panels = _panels(len(models) + with_growth)
    for ax, model in zip(panels, models, strict=False):
        campaign_trials(data, ax, model=model)
    low = min(ax.get_ylim()[0] for ax in panels[: len(models)])
    high = max(ax.get_ylim()[1] for ax in panels[: len(models)])
    for ax in panels[: len(models)]:
        ax.set_ylim(low, high)  # one scale for all models
    if with_growth:
        campaign_growth(campaign_growth_data(growth), panels[-1])
    return panels[0]


def _panels(n: int) -> "list[Axes]":
    """Axes of a new figure, two beside each other."""
    columns = min(n, 2)
    rows = -(-n // columns)
    width, height = SETTINGS["figure.figsize"]
    figure, axes = plt.subplots(
        rows, columns, squeeze=False, layout="constrained", figsize=(width * columns * 0.86, height * rows)
    )
    for ax in axes.flat[n:]:
        ax.remove()
    return list(axes.flat[:n])


def _error(rate: float) -> str:
    return "1 error" if rate != rate else f"{rate:g}"


def _target(target: str) -> str:
    return "last layer" if "*" in target else target
