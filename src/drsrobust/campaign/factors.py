"""Grids over the sizes of a model: every combination, or one factor at a time around a middle."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product


def factor_grid(levels: Mapping[str, Sequence[float]], *, full: bool = False) -> list[dict[str, float]]:
    """Cells of a grid over several factors, the middle one first.

    Args:
        levels: of each factor. The middle cell has the middle one of each (of an even number the lower of the two).
        full: every combination; False: all levels of one factor after the other, the others at their middle.

    Raises:
        ValueError: a factor without levels, with one that stands twice, or with levels that do not ascend.

    Example:
        >>> factor_grid({"width": [64, 128, 256, 512], "depth": [1, 2]})
        ... # doctest: +NORMALIZE_WHITESPACE
        [{'width': 128, 'depth': 1}, {'width': 64, 'depth': 1}, {'width': 256, 'depth': 1}, {'width': 512, 'depth': 1},
         {'width': 128, 'depth': 2}]
    """
    for factor, given in levels.items():
        if not given or any(one >= other for one, other in zip(given, given[1:], strict=False)):
            raise ValueError(f"levels of {factor} are {list(given)}; there must be one or more, ascending, none twice")
    middle = {factor: given[(len(given) - 1) // 2] for factor, given in levels.items()}
    if full:
        cells = [dict(zip(levels, one, strict=True)) for one in product(*levels.values())]
    else:
        cells = [middle | {factor: level} for factor, given in levels.items() for level in given]
    return [middle, *(cell for number, cell in enumerate(cells) if cell != middle and cell not in cells[:number])]


def ladders(cells: Sequence[Mapping[str, float]], factor: str) -> Iterator[list[dict[str, float]]]:
    """The cells of a grid that differ in one factor alone, ascending: each list has all of the factor's levels.

    Example:
        >>> [[one["depth"] for one in ladder] for ladder in ladders(factor_grid({"width": [1, 2], "depth": [1, 2]}), "depth")]
        [[1, 2]]
    """
    levels = {cell[factor] for cell in cells}
    found: dict[tuple, list[dict[str, float]]] = {}
    for cell in cells:
        found.setdefault(tuple((name, cell[name]) for name in cell if name != factor), []).append(dict(cell))
    for ladder in found.values():
        if len(ladder) == len(levels):
            yield sorted(ladder, key=lambda cell: cell[factor])
