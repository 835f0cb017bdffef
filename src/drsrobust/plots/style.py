"""Lines to compare with, and their names.

One look for all figures, and files that are equal byte for byte from run to run."""

from collections.abc import Callable, Hashable, Iterable
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
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


# Okabe and Ito's colours first, told apart with any colour vision; markers and dashes tell all of them apart in grey.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31"),
    *("#882255", "#332288", "#8A8A00", "#44AA99"),
)
MARKERS = ("o", "s", "^", "D", "p", "P", "X", "*", "d", "h", "8", "H")  # triangles that point down or aside are limits
DASHES = (
    *("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (8, 2)), (0, (1, 1))),
    *((0, (4, 1, 1, 1, 1, 1)), (0, (12, 1)), (0, (6, 2, 2, 2)), (0, (2, 2))),
)
# Number of the look that each model has in all figures. Components begin anew: they stand in no legend with models.
_MODELS = {"fm": 0, "dcn": 1, "afm": 2, "wide_deep": 3, "deepfm": 4, "dlrm": 5, "dlrm_dcn": 6, "afn": 7}
_COMPONENTS = {
    **{"mlp": 0, "embedding": 1, "over_mlp": 2, "deep_mlp": 3, "linear": 4, "cross": 5, "all": 6, "head": 7},
    **{"attention": 8, "dense_mlp": 9, "logarithmic": 10, "interaction": 11},
}
# Of an upper limit, where nothing was seen: hollow, so that it is not read as a value.
LIMIT = {"linestyle": "none", "markerfacecolor": "white", "markersize": 5.5, "markeredgewidth": 1.2}
_DECADES = 0.16  # that all curves of a panel are moved apart on a logarithmic axis, at most
SETTINGS = {
    "figure.figsize": (7.2, 4.2),
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "axes.edgecolor": "#555555",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
    "svg.hashsalt": "drsrobust",
}


def styled(draw: Callable[..., "Axes"]) -> Callable[..., "Axes"]:
    """A drawing function in the house style; the caller's own matplotlib settings stay what they are."""

    @wraps(draw)
    def drawing(*arguments, **options):
        with mpl.rc_context():
            sns.set_theme(style="ticks", rc=SETTINGS)
            axes = draw(*arguments, **options)
            interactive = mpl.is_interactive()
        # The first figure of a notebook starts its backend, which says here that cells show their figures.
        mpl.interactive(interactive)
        return axes

    return drawing


@styled
def new_panels(n: int = 1, *, rows: int = 1, scale: float = 1.0, sharey: bool = True) -> "list[Axes]":
    """The axes of a new figure, row by row; those below each other have a common horizontal axis.

    Args:
        n: how many beside each other.
        rows: of them.
        scale: of each panel's width and height.
        sharey: whether all have a common vertical axis.
    """
    width, height = SETTINGS["figure.figsize"]
    size = (scale * width * (1 + 0.72 * (n - 1)), scale * height * rows)
    _, axes = plt.subplots(rows, n, sharex="col", sharey=sharey, squeeze=False, layout="constrained", figsize=size)
    return list(axes.ravel())


def look(index: int) -> dict:
    """Colour, marker and dashes of the index-th series."""
    lap = index // len(COLOURS)  # from the second on with other markers and dashes, so that no two are alike
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + lap) % len(MARKERS)],
        "linestyle": DASHES[(index + lap) % len(DASHES)],
    }


def looks(names: Iterable[Hashable]) -> dict[Hashable, dict]:
    """Name -> `look`, for models or components: those that are known look alike in all figures, others have the looks that are
    left, in their order.

    Args:
        names: of all series of the figure: models, or components, not both.
    """
    names = list(dict.fromkeys(names))
    known = _MODELS if any(name in _MODELS for name in names) else _COMPONENTS
    numbers = {name: known[name] for name in names if name in known}
    left = (number for number in range(len(names) + len(known)) if number not in numbers.values())
    return {name: look(numbers[name] if name in numbers else next(left)) for name in names}


def apart(index: int, n: int, step: float = 0.05) -> float:
    """The factor by which the index-th of n curves is moved on a logarithmic axis, so that no bar hides another and each point
    is still read at its place.

    Args:
        index: of the curve.
        n: how many curves there are.
        step: decades between neighbours, less where there are many.
    """
    return 10 ** (min(step, _DECADES / max(n - 1, 1)) * (index - (n - 1) / 2))
