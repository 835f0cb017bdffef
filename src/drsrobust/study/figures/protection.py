"""Names beside points, so that none covers another name or a point.

What mitigations cost, and what they keep for it (experiments E6 and E8)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drsrobust.plots.curves import NONE, PLAIN, one_bit, refuse_one_label
from drsrobust.plots.style import COLOURS, new_panels, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_AWAY = (9, 16, 26, 38, 52, 68, 86, 106)  # of a point, in points of 1/72 inch: the nearest free place is taken
_ANGLES = np.deg2rad([0, 180, 35, -35, 145, -145, 65, -65, 115, -115, 90, -90])
_CAPTION = 4  # lines
_CROSSED = 200.0  # square pixels of overlap that are as bad as a line over a point or another line
_POINT = 6.0  # half the side of the square around a point that stays free


def spread_labels(
    ax: "Axes",
    x: np.ndarray,
    y: np.ndarray,
    names: Sequence[str],
    spans: Sequence[tuple[float, float, float, float]] = (),
    size: float = 7.5,
) -> None:
    """Writes a name beside each point, with a thin line to it where it is not next to it. Tried are places on circles around
    the point; of those inside of the axes the one is taken that overlaps least, and whose line crosses no other line and no
    other point.

    Args:
        ax: drawn already, with its final scales; its limits are kept.
        x, y: [n], in data coordinates.
        names: [n]; an empty one is not written, and its point kept free all the same.
        spans: (x from, x to, y from, y to), in data coordinates, of what names should not cover either, as error bars.
        size: of the letters, in points.
    """
    ax.set_xlim(ax.get_xlim())
    ax.set_ylim(ax.get_ylim())
    figure = ax.figure
    figure.supxlabel("\n" * _CAPTION, fontsize=7.5)  # room for what `save` writes there
    figure.canvas.draw()  # gives the axes their place
    renderer, scale = figure.canvas.get_renderer(), figure.dpi / 72
    points = ax.transData.transform(np.column_stack([x, y]))
    frame = ax.get_window_extent(renderer)
    half = _POINT * scale
    taken = [(px - half, py - half, px + half, py + half) for px, py in points]
    for left, right, low, high in spans:
        (x0, y0), (x1, y1) = ax.transData.transform([(left, low), (right, high)])
        taken.append((max(x0, frame.x0) - scale, max(y0, frame.y0) - scale, min(x1, frame.x1) + scale, y1 + scale))
    lines = []
    for number in np.lexsort((-points[:, 0], -points[:, 1])):  # from the top
        name, (px, py) = names[number], points[number]
        if not name:
            continue
        text = ax.text(0, 0, name, size=size)
        box = text.get_window_extent(renderer)
        text.remove()
        width, height = box.width, box.height
        best = None
        for away in _AWAY:
            for angle in _ANGLES:
                dx, dy = away * scale * np.cos(angle), away * scale * np.sin(angle)
                left = px + dx - (0 if np.cos(angle) > 0.1 else width if np.cos(angle) < -0.1 else width / 2)
                low = py + dy - height / 2
                there = (left, low, left + width, low + height)
                cost = sum(_overlap(there, other) for other in taken)
                cost += 10 * (width * height - _overlap(there, (frame.x0, frame.y0, frame.x1, frame.y1)))
                cost += 0.6 * away * scale  # rather over a thin line than far away
                line = np.linspace((px, py), (left + width / 2, low + height / 2), 25)
                if away > _AWAY[0]:
                    cost += _CROSSED * (
                        _points_met(line, np.delete(points, number, 0), half / 2) + _lines_met(line, lines)
                    )
                if best is None or cost < best[0] - 1e-6:
                    best = (cost, there, away, line)
        _, there, away, line = best
        taken.append(there)
        if away > _AWAY[0]:
            lines.append(line)
        centre = (((there[0] + there[2]) / 2 - px) / scale, ((there[1] + there[3]) / 2 - py) / scale)
        line = {"arrowstyle": "-", "color": "#AAAAAA", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
        ax.annotate(
            name,
            (x[number], y[number]),
            xytext=centre,
            textcoords="offset points",
            ha="center",
            va="center",
            size=size,
            bbox={"facecolor": "white", "alpha": 0.75, "pad": 0.4, "linewidth": 0},  # read over lines where it must be
            arrowprops=line if away > _AWAY[0] else None,
            zorder=5,
        )


def _points_met(line: np.ndarray, points: np.ndarray, near: float) -> int:
    """How many points a line [n, 2] comes so near."""
    return sum(int((np.abs(line - point) < near).all(axis=1).any()) for point in points)


def _lines_met(line: np.ndarray, others: Sequence[np.ndarray]) -> int:
    """How many straight lines another one crosses."""

    def side(a, b, c) -> float:
        return np.sign((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))

    (a, b), met = line[[0, -1]], 0
    for other in others:
        c, d = other[[0, -1]]
        met += int(side(a, b, c) != side(a, b, d) and side(c, d, a) != side(c, d, b))
    return met


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Common area of two boxes (left, low, right, high)."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return float(max(0.0, width) * max(0.0, height))


_MEMORY = {"color": COLOURS[0], "marker": "o"}
_COMPUTING = {"color": COLOURS[1], "marker": "s"}
_MOST = 0.9999  # recovery over it is drawn there
_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999)
_KINDS = {"in memory": _MEMORY, "in the computation": _COMPUTING}


def protection_cost_data(kept: "pd.DataFrame", costs: "pd.DataFrame") -> "pd.DataFrame":
    """What `protection_cost` draws: one row per mitigation, the one that stores least first.

    Args:
        kept: `campaign.kept_within`, of one model and protocol.
        costs: `campaign.stored` of the same mitigations; what is not in it stores nothing.
    """
    refuse_one_label(kept)
    data = kept.merge(costs, on="mitigation", how="left").fillna({"stored_bits": 0, "stored_percent": 0.0})
    data["order"] = data["mitigation"] != NONE
    data = data.sort_values(["order", "stored_percent", "kept_to"], kind="stable", na_position="first")
    columns = ["model", "dataset", "protocol", "target", "mitigation", "stored_bits", "stored_percent"]
    return data[[*columns, "kept_to", "lost_from"]].reset_index(drop=True)


@styled
def protection_cost(data: "pd.DataFrame", ax: "Axes | None" = None, *, lowest: float, loss: float = 0.001) -> "Axes":
    """Up to which bit error rate each mitigation keeps the AUC, with what it stores: a bar to the highest rate at which the
    loss is surely within bounds, a cross at the lowest at which it surely is not, and dots where the trials do not tell.

    Args:
        data: as `protection_cost_data` returns it.
        ax: where to draw; None: a new figure.
        lowest: the lowest rate that was tried, where all bars begin.
        loss: of AUC, that was allowed.
    """
    ax = ax or new_panels()[0]
    place = np.arange(len(data))[::-1]
    start, width = lowest / 3, 0.56
    cross = {"marker": "x", "markersize": 7, "markeredgewidth": 2, "linestyle": "", "color": COLOURS[1]}
    untold = {"color": "#777777", "linestyle": ":", "linewidth": 2.0, "zorder": 1.5}
    for y, row in zip(place, data.itertuples(), strict=True):
        if row.kept_to == row.kept_to:
            ax.barh(y, row.kept_to - start, left=start, height=width, color=COLOURS[0], alpha=0.85, lw=0)
        if row.lost_from == row.lost_from:
            ax.plot([row.kept_to if row.kept_to == row.kept_to else start, row.lost_from], [y, y], **untold)
            ax.plot(row.lost_from, y, **cross)
    handles = [Patch(color=COLOURS[0], alpha=0.85, lw=0, label=f"loses at most {loss:g} AUC")]
    handles.append(Line2D([], [], label="loses more", **cross))
    handles.append(Line2D([], [], label="the trials do not tell", **untold))
    ax.set_yticks(place, [_with_cost(row.mitigation, row.stored_percent) for row in data.itertuples()])
    ax.set_ylim(-0.6, len(data) - 0.4)
    ax.set_xscale("log")
    most = np.nanmax([lowest, *data["kept_to"], *data["lost_from"]])
    ax.set_xlim(start, 2.2 * most)
    ax.grid(False, axis="y")
    ax.set(
        xlabel=f"bit error rate up to which at most {loss:g} AUC is lost", ylabel="protected bits (extra stored bits)"
    )
    tight = {"columnspacing": 1.0, "handletextpad": 0.5, "handlelength": 1.5}
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.1, **tight)
    if len(data):
        ax.set_title(f"{data['model'].iloc[0]} on {data['dataset'].iloc[0]}", pad=24)
    return ax


def protection_front_data(points: "pd.DataFrame") -> "pd.DataFrame":
    """What `protection_front` draws: one row per mitigation, the most recovery first.

    Args:
        points: `campaign.priced`, of one rate, target and model.
    """
    keys = ["model", "dataset", "protocol", "target", "ber", "mitigation", "n"]
    values = [
        f"{name}{end}" for name in ("lost", "gained", "recovery", "overhead_percent") for end in ("", "_low", "_high")
    ]
    data = points[[*keys, *values, "stored_bits", "stored_percent", "timed", "front"]]
    return data.sort_values("recovery", ascending=False, kind="stable", ignore_index=True)


@styled
def protection_front(data: "pd.DataFrame", ax: "Axes | None" = None, *, cost: str = "overhead_percent") -> "Axes":
    """Recovery, on an axis that keeps 0.99 and 0.999 apart, against a cost, a point per mitigation; a grey line at the most
    that can be had for at most so much of this cost alone. Filled points are beaten by no other one in recovery and all costs
    together; these have their names.

    Args:
        data: as `protection_front_data` returns it; without what is blank or has no interval.
        ax: where to draw; None: a new figure.
        cost: `overhead_percent`, of inference time, 0 for what runs nothing beside the model; or `stored_percent`, of the
            parameters' bits (logarithmic).
    """
    ax = ax or new_panels()[0]
    ax.figure.set_figheight(5.6)  # room for names
    data = data.dropna(subset=["recovery", "recovery_low"])
    stored = cost == "stored_percent"
    value = np.minimum(data["recovery"].to_numpy(float), _MOST)
    place = np.maximum(data[cost].to_numpy(float), 1e-4 if stored else -np.inf)
    if stored:
        ax.set_xscale("log")
    ax.set_yscale("function", functions=(lambda y: -np.log10(np.maximum(1 - y, 1e-6)), lambda z: 1 - 10**-z))
    spans = []
    for y, x, row in zip(value, place, data.itertuples(), strict=True):
        style = _KINDS["in the computation" if row.timed else "in memory"]
        low, high = min(row.recovery_low, y), max(y, min(row.recovery_high, _MOST))
        ends = {"yerr": [[y - low], [high - y]]}
        spans.append((x, x, low, high))
        if row.timed and not stored:
            ends["xerr"] = [[x - row.overhead_percent_low], [row.overhead_percent_high - x]]
            spans.append((row.overhead_percent_low, row.overhead_percent_high, y, y))
        face = style["color"] if row.front else "white"
        about = {"markersize": 7, "capsize": 2, "elinewidth": 0.8, "linestyle": "", "zorder": 2.2 if row.front else 2.0}
        ax.errorbar(x, y, **ends, **style, markerfacecolor=face, **about)
    _staircase(ax, place, value)
    titles = {"overhead_percent": "price in time", "stored_percent": "price in memory"}
    labels = {
        "overhead_percent": "longer inference (%), measured\n(0: runs nothing beside the model)",
        "stored_percent": "extra stored bits (% of the parameters)",
    }
    ax.set(title=titles[cost], xlabel=labels[cost], ylabel="share of the lost AUC that comes back")
    ticks = [tick for tick in _TICKS if tick < value.max(initial=0.5)] + [_MOST] * bool(value.max(initial=0) >= _MOST)
    ax.set_yticks(ticks, [f"{tick:g}" + (" or more" if tick == _MOST else "") for tick in ticks], minor=False)
    ax.set_ylim(min(-0.8, value.min(initial=0) - 0.3), 1 - 0.3 * (1 - value.max(initial=0.9)))
    ax.margins(x=0.15)
    if not ax.figure.legends:  # before names find their places: it takes room from all panels
        handles = [
            ax.plot([], [], linestyle="", label=f"protects {kind}", **style)[0] for kind, style in _KINDS.items()
        ]
        hollow = {"marker": "o", "color": "#444444", "markerfacecolor": "white", "linestyle": ""}
        handles += ax.plot([], [], label="another one is at least as good in all", **hollow)
        ax.figure.legend(handles=handles, loc="outside right center")
    ax.label_outer()
    on_front = data["front"].to_numpy(bool)
    names = [
        one_bit(name).replace(" + ", "\n+ ") if here else ""
        for name, here in zip(data["mitigation"], on_front, strict=True)
    ]
    spread_labels(ax, place, value, names, spans)
    return ax


def _with_cost(mitigation: str, percent: float) -> str:
    if mitigation == NONE:
        return PLAIN
    mitigation = one_bit(mitigation)
    return f"{mitigation}  (+{percent:.2g} %)" if percent else f"{mitigation}, ideal"


def _staircase(ax: "Axes", cost: np.ndarray, value: np.ndarray) -> None:
    """The best value at each cost or below."""
    order = np.lexsort((-value, cost))
    best = np.maximum.accumulate(value[order])
    on = np.r_[True, np.diff(best) > 0] if len(best) else np.array([], bool)
    ax.step(cost[order][on], best[on], where="post", color="#999999", linewidth=1.6, zorder=1)
