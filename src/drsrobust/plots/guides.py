"""Lines to compare with, and their names."""

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.text import Annotation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GUIDE = {"color": "#777777", "linewidth": 0.9, "zorder": 0.9}  # lines to compare with: above the grid, below data
_COIN = GUIDE | {"color": "#333333", "linewidth": 1.4}  # dots need more ink than dashes to be seen over a grid


def name_line(ax: "Axes", value: float, text: str, *, axis: str = "y", at: str = "right", above: bool = True) -> None:
    """Writes the name of a guide line beside it: where it should stand, unless it would leave the frame or cover more data
    there than at another end or side of the line.

    Args:
        ax: with the line.
        value: where the line stands, on its axis.
        text: its name.
        axis: `y` for a horizontal line, `x` for a vertical one, which is named at its top, to the right.
        at: `left` or `right` end of a horizontal line.
        above: whether the name stands over a horizontal line.
    """
    ax.add_artist(_LineName(ax, value, text, axis, at, above))


class _LineName(Annotation):
    """The name of a guide line. It finds its place when it is drawn: other curves and panels move the limits until then."""

    def __init__(self, ax: "Axes", value: float, text: str, axis: str, at: str, above: bool):
        if axis == "x":
            coords, ends = ax.get_xaxis_transform(), [("left", "top"), ("right", "top")]
            self._places = [((value, 0.99), end) for end in ends]
        else:
            coords, side = ax.get_yaxis_transform(), "bottom" if above else "top"
            ends, sides = (at, _other(at, "left", "right")), (side, _other(side, "bottom", "top"))
            x = {"left": 0.01, "right": 0.99}
            self._places = [((x[end], value), (end, side)) for end in ends for side in sides]
        paper = {"facecolor": "white", "alpha": 0.75, "pad": 0.5, "linewidth": 0}
        about = {"color": "#444444", "size": 8, "bbox": paper, "zorder": 1.2}  # above the line, below data
        super().__init__(text, self._places[0][0], (0, 0), xycoords=coords, textcoords="offset points", **about)
        self._line = (axis, value)
        self.set_in_layout(False)

    def draw(self, renderer) -> None:
        axis, value = self._line
        low, high = sorted(getattr(self.axes, f"get_{axis}lim")())
        if low <= value <= high:  # else the line is not in the panel
            self._settle(renderer)
            super().draw(renderer)

    def _settle(self, renderer) -> None:
        """Takes the first of the places that hide least."""
        frame, points = self.axes.get_window_extent(renderer), _drawn_points(self.axes)
        hidden = []
        for place in self._places:
            self._stand(*place)
            box = self.get_window_extent(renderer).padded(self.figure.dpi / 36)
            out = box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
            hidden.append((out, box.count_contains(points)))
        self._stand(*self._places[hidden.index(min(hidden))])

    def _stand(self, xy: tuple[float, float], end: tuple[str, str]) -> None:
        across, up = end
        self.xy = xy
        aside = {"left": 4, "right": -4}[across] if self._line[0] == "x" else 0
        self.set(ha=across, va=up, position=(aside, 0 if self._line[0] == "x" else {"bottom": 2, "top": -2}[up]))


def _other(one: str, *both: str) -> str:
    return both[1 - both.index(one)]


def _drawn_points(ax: "Axes") -> np.ndarray:
    """Points [n, 2] along all curves and error bars of a panel, in pixels, close enough that no text fits between them."""
    paths = [(line.get_transform(), line.get_xydata()) for line in ax.lines if line.get_xydata().size]
    for bars in ax.containers:
        for some in bars[2] if len(bars) == 3 and isinstance(bars[2], tuple) else ():
            paths += [(ax.transData, segment) for segment in some.get_segments()]
    along = np.linspace(0, 1, 60)[:, None]
    points = [np.empty((0, 2))]
    for transform, path in paths:
        with np.errstate(all="ignore"):
            pixels = transform.transform(np.reshape(np.asarray(path, float), (-1, 2)))
        pixels = np.concatenate([pixels[:1], *(one + along * (two - one) for one, two in pairwise(pixels))])
        points.append(pixels[np.isfinite(pixels).all(axis=1)])
    return np.concatenate(points)


def auc_guides(ax: "Axes", golden: Iterable[float] = ()) -> None:
    """Lines at the AUC without errors (dashed) and of a coin toss (dotted), with their names where curves are seldom: these
    start at the top left and end at the bottom right. Both axes are named.

    Args:
        ax: of AUC against bit error rate.
        golden: AUC without errors, of each model; the highest line is named.
    """
    golden = sorted(set(golden))
    for value in golden:
        ax.axhline(value, linestyle=(0, (6, 3)), **GUIDE)
    ax.axhline(0.5, linestyle=":", **_COIN)
    ax.set(xlabel="bit error rate (flips per stored bit)", ylabel="AUC")
    if golden:
        name_line(ax, golden[-1], "without errors")
    name_line(ax, 0.5, "coin toss", at="left")
