"""A figure in words, read from what is drawn: a sentence as its title, and a text for those who cannot see it."""

import re
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import QuadMesh
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_MOST = 8  # series told of a panel
_SEEN = 0.05  # of a curve's range: what lies so far beyond both of its ends is told


def title(figure: "Figure") -> str:
    """One sentence on the first panel that shows anything: where it is highest, or what its widest series does. The panel is
    named where others show the same of other things by name."""
    panels = [ax for ax in figure.axes if _series(ax)]
    if not panels:
        return next((_capital(f"{told[0]}.") for ax in figure.axes if (told := _map(ax))), "Nothing was measured.")
    ax = panels[0]
    head = ax.get_title(loc="left") or ax.get_title()
    alike = len(panels) > 1 and _words(ax.yaxis) is not None and len({_what(one) for one in panels}) == 1
    if not (alike and head):
        return _sentence(ax)
    return f"{head if '/' in head else _capital(head)}: {_sentence(ax)}"  # names of data sets stay as they are


def _sentence(ax: "Axes") -> str:
    found, unit = _series(ax), _unit(ax)
    if None in found and _words(ax.yaxis) is None:  # points of their own, of which none stands for the others
        return _capital(f"{_what(ax)} against {_bare(_across(ax))}.")
    top = max(found, key=lambda name: _values(ax, found[name]).max())
    value, at = _values(ax, found[top]), _places(ax, found[top])
    peak, named = _extreme(value), _words(ax.yaxis) is not None or _words(ax.xaxis) is not None
    if named and len({_number(one) for points in found.values() for one in _values(ax, points)}) == 1:
        return _capital(f"{_what(ax)} is {_number(value[0])}{unit} for all.")
    if named or (peak is not None and value[peak] == value.max()):
        claim = f"is highest {'for' if named else 'at'} {_where(ax)}{at[int(value.argmax())]}"
        return _with(ax, claim, f"{_number(value.max())}{unit}", *_of(top, found))
    name = max(found, key=lambda key: _spread(ax.yaxis, _values(ax, found[key])))
    value, at = _values(ax, found[name]), _places(ax, found[name])
    first, last = _number(value[0]), _number(value[-1])
    if first == last:
        return _with(ax, f"stays at {first}{unit}", *_of(name, found))
    moves = "falls" if value[-1] < value[0] else "rises"
    return _with(ax, f"{moves} from {first} to {last}{unit}", f"{_where(ax)}{at[0]} to {at[-1]}", *_of(name, found))


def _with(ax: "Axes", claim: str, *aside: str) -> str:
    more = f" ({'; '.join(aside)})" if aside else ""
    return _capital(f"{_what(ax)} {claim}{more}.")


def _of(name: str | None, found: dict) -> list[str]:
    return [name] if name and len(found) > 1 else []


def text(figure: "Figure") -> str:
    """All panels: what is drawn against what, and for each series where it begins, where it ends, and how far it goes."""
    return " ".join(_panel(ax) for ax in figure.axes if ax.get_label() != "<colorbar>")


def _panel(ax: "Axes") -> str:
    head = " ".join((ax.get_title(loc="left") or ax.get_title()).split())
    drawn = _what(ax)
    if _words(ax.yaxis) is None and _across(ax):
        drawn += f" against {_bare(_across(ax))}"
    if mapped := _map(ax):
        return f"{_capital('; '.join(mapped))}."
    series = _series(ax)
    told = [_told(ax, name, points) for name, points in list(series.items())[:_MOST]]
    if len(series) > _MOST:
        told.append(f"and {len(series) - _MOST} more")
    drawn = f"{head}: {drawn}" if head else _capital(drawn)
    return f"{drawn}. {'; '.join(told) if told else 'Nothing was measured'}."


def _told(ax: "Axes", name: str | None, points: np.ndarray) -> str:
    value, at = _values(ax, points), _places(ax, points)
    low, high = int(value.argmin()), int(value.argmax())
    start = f"{name}: " if name else f"{len(points)} points, "
    if len(points) == 1:
        return f"{start}{_number(value[0])} at {at[0]}"
    if _number(value[low]) == _number(value[high]):
        return f"{start}{_number(value[0])} throughout"
    if name is None or _words(ax.yaxis) is not None:
        return f"{start}from {_number(value[low])} at {at[low]} to {_number(value[high])} at {at[high]}"
    ends = f"{start}from {_number(value[0])} at {at[0]} to {_number(value[-1])} at {at[-1]}"
    if (peak := _extreme(value)) is None:
        return ends
    return f"{ends}, {'highest' if peak == high else 'lowest'} {_number(value[peak])} at {at[peak]}"


def _series(ax: "Axes") -> dict[str | None, np.ndarray]:
    """Name -> points [n, 2], sorted by x: curves, points and bars; under None those that have no name."""
    drawn = []
    for one in ax.containers:
        if isinstance(one, ErrorbarContainer) and one.lines[0] is not None:
            drawn.append((one.get_label(), one.lines[0].get_xydata()))
        elif isinstance(one, BarContainer) and one.orientation == "horizontal":
            ends = [(bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in one.patches]
            drawn.append((one.get_label(), np.reshape(ends, (-1, 2))))
    drawn += [(line.get_label(), line.get_xydata()) for line in ax.lines if not str(line.get_label()).startswith("_")]
    found: dict[str | None, list[np.ndarray]] = {}
    for label, points in drawn:
        name = None if not label or str(label).startswith("_") else " ".join(str(label).split())
        points = np.asarray(points, float)
        found.setdefault(name, []).append(points[np.isfinite(points).all(axis=1)])
    merged = {name: np.concatenate(parts) for name, parts in found.items()}
    return {name: points[np.argsort(points[:, 0], kind="stable")] for name, points in merged.items() if len(points)}


def _map(ax: "Axes") -> list[str]:
    """Of a map of colours: where it is highest, and where its other rows are; blank rows are left out."""
    grid = next((one for one in ax.collections if isinstance(one, QuadMesh)), None)
    if grid is None or ax.get_label() == "<colorbar>":
        return []
    values, names = np.ma.filled(np.ma.masked_invalid(grid.get_array()), -np.inf), _words(ax.yaxis)
    edges = grid.get_coordinates()
    middles = (edges[0, :-1, 0] + edges[0, 1:, 0]) / 2
    tops = [(row.max(), middles[row.argmax()], names[number]) for number, row in enumerate(values)]
    tops = sorted((top for top in tops if np.isfinite(top[0])), key=lambda top: -top[0])
    if not tops:
        return []
    value, place, name = tops[0]
    claim = f"{_bare(ax.get_title(loc='left'))} is highest at {_bare(_across(ax))} {place:g} ({_number(value)}; {name})"
    rest = [f"{name} {_number(value)} at {place:g}" for value, place, name in tops[1:_MOST]]
    return [claim, *rest]


def _values(ax: "Axes", points: np.ndarray) -> np.ndarray:
    """What was measured: lengths along x where the rows have names, else heights."""
    return points[:, 1 if _words(ax.yaxis) is None else 0]


def _places(ax: "Axes", points: np.ndarray) -> list[str]:
    """Where each point stands on the other axis, without the little shift that keeps series apart."""
    if (rows := _words(ax.yaxis)) is not None:
        return [_nearest(rows, y) for y in points[:, 1]]
    if (columns := _words(ax.xaxis, numbers=True)) is not None:
        return [_nearest(columns, x) for x in points[:, 0]]
    rounded = _whole if _of_whole_numbers(ax.xaxis) else _decade if ax.get_xscale() == "log" else _number
    return [rounded(x) for x in points[:, 0]]


def _nearest(words: dict[float, str], place: float) -> str:
    return words[min(words, key=lambda one: abs(one - place))]


def _whole(value: float) -> str:
    return f"{round(value)}"


def _decade(value: float) -> str:
    if value <= 0:
        return _number(value)
    power = round(np.log10(value))
    return _number(10.0**power if abs(np.log10(value) - power) < 0.2 else value)


def _words(axis: "Axis", *, numbers: bool = False) -> dict[float, str] | None:
    """Place -> name of an axis whose ticks are words, or with `numbers` written beside places that are not these; None: they
    are numbers."""
    places = _ticks(axis)
    names = axis.get_major_formatter().format_ticks(places) if len(places) else []
    written = numbers and isinstance(axis.get_major_formatter(), (FixedFormatter, FuncFormatter))
    if all(re.match(r"[-−\d.$]", name) for name in names if name) and not (written and any(names)):
        return None
    return {float(place): " ".join(name.split()) for place, name in zip(places, names, strict=True)}


def _of_whole_numbers(axis: "Axis") -> bool:
    places = _ticks(axis)
    return len(places) > 0 and all(float(place).is_integer() for place in places)


def _ticks(axis: "Axis") -> np.ndarray:
    """Ticks that were set by hand."""
    locator = axis.get_major_locator()
    return np.asarray(locator.locs if isinstance(locator, FixedLocator) else [])


def _spread(axis: "Axis", value: np.ndarray) -> float:
    """How far values lie apart as they are seen; of equal ones the first series is told."""
    if axis.get_scale() == "log":
        value = np.log10(np.maximum(value, 1e-300))
    return float(f"{np.ptp(value):.1g}")


def _extreme(value: np.ndarray) -> int | None:
    """Where a curve is highest, or lowest, if that is well beyond both of its ends."""
    low, high = int(value.argmin()), int(value.argmax())
    over, under = value[high] - max(value[0], value[-1]), min(value[0], value[-1]) - value[low]
    if max(over, under) <= _SEEN * np.ptp(value):
        return None
    return high if over >= under else low


def _label(ax: "Axes") -> str:
    """What is measured: the label of its axis, which may stand at another panel that shares it."""
    axis = "y" if _words(ax.yaxis) is None else "x"
    labels = [getattr(one, f"get_{axis}label")() for one in (ax, *ax.get_shared_y_axes().get_siblings(ax))]
    return next((label for label in labels if label), "value")


def _across(ax: "Axes") -> str:
    """The label below, which may stand at another panel that shares the axis."""
    labels = [one.get_xlabel() for one in (ax, *ax.get_shared_x_axes().get_siblings(ax))]
    return next((label for label in labels if label), "")


def _what(ax: "Axes") -> str:
    return _bare(_label(ax))


def _unit(ax: "Axes") -> str:
    """` ms` of `time (ms)`."""
    found = re.search(r"\((%|\w{1,3})\)", _label(ax))
    return f" {found[1]}" if found else ""


def _where(ax: "Axes") -> str:
    """What comes before a place: the name of its axis, unless the place has a name of its own."""
    label = _bare(_across(ax))
    return f"{label} " if label and _words(ax.xaxis) is None and _words(ax.yaxis) is None else ""


def _bare(label: str) -> str:
    """A label without what stands in brackets."""
    return re.sub(r" +(?=,)", "", " ".join(re.sub(r"\(.*?\)", "", label).split()))


def _number(value: float) -> str:
    return re.sub(r"e([-+])0*(\d)", r"e\1\2", f"{value:.3g}").replace("e+", "e")


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
