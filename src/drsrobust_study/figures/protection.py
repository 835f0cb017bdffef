"""What mitigations recover against what they cost."""

import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from drsrobust_extras.pages.plots.curves import mitigation_label
from drsrobust_extras.pages.plots.style import COLOURS, SMALLEST, styled
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


def protection_front_data(points: "pd.DataFrame") -> "pd.DataFrame":
    """What `protection_front` draws: one row per mitigation, the most recovery first.

    Args:
        points: `cost_benefit`, of one rate, target and model.
    """
    keys = ["model", "dataset", "protocol", "target", "ber", "mitigation", "n", "auc_golden"]
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
