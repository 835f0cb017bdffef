"""Names beside points, so that none covers another name or a point."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
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
