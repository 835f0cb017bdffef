"""Checksums: what they notice, what they cost, what they repair (experiment E7).

AUC with and without repair, on the same error maps (experiment E7)."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust.plots.style import GUIDE, apart, auc_guides, look, looks, name_line, new_panels, styled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd
    from matplotlib.axes import Axes

_WITH_PUBLISHED_ALARMS = "ABFT EmbeddingBag"  # how the names begin of the checks for which a share is published
_BAR = {"linestyle": "none", "capsize": 2, "elinewidth": 1.1, "markersize": 5}


def abft_detection_data(shares: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_detection` draws: one row per mitigation, model, component and bit, sorted.

    Args:
        shares: of single errors by bit, with intervals: `benchmark.abft_claims.noticed_shares`.
    """
    if "noticed_low" not in shares:
        raise ValueError("the table has no intervals (noticed_low): give it as noticed_shares(found)")
    names = {name: number for number, name in enumerate(shares["mitigation"].unique())}
    keys = ["mitigation", "model", "component", "bit"]
    data = shares.sort_values(keys, key=lambda one: one.map(names) if one.name == "mitigation" else one)
    return data.reset_index(drop=True)


@styled
def abft_detection(
    data: "pd.DataFrame", ax: "Axes | None" = None, *, mitigation: str, published: float | None = None
) -> "Axes":
    """Share of single errors that one check notices, by bit and component: of all of them (pale line), and of those that are
    significant (points with intervals).

    Args:
        data: as `abft_detection_data` returns it.
        ax: where to draw; None: a new figure.
        mitigation: whose.
        published: a share to compare with, as a line.
    """
    ax = ax or new_panels()[0]
    data = data[data["mitigation"] == mitigation]
    components = list(data["component"].unique())
    styles = looks(components)
    for index, component in enumerate(components):
        here, style = data[data["component"] == component].sort_values("bit"), styles[component]
        place = here["bit"] + 0.26 * (index - (len(components) - 1) / 2)
        pale = {"color": style["color"], "linestyle": style["linestyle"], "alpha": 0.45, "linewidth": 1.3}
        ax.plot(place, here["noticed"], **pale)
        value = here["significant_noticed"]
        ends = [value - here["significant_noticed_low"], here["significant_noticed_high"] - value]
        about = {"color": style["color"], "marker": style["marker"], "label": component}
        ax.errorbar(place, value, yerr=np.maximum(ends, 0), **_BAR | about)
    highest = int(data["bit"].max()) if len(data) else 31
    _published_share(ax, published)
    ax.set(xlabel="bit position (the highest at the left)", ylabel="share noticed", ylim=(-0.04, 1.08))
    ax.set_xlim(highest + 0.7, -0.7)
    ax.set_xticks(range(0, highest + 1, 1 if highest < 8 else 4))
    ax.set_title(_title(mitigation, data))
    if len(data):
        ax.legend(title="errors in (points: significant,\nlines: all)", loc="lower left")
    ax.label_outer()
    return ax


def _title(mitigation: str, data: "pd.DataFrame") -> str:
    model = data["model"].iloc[0] if len(data) else ""
    return f"{mitigation}, {model}"


def abft_alarms_data(shares: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_alarms` draws: one row per mitigation and model.

    Args:
        shares: of clean batches with an alarm, with intervals: `benchmark.abft_claims.alarm_shares`.
    """
    columns = ["mitigation", "model", "false_alarms", "clean_rows", "batches", "share", "low", "high"]
    return shares[columns].reset_index(drop=True)


@styled
def abft_alarms(data: "pd.DataFrame", ax: "Axes | None" = None, *, published: float | None = None) -> "Axes":
    """Share of clean batches that raise an alarm, with its interval, a line per check and model.

    Args:
        data: as `abft_alarms_data` returns it.
        ax: where to draw; None: a new figure.
        published: a share to compare with, as a line at the checks of embedding bags: for others none is published.
    """
    ax = ax or new_panels()[0]
    place, style = np.arange(len(data))[::-1], look(0)
    ends = [data["share"] - data["low"], data["high"] - data["share"]]
    ax.errorbar(data["share"], place, xerr=np.maximum(ends, 0), color=style["color"], marker=style["marker"], **_BAR)
    for y, row in zip(place, data.itertuples(), strict=True):
        text = f"{row.false_alarms:,} of {row.batches:,} batches ({row.clean_rows:,} rows)"
        paper = {"facecolor": "white", "alpha": 0.75, "pad": 0.5, "linewidth": 0}
        about = {"size": 8, "color": "#444444", "bbox": paper, "zorder": 4}
        ax.annotate(text, (row.low, y), xytext=(6, 5), textcoords="offset points", **about)
    ax.set_yticks(place, [f"{row.mitigation}\n{row.model}" for row in data.itertuples()])
    ax.set_ylim(-0.6, len(data) - 0.4)
    if published is not None:
        _published_limit(ax, data["mitigation"], _WITH_PUBLISHED_ALARMS, published, f"{100 * published:g} %")
    ax.set_xlim(-0.02 * (widest := max([*data["high"], published or 0.0])), 1.6 * widest)
    ax.set(xlabel="share of clean batches with an alarm", title="False alarms")
    ax.grid(False, axis="y")
    return ax


def abft_overhead_data(runs: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_overhead` draws: one row per scope, mitigation and batch size, the median of several runs.

    Args:
        runs: of the benchmark `overhead`, with `mitigation` and `model`.
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
        data: as `abft_overhead_data` returns it.
        ax: where to draw; None: a new figure.
        scope: `model` or `operator`: of whose time.
        published: how names of mitigations begin -> a value to compare with, in per cent.
    """
    ax = ax or new_panels()[0]
    several = data["model"].nunique() > 1
    labels = data["mitigation"] + ("\n" + data["model"] if several else "")
    data, names = data.assign(label=labels), list(labels.unique())
    sizes = sorted(data["batch"].unique())
    data = data[data["scope"] == scope]
    for index, size in enumerate(sizes):
        here, style = data[data["batch"] == size], look(index)
        place = [len(names) - 1 - names.index(name) for name in here["label"]]
        place = np.array(place, float) - 0.2 * (index - (len(sizes) - 1) / 2)
        value = here["overhead_percent"]
        ends = np.maximum([value - here["lowest"], here["highest"] - value], 0)
        about = {"color": style["color"], "marker": style["marker"], "label": f"batch {size:,}"}
        ax.errorbar(value, place, xerr=ends, **_BAR | about)
    for start, value in (published or {}).items():
        _published_limit(ax, names, start, value, f"{value:g} %")
    ax.set_yticks(range(len(names))[::-1], names)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ends = np.array([*data["lowest"], *data["highest"], *((published or {}).values())], float)
    # An operator's overheads span decades; noise may bring them below 0, where a logarithmic axis ends.
    logarithmic = scope == "operator" and len(ends) > 0 and ends.min() > 0
    if logarithmic:
        ax.set_xscale("log")
        ax.set_xlim(ends.min() / 1.6, 1.6 * ends.max())
        _plain_ticks(ax)
    else:
        ax.set_xlim(min(-1.0, ends.min(initial=0) - 1), 1.1 * ends.max(initial=10))
        ax.axvline(0, **GUIDE)
    label = f"extra time, per cent of the {scope}'s{' (logarithmic)' if logarithmic else ''}"
    ax.set(xlabel=label, title=f"overhead, of the {scope}'s time")
    ax.grid(False, axis="y")
    if scope == "model":
        ax.legend(loc="best")
    ax.label_outer()
    return ax


def _published_limit(ax: "Axes", names: "Iterable[str]", start: str, value: float, text: str) -> None:
    """A dashed line at a published value, at the rows (the first on top) whose names begin so, with its name at the top."""
    names = list(names)
    rows = [len(names) - 1 - number for number, name in enumerate(names) if name.startswith(start)]
    if rows:
        ends = [min(rows) - 0.4, max(rows) + 0.4]
        ax.plot([value] * 2, ends, linestyle=(0, (6, 3)), color="#333333", linewidth=1.1, zorder=1)
        ax.text(value, ends[1], f" published: under {text}", color="#444444", size=8, va="top")


def _plain_ticks(ax: "Axes") -> None:
    """Ticks 1, 2 and 5 of each decade within the limits."""
    low, high = ax.get_xlim()
    ticks = [one * 10.0**power for power in range(-3, 6) for one in (1, 2, 5) if low <= one * 10.0**power <= high]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()


def _published_share(ax: "Axes", value: float | None) -> None:
    """A dashed line across the panel at a published share, if there is one, with its name at the end."""
    if value is not None:
        ax.axhline(value, linestyle=(0, (6, 3)), color="#333333", linewidth=1.1, zorder=1)
        name_line(ax, value, f"published: {100 * value:g} %", above=False)


PLAIN = "none"  # how tables name the model without protection
LEAST = 1e-8  # AUC: a smaller change is drawn here
WITHIN = 1e-4  # AUC: what repair is asked to keep
_COLUMNS = ["panel", "model", "dataset", "mitigation", "ber", "n", "auc", "auc_low", "auc_high", "auc_golden", "change"]


def abft_repair_data(summary: "pd.DataFrame", single: "pd.DataFrame") -> "pd.DataFrame":
    """What `abft_repair` draws: panel `rate`, a row per mitigation and bit error rate with the mean AUC and its interval; panel
    `single`, a row per mitigation and trial, sorted by |AUC - golden| (`change`).

    Args:
        summary: `summarise` of a campaign over bit error rates, without and with repair.
        single: the table of a campaign of one error per trial, without and with repair.
    """
    import pandas as pd

    rate = summary.assign(panel="rate").sort_values(["mitigation", "ber"], kind="stable")
    change = single["auc_drop"].abs()
    one = single.assign(panel="single", change=change, n=1).sort_values(["mitigation", "change"], kind="stable")
    parts = [part.reindex(columns=_COLUMNS) for part in (rate, one)]
    return pd.concat([part.dropna(axis=1, how="all") for part in parts], ignore_index=True)[_COLUMNS]


@styled
def abft_repair(data: "pd.DataFrame", ax: "Axes | None" = None, *, panel: str = "rate") -> "Axes":
    """AUC without and with repair.

    Args:
        data: as `abft_repair_data` returns it.
        ax: where to draw; None: a new figure.
        panel: `rate`: mean AUC with its interval against the bit error rate; `single`: of trials with one error, the share
            whose AUC differs from the golden one by at least so much.
    """
    ax = ax or new_panels()[0]
    data = data[data["panel"] == panel]
    for index, name in enumerate(data["mitigation"].drop_duplicates().sort_values(key=lambda names: names != PLAIN)):
        here = data[data["mitigation"] == name]
        style = look(index) | ({"color": "#000000"} if name == PLAIN else {})  # black without protection, as elsewhere
        label = "no protection" if name == PLAIN else "rows and layers put back"
        if panel == "rate":
            here = here[here["ber"] > 0]
            ends = np.maximum([here["auc"] - here["auc_low"], here["auc_high"] - here["auc"]], 0)
            place = here["ber"] * apart(index, 2)
            ax.errorbar(place, here["auc"], yerr=ends, label=label, capsize=2.5, markersize=5, linewidth=1.6, **style)
        else:
            change = here["change"].fillna(np.inf).to_numpy()
            least = np.unique(np.append(change[change > LEAST], LEAST))
            share = (change >= least[:, None]).mean(axis=1)
            about = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 1.8, "label": label}
            ax.step(np.append(least.clip(LEAST, 1), 1.0), np.append(share, 0.0), where="pre", **about)
    if panel == "rate":
        auc_guides(ax, data["auc_golden"])
        ax.set_title("errors in all parameters")
    else:
        ax.axvline(WITHIN, linestyle=(0, (6, 3)), **GUIDE)
        name_line(ax, WITHIN, f"within {WITHIN:g}", axis="x")
        ax.set(xlabel="|AUC - golden|", ylabel="share of trials with at least that", title="one error per trial")
        ax.set(xlim=(LEAST, 1.0), ylim=(-0.03, 1.03))
    ax.set_xscale("log")
    if len(data):
        ax.legend(loc="best")
    return ax
