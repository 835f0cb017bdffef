"""One style for all figures: colours, markers, panels, guide lines and their names.

Colours are Okabe and Ito's; markers and dashes tell series apart in grey. Files are equal byte for byte from run to run."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import signature
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Annotation
from matplotlib.ticker import LogFormatterSciNotation

from drsrobust_extras.pages.plots.names import readable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

WIDTH = 7.0  # inches of a figure at most: two columns of a paper
SMALLEST = 8  # points of a text at least
SETTINGS = {
    "figure.figsize": (WIDTH, 3.8),
    "figure.dpi": 120,
    "savefig.dpi": 240,  # twice the pixels at which pages show a figure
    "font.size": 8,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "axes.edgecolor": "#555555",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "svg.hashsalt": "drsrobust",
}
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31"),
    *("#882255", "#332288", "#8A8A00", "#44AA99"),
)
MARKERS = ("o", "s", "^", "D", "p", "P", "X", "*", "d", "h", "8", "H")  # triangles down or aside mark limits
DASHES = (
    *("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (8, 2)), (0, (1, 1))),
    *((0, (4, 1, 1, 1, 1, 1)), (0, (12, 1)), (0, (6, 2, 2, 2)), (0, (2, 2))),
)
# The style number of each model in all figures. Component numbers restart at 0: no legend mixes the two.
_MODELS = {
    "fm": 0,
    "dcn": 1,
    "afm": 2,
    "wide_deep": 3,
    "deepfm": 4,
    "dlrm": 5,
    "dlrm_dcn": 6,
    "afn": 7,
    "hstu": 8,
    "sasrec": 9,
}
_COMPONENTS = {
    **{"mlp": 0, "embedding": 1, "over_mlp": 2, "deep_mlp": 3, "linear": 4, "cross": 5, "all": 6, "head": 7},
    **{"attention": 8, "dense_mlp": 9, "logarithmic": 10, "interaction": 11},
}
GUIDE = {"color": "#777777", "linewidth": 0.9, "zorder": 0.9}  # reference lines: above the grid, below data
DASHED = (0, (6, 3))
CLAIMED = {"linestyle": DASHED, "color": "#333333", "linewidth": 1.1}  # a published value
# Open, so that an upper limit is not read as a value.
LIMIT = {"linestyle": "none", "markerfacecolor": "white", "markersize": 5.5, "markeredgewidth": 1.2}
OPEN_MARK = {
    "markerfacecolor": "white",
    "markersize": 5,
    "markeredgewidth": 1.2,
    "alpha": 1,
}  # trials say nothing of it
COIN_TOSS = 0.5  # AUC
OUTSIDE = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}  # a legend to the right of its panel
_ASIDE = 30  # letters of the longest name in a legend to the right of its panel; longer ones would squeeze it
_DECADES = 0.16  # largest shift of a panel's curves on a logarithmic axis


def styled(draw: Callable[..., "Axes"]) -> Callable[..., "Axes"]:
    """Decorates a drawing function: house style, a new figure if `ax` is None; the caller's matplotlib settings stay."""
    parameters = signature(draw)

    @wraps(draw)
    def drawing(*arguments, **options):
        with mpl.rc_context():
            sns.set_theme(style="ticks", rc=SETTINGS)
            call = parameters.bind(*arguments, **options)
            if "ax" in parameters.parameters and call.arguments.get("ax") is None:
                call.arguments["ax"] = new_panels()[0]
            axes = draw(*call.args, **call.kwargs)
            _plain_ticks(axes.figure.axes if hasattr(axes, "figure") else ())
            interactive = mpl.is_interactive()
        # The first figure of a notebook loads its backend, which switches this on; `rc_context` would reset it.
        mpl.interactive(interactive)
        return axes

    return drawing


@styled
def new_panels(n: int = 1, *, rows: int = 1, scale: float = 1.0, sharey: bool = True) -> "list[Axes]":
    """The axes of a new figure 7 inches wide, row by row; panels of a column share the horizontal axis.

    Args:
        n: panels in a row.
        rows: number of rows.
        scale: of the height of each row, 3.8 inches.
        sharey: whether all panels share the vertical axis.
    """
    size = (WIDTH, scale * SETTINGS["figure.figsize"][1] * rows)
    figure, axes = plt.subplots(rows, n, sharex="col", sharey=sharey, squeeze=False, layout="constrained", figsize=size)
    figure.get_layout_engine().set(w_pad=0.1)  # names are not equally wide in all formats of files
    return list(axes.ravel())


class _PlainTicks(LogFormatterSciNotation):
    """Labels of a logarithmic axis as `1e-6` and `0.01`, since an exponent in superscript is too small to read."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return plain_number(x) if super().__call__(x, pos) else ""


def plain_number(value: float) -> str:
    """A number as at a tick: `1e-6`, `0.001`, `20`, `1e4`."""
    if value and not 1e-3 <= abs(value) < 1e4:
        return re.sub(r"\.?0*e([-+])0*", r"e\1", f"{value:.1e}").replace("e+", "e")
    return f"{value:g}"


def _plain_ticks(panels: "Iterable[Axes]") -> None:
    for axis in (axis for panel in panels for axis in (panel.xaxis, panel.yaxis)):
        for ticker in (axis.major, axis.minor):
            if type(ticker.formatter) is LogFormatterSciNotation:
                set_formatter = axis.set_major_formatter if ticker is axis.major else axis.set_minor_formatter
                set_formatter(_PlainTicks(labelOnlyBase=ticker.formatter.labelOnlyBase))


def legend_outside(
    ax: "Axes", handles: "Sequence[Artist] | None" = None, *, title: str | None = None, **options: Any
) -> "Legend":
    """A legend to the right of a panel that is alone in its row and has short names, else below all panels; that of several
    panels has each name once.

    Args:
        ax: the panel.
        handles: what it explains; None: what is drawn in the panel.
        title: of the legend.
        options: of matplotlib's `legend`.
    """
    handles = list(ax.get_legend_handles_labels()[0] if handles is None else handles)
    figure = ax.figure
    has_room = isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine)
    if (is_alone(ax) and _longest(handles) <= _ASIDE) or not has_room:
        return ax.legend(handles=handles, title=title, **OUTSIDE | options)
    for old in list(figure.legends):
        names = {one.get_label() for one in old.explained}
        handles = [*old.explained, *(one for one in handles if one.get_label() not in names)]
        title = title or old.get_title().get_text() or None
        old.remove()
    letters = (
        72 * figure.get_figwidth() / (4.4 * _longest(handles) + 48)
    )  # points: of a letter, and of the line before a name
    columns = max(1, min(int(letters), len(handles)))
    below = figure.legend(handles=handles, title=title, loc="outside lower center", ncols=columns, **options)
    below.explained = handles
    return below


def _longest(handles: "Sequence[Artist]") -> int:
    """Letters of the longest line of a legend."""
    return max((len(line) for one in handles for line in readable(str(one.get_label())).split("\n")), default=0)


def at_edge(ax: "Axes", *edges: str) -> bool:
    """Whether a panel lies at all these edges of its figure (`first_row`, `last_col`, ...); a panel alone does."""
    place = ax.get_subplotspec()
    return place is None or all(getattr(place, f"is_{edge}")() for edge in edges)


def is_alone(ax: "Axes") -> bool:
    """Whether a panel is the only one in its row."""
    place = ax.get_subplotspec()
    return place is None or place.get_gridspec().ncols == 1


def series_style(index: int) -> dict:
    """Colour, marker and dashes of the index-th series."""
    lap = index // len(COLOURS)  # each further lap shifts markers and dashes, so that no two are alike
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + lap) % len(MARKERS)],
        "linestyle": DASHES[(index + lap) % len(DASHES)],
    }


def series_styles(names: Iterable[Hashable]) -> dict[Hashable, dict]:
    """Name -> `series_style`: known models and components look alike in all figures, others take the unused styles in order.

    Args:
        names: of all series of the figure: models, or components, not both.
    """
    names = list(dict.fromkeys(names))
    palette = _MODELS if any(name in _MODELS for name in names) else _COMPONENTS
    numbers = {name: palette[name] for name in names if name in palette}
    unused = (number for number in range(len(names) + len(palette)) if number not in numbers.values())
    return {name: series_style(numbers[name] if name in numbers else next(unused)) for name in names}


def apart(index: int, n: int, step: float = 0.05) -> float:
    """The factor that shifts the index-th of n curves on a logarithmic axis, so that no error bar hides another.

    Args:
        index: of the curve.
        n: number of curves.
        step: decades between neighbours; less if there are many.
    """
    return 10 ** (min(step, _DECADES / max(n - 1, 1)) * (index - (n - 1) / 2))


def auc_guides(ax: "Axes", golden: Iterable[float] = ()) -> None:
    """Names both axes of AUC against bit error rate, and draws lines at the AUC without errors and of a coin toss.

    Args:
        ax: the panel.
        golden: AUC without errors of each model; the highest line is named.
    """
    golden = sorted(set(golden))
    for value in golden:
        ax.axhline(value, linestyle=DASHED, **GUIDE)
    ax.axhline(
        COIN_TOSS, linestyle=":", **GUIDE | {"color": "#333333", "linewidth": 1.4}
    )  # dots need more ink than dashes
    ax.set(xlabel="bit error rate (flips per stored bit)", ylabel="AUC")
    # Curves start at the top left and end at the bottom right: the other two corners are free.
    if golden:
        name_line(ax, golden[-1], "without errors")
    name_line(ax, COIN_TOSS, "coin toss", at="left")


def name_line(ax: "Axes", value: float, text: str, *, axis: str = "y", at: str = "right", above: bool = True) -> None:
    """Writes the name of a guide line next to it, at another end or side if it would leave the frame or cover more data.

    Args:
        ax: the panel of the line.
        value: position of the line on its axis.
        text: its name.
        axis: `y` for a horizontal line, `x` for a vertical one, which is named at its top, to the right.
        at: `left` or `right` end of a horizontal line.
        above: whether the name is written over a horizontal line.
    """
    ax.add_artist(_LineName(ax, value, text, axis, at, above))


def label_lines(
    ax: "Axes", places: Mapping[str, tuple[float, float]], colours: Mapping[str, str] | None = None
) -> None:
    """Writes names to the right of the panel at the ends of lines, in their colours and without overlap, in place of a legend.

    Args:
        ax: the panel, with its scales and limits.
        places: name -> the last point of its line, in data.
        colours: of names; others are grey.
    """
    names = sorted(places, key=lambda name: places[name][1])
    low, high = ax.get_ylim()
    position = ax.transData + ax.transAxes.inverted()
    height = 0.165 / ax.get_position().height / ax.figure.get_figheight()  # of a line of text, as a share of the panel
    centres = [
        min(max(position.transform((places[name][0], np.clip(places[name][1], low, high)))[1], 0), 1) for name in names
    ]
    heights: list[float] = []
    for place in centres:  # upwards, each above the last one
        heights.append(max(place, heights[-1] + height) if heights else place)
    for index in reversed(range(len(heights))):  # and down again where they left the panel
        heights[index] = min(heights[index], 1 - height * (len(heights) - 1 - index))
    for name, place in zip(names, heights, strict=True):
        colour = (colours or {}).get(name, "#444444")
        ax.annotate(name, (1.01, place), xycoords="axes fraction", va="center", ha="left", color=colour, size=SMALLEST)


def shade_rates(ax: "Axes", *, below: float = 1e-8, above: float = 1e-4) -> None:
    """Shades two ranges of bit error rates and names them at the top: what memory in the field has, and stress.

    Args:
        ax: the panel, with a logarithmic axis of rates and its limits.
        below: highest rate in the field.
        above: lowest rate of the stress range.
    """
    low, right = ax.get_xlim()
    for start, end, text, colour in (
        (low, below, "memory in the field", "#DDEBDD"),
        (above, right, "stress", "#F3E3DA"),
    ):
        if end > start:
            ax.axvspan(start, end, color=colour, zorder=0.1, lw=0)
            ax.annotate(
                text,
                (start, 1.01),
                xycoords=ax.get_xaxis_transform(),
                va="bottom",
                ha="left",
                color="#555555",
                size=SMALLEST,
            )
    ax.set_xlim(low, right)


class _LineName(Annotation):
    """Chooses its place when it is drawn, since curves and panels drawn later move the limits."""

    def __init__(self, ax: "Axes", value: float, text: str, axis: str, at: str, above: bool):
        if axis == "x":
            coords, ends = ax.get_xaxis_transform(), [("left", "top"), ("right", "top")]
            self._places = [((value, 1.0), end) for end in ends]
        else:
            coords, x = ax.get_yaxis_transform(), {"left": 0.01, "right": 0.99}
            ends = sorted(x, key=lambda end: end != at)
            sides = sorted(("bottom", "top"), key=lambda side: (side == "bottom") != above)
            self._places = [((x[end], value), (end, side)) for end in ends for side in sides]
        paper = {"facecolor": "white", "alpha": 0.75, "pad": 0.5, "linewidth": 0}
        style = {"color": "#444444", "size": SMALLEST, "bbox": paper, "zorder": 1.2}  # above the line, below data
        super().__init__(text, self._places[0][0], (0, 0), xycoords=coords, textcoords="offset points", **style)
        self._line = (axis, value)
        self.set_in_layout(False)

    def draw(self, renderer) -> None:
        axis, value = self._line
        low, high = sorted(getattr(self.axes, f"get_{axis}lim")())
        if low <= value <= high:  # else the line is not in the panel
            frame, points = self.axes.get_window_extent(renderer), _drawn_points(self.axes)
            covered = []
            for place in self._places:
                self._move(*place)
                box = self.get_window_extent(renderer).padded(self.figure.dpi / 36)
                outside = max(0.0, frame.x0 - box.x0, box.x1 - frame.x1)
                if axis == "y":  # at the top of a vertical line there is always room
                    outside = max(outside, frame.y0 - box.y0, box.y1 - frame.y1)
                covered.append((outside, box.count_contains(points)))
            self._move(*self._places[covered.index(min(covered))])
            super().draw(renderer)

    def _move(self, xy: tuple[float, float], end: tuple[str, str]) -> None:
        self.xy = xy
        vertical = self._line[0] == "x"
        offset = ({"left": 4, "right": -4}[end[0]], -3) if vertical else (0, {"bottom": 2, "top": -2}[end[1]])
        self.set(ha=end[0], va=end[1], position=offset)


def _drawn_points(ax: "Axes") -> np.ndarray:
    """Points [n, 2] along all curves and error bars of a panel, in pixels, so close that no text fits between them."""
    paths = [(line.get_transform(), line.get_xydata()) for line in ax.lines if line.get_xydata().size]
    for bars in ax.containers:
        for collection in bars[2] if len(bars) == 3 and isinstance(bars[2], tuple) else ():
            paths += [(ax.transData, segment) for segment in collection.get_segments()]
    fraction = np.linspace(0, 1, 60)[:, None]
    points = [np.empty((0, 2))]
    for transform, path in paths:
        with np.errstate(all="ignore"):
            pixels = transform.transform(np.reshape(np.asarray(path, float), (-1, 2)))
        pixels = np.concatenate([pixels[:1], *(start + fraction * (end - start) for start, end in pairwise(pixels))])
        points.append(pixels[np.isfinite(pixels).all(axis=1)])
    return np.concatenate(points)
