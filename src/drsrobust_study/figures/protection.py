"""Cost of mitigations against the AUC that they keep or recover."""

import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator

from drsrobust.plots.curves import NONE, mitigation_label, refuse_one_label
from drsrobust.plots.style import COLOURS, SMALLEST, styled
from drsrobust_study.findings import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MOST = 0.9999  # recovery over it is drawn there
_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999)
_KINDS = {
    "in memory": {"color": COLOURS[0], "marker": "o"},
    "in the computation": {"color": COLOURS[1], "marker": "s"},
}
# Places of a label around its point, in points of 1/72 inch: nearest first.
_DISTANCES = (9, 16, 26, 38, 52, 68, 86, 106)
_ANGLES = np.deg2rad([0, 180, 35, -35, 145, -145, 65, -65, 115, -115, 90, -90])
_POINT = 6.0  # half the side of the square around a point that stays free
_CROSSED = 200.0  # square pixels of overlap that are as bad as a line over a point or another line


def protection_cost_data(safe_rates: "pd.DataFrame", costs: "pd.DataFrame") -> "pd.DataFrame":
    """What `protection_cost` draws: one row per mitigation, the least storage first.

    Args:
        safe_rates: `max_safe_rate`, of one model and protocol.
        costs: `storage_overhead` of the same mitigations; others store nothing.
    """
    refuse_one_label(safe_rates)
    data = safe_rates.merge(costs, on="mitigation", how="left").fillna({"stored_bits": 0, "stored_percent": 0.0})
    data["order"] = data["mitigation"] != NONE
    data = data.sort_values(["order", "stored_percent", "held_to"], kind="stable", na_position="first")
    columns = ["model", "dataset", "protocol", "target", "mitigation", "stored_bits", "stored_percent"]
    return data[[*columns, "kept_to", "held_to", "lost_from"]].reset_index(drop=True)


@styled
def protection_cost(data: "pd.DataFrame", ax: "Axes | None" = None, *, lowest: float, loss: float = 0.001) -> "Axes":
    """The bit error rate up to which each mitigation keeps the AUC, with its storage: a bar to the highest rate at which the
    loss is clearly within the limit, a cross at the lowest rate at which it clearly is not, and a thin line where trials
    cannot tell.

    Args:
        lowest: the lowest rate that was tried, where all bars begin.
        loss: allowed loss of AUC.
    """
    place = np.arange(len(data))[::-1]
    start = lowest / 3
    highest = np.nanmax([lowest, *data["held_to"], *data["lost_from"], *data["kept_to"]])
    kept = {"color": COLOURS[0], "lw": 0, "label": f"at most {loss:g} AUC lost"}
    unknown = {"color": "#888888", "linestyle": (0, (1, 1.5)), "linewidth": 1.6, "label": "too few trials to tell"}
    cross = {"marker": "x", "markersize": 7, "markeredgewidth": 2, "linestyle": "", "color": COLOURS[1]}
    cross["label"] = f"over {loss:g} AUC lost"
    labels, handles = [], {}
    for y, row in zip(place, data.itertuples(), strict=True):
        is_kept, is_lost = row.kept_to == row.kept_to, row.lost_from == row.lost_from
        if is_kept:
            ax.barh(y, row.kept_to - start, left=start, height=0.56, **kept)
            handles["kept"] = Patch(**kept)
        ends = (row.kept_to if is_kept else start, row.lost_from if is_lost else highest)
        if ends[1] > ends[0]:
            (handles["unknown"],) = ax.plot(ends, [y, y], zorder=1.5, **unknown)
        if is_lost:
            (handles["lost"],) = ax.plot(row.lost_from, y, **cross)
        cost = f"  (+{row.stored_percent:.2g} %)" if row.stored_percent else ", ideal"
        labels.append(mitigation_label(row.mitigation) + ("" if row.mitigation == NONE else cost))
    handles = [handles[name] for name in ("kept", "unknown", "lost") if name in handles]
    ax.set_yticks(place, labels)
    ax.set_ylim(-0.6, len(data) - 0.4)
    ax.set_xscale("log")
    ax.set_xlim(start, 2.2 * highest)
    ax.grid(False, axis="y")
    ax.set_xlabel("bit error rate (flips per stored bit)")
    ax.set_ylabel("protected bits (extra stored bits)")
    tight = {"columnspacing": 1.0, "handletextpad": 0.5, "handlelength": 1.5, "borderaxespad": 0.1}
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, **tight)
    if len(data):
        ax.set_title(f"{data['model'].iloc[0]} on {data['dataset'].iloc[0]}", pad=24)
    return ax


def protection_front_data(points: "pd.DataFrame") -> "pd.DataFrame":
    """What `protection_front` draws: one row per mitigation, the most recovery first.

    Args:
        points: `cost_benefit`, of one rate, target and model.
    """
    keys = ["model", "dataset", "protocol", "target", "ber", "mitigation", "n"]
    names, ends = ("lost", "gained", "recovery", "overhead_percent"), ("", "_low", "_high")
    columns = [*keys, *(f"{name}{end}" for name in names for end in ends)]
    data = points[[*columns, "stored_bits", "stored_percent", "timed", "front"]]
    return data.sort_values("recovery", ascending=False, kind="stable", ignore_index=True)


@styled
def protection_front(data: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Recovery, on an axis that separates 0.99 from 0.999, against extra time of inference, a point per mitigation, named with
    its extra stored bits. Those that take no time have a strip of their own. Filled: no other one is as good in recovery and
    all costs together.

    Args:
        data: `protection_front_data`.
        ax: where to draw; None: a new figure.
    """
    ax.figure.set_figheight(7.2)  # room for names
    data = data.dropna(subset=["recovery", "recovery_low"])
    value, time = np.minimum(data["recovery"].to_numpy(float), _MOST), data["overhead_percent"].to_numpy(float)
    ax.set_yscale("function", functions=(lambda y: -np.log10(np.maximum(1 - y, 1e-6)), lambda z: 1 - 10**-z))
    timed = data["timed"].to_numpy(bool)
    width = 1.1 * max([*data["overhead_percent_high"][timed], 1.0])
    side_by_side = -0.97 * width + 0.035 * width * (np.arange(len(data)) % 6)  # so that no bar hides another
    place, spans = np.where(timed, time, side_by_side), []
    for y, x, row in zip(value, place, data.itertuples(), strict=True):
        style = _KINDS["in the computation" if row.timed else "in memory"]
        low, high = min(row.recovery_low, y), max(y, min(row.recovery_high, _MOST))
        ends = {"yerr": [[y - low], [high - y]]}
        spans.append((x, x, low, high))
        if row.timed:
            ends["xerr"] = np.maximum([[x - row.overhead_percent_low], [row.overhead_percent_high - x]], 0)
            spans.append((row.overhead_percent_low, row.overhead_percent_high, y, y))
        style = style | {
            "markerfacecolor": style["color"] if row.front else "white",
            "zorder": 2.2 if row.front else 2.0,
        }
        ax.errorbar(x, y, **ends, **style, markersize=5.5, capsize=2, elinewidth=0.8, linestyle="")
    ax.axvspan(-1.03 * width, 0, color="#F3F3EE", zorder=0, lw=0)
    top = {"xycoords": ax.get_xaxis_transform(), "va": "bottom", "ha": "center", "color": "#444444", "size": SMALLEST}
    ax.annotate("adds nothing to the computation", (-0.51 * width, 1.01), **top)
    ax.annotate("(in parentheses: extra stored bits)", (0.5 * width, 1.01), **top)
    ax.set(xlabel="longer inference (%), measured", ylabel="share of the lost AUC that comes back")
    ax.set_xlim(-1.03 * width, width)
    ax.xaxis.set_major_locator(FixedLocator([one for one in MaxNLocator(5).tick_values(0, width) if 0 <= one <= width]))
    ticks = [tick for tick in _TICKS if tick < value.max(initial=0.5)] + [_MOST] * bool(value.max(initial=0) >= _MOST)
    ax.set_yticks(ticks, [f"{tick:g}" + (" or more" if tick == _MOST else "") for tick in ticks], minor=False)
    ax.set_ylim(min(-0.8, value.min(initial=0) - 0.3), 1 - 0.3 * (1 - value.max(initial=0.9)))
    handles = [Line2D([], [], linestyle="", label=f"protects {kind}", **style) for kind, style in _KINDS.items()]
    open_circle = {"marker": "o", "color": "#444444", "markerfacecolor": "white", "linestyle": ""}
    handles.append(Line2D([], [], label="open: another is as good in all three", **open_circle))
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=3)
    ax.figure.canvas.draw()  # gives the axes their place
    names = []
    for name, bits in zip(data["mitigation"], data["stored_percent"], strict=True):
        text = re.sub(r" \((provable, )?restore\)", "", mitigation_label(name))
        names.append(text + (f" (+{number(bits)} %)" if bits >= 0.01 else ""))
    in_strip = [textwrap.fill(name, 34) for name, is_timed in zip(names, timed, strict=True) if not is_timed]
    _listed(ax, place[~timed], value[~timed], in_strip, -0.74 * width)
    names = [textwrap.fill(name, 28) if is_timed else "" for name, is_timed in zip(names, timed, strict=True)]
    spread_labels(ax, place, value, names, [*spans, (-1.03 * width, 0.0, *ax.get_ylim())])
    return ax


def _listed(ax: "Axes", x: np.ndarray, y: np.ndarray, names: Sequence[str], left: float) -> None:
    """Writes names in a column, in the order of their points and without overlap, with a line to each point."""
    line = 0.165 / ax.get_position().height / ax.figure.get_figheight()  # of text, as a share of the panel
    to_share = ax.transData + ax.transAxes.inverted()
    order = sorted(range(len(names)), key=lambda index: (y[index], -x[index]))
    heights = [line * (1 + names[index].count("\n")) for index in order]
    above = np.r_[0.0, np.cumsum([(low + high) / 2 for low, high in pairwise(heights)])]  # of names without gaps
    free = [to_share.transform((x[index], y[index]))[1] for index in order] - above[: len(order)]
    upwards, downwards = np.maximum.accumulate(free), np.minimum.accumulate(free[::-1])[::-1]
    centres = np.maximum((upwards + downwards) / 2, line) + above[: len(order)]
    for index, centre in zip(order, centres, strict=True):
        place = ax.transData.inverted().transform(ax.transAxes.transform((0, centre)))[1]
        arrow = {"arrowstyle": "-", "color": "#AAAAAA", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
        arrow["relpos"] = (0, 0.5)  # of the text: its left end
        style = {"va": "center", "ha": "left", "size": SMALLEST, "arrowprops": arrow, "annotation_clip": False}
        ax.annotate(names[index], (x[index], y[index]), (left, place), **style)


def spread_labels(
    ax: "Axes",
    x: np.ndarray,
    y: np.ndarray,
    names: Sequence[str],
    spans: Sequence[tuple[float, float, float, float]] = (),
    size: float = 8,
) -> None:
    """Writes a name next to each point, with a thin line to it where it is further away: of places on circles around the point
    the one with the least overlap inside of the axes.

    Args:
        ax: drawn already, with its final scales; its limits are kept.
        x, y: [n], in data coordinates.
        names: [n]; an empty one is not written, but its point is kept free.
        spans: (x from, x to, y from, y to), in data coordinates, of error bars to keep free.
        size: of the letters, in points.
    """
    ax.set(xlim=ax.get_xlim(), ylim=ax.get_ylim())
    ax.figure.canvas.draw()  # gives the axes their place
    renderer, scale = ax.figure.canvas.get_renderer(), ax.figure.dpi / 72
    points, frame = ax.transData.transform(np.column_stack([x, y])), ax.get_window_extent(renderer).extents
    taken = [np.r_[point - _POINT * scale, point + _POINT * scale] for point in points]
    for first, right, low, high in spans:
        box = ax.transData.transform([(first, low), (right, high)]).ravel() + scale * np.array([-1, -1, 1, 1])
        taken.append(np.r_[np.maximum(box[:2], [*frame[:2]]), min(box[2], frame[2]), box[3]])
    lines: list[np.ndarray] = []
    for index in np.lexsort((-points[:, 0], -points[:, 1])):  # from the top
        if not names[index]:
            continue
        text = ax.text(0, 0, names[index], size=size)
        width, height = text.get_window_extent(renderer).size
        text.remove()
        avoid = [*lines, *np.delete(points, index, 0)[:, None]]
        best: tuple = (np.inf,)
        for distance in _DISTANCES:
            for angle in _ANGLES:
                shift = distance * scale * np.array([np.cos(angle), np.sin(angle)])
                shift[0] += width / 2 * (np.sign(np.cos(angle)) if abs(np.cos(angle)) > 0.1 else 0)
                centre = points[index] + shift
                box = np.r_[centre - (width / 2, height / 2), centre + (width / 2, height / 2)]
                area_outside = width * height - _overlap(box, frame[None]).sum()
                cost = _overlap(box, np.array(taken)).sum() + 10 * area_outside + 0.6 * distance * scale
                line = np.linspace(points[index], centre, 25)
                if distance > _DISTANCES[0]:
                    near = (np.abs(line[:, None] - other).max(axis=2).min() < _POINT / 3 * scale for other in avoid)
                    cost += _CROSSED * sum(near)
                if cost < best[0] - 1e-6:
                    best = (cost, box, distance, line, shift / scale)
        _, box, distance, line, shift = best
        taken.append(box)
        arrow = None
        if distance > _DISTANCES[0]:
            lines.append(line)
            arrow = {"arrowstyle": "-", "color": "#AAAAAA", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
        paper = {"facecolor": "white", "alpha": 0.75, "pad": 0.4, "linewidth": 0}
        style = {"ha": "center", "va": "center", "size": size, "bbox": paper, "arrowprops": arrow, "zorder": 5}
        ax.annotate(names[index], (x[index], y[index]), xytext=shift, textcoords="offset points", **style)


def _overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Common areas of a box (left, low, right, high) with others [n, 4]."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return np.maximum(sides, 0).prod(axis=1)
