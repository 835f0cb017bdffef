"""The best multiplier of bounds, by a grid and golden sections."""

import math
from collections.abc import Callable, Sequence

_RATIO = (math.sqrt(5) - 1) / 2


def best_multiplier(
    score: Callable[[float], float], multipliers: Sequence[float], steps: int
) -> tuple[float, list[tuple[float, float]]]:
    """Tries every multiplier of a grid, then narrows the interval between the neighbours of the best by golden sections of
    its logarithm (Kiefer 1953): two new multipliers in the first step, one in each later one. Of a score with one peak this
    finds it; of any other, a good place.

    Args:
        score: multiplier -> number, higher is better; called once for each.
        multipliers: in any order.
        steps: of golden sections.

    Returns:
        the best of all that were tried (of equals the largest), and (multiplier, score) of each in the order tried.

    Raises:
        ValueError: no multiplier, one that is not positive, a negative number of steps, or a score that is NaN.

    Example:
        >>> best_multiplier(lambda m: -abs(m - 3), [1, 2, 4, 8], steps=0)
        (4, [(1, -2), (2, -1), (4, -1), (8, -5)])
    """
    grid = sorted(set(multipliers))
    if not grid or not all(0 < one < math.inf for one in grid):
        raise ValueError(f"multipliers are {list(multipliers)}; they must be one or more finite numbers over 0")
    if steps < 0:
        raise ValueError(f"steps is {steps!r}; it must be 0 or more")
    tried: dict[float, float] = {}

    def value(multiplier: float) -> float:
        if multiplier not in tried:
            tried[multiplier] = score(multiplier)
            if math.isnan(tried[multiplier]):
                raise ValueError(f"the score of the bounds times {multiplier:g} is NaN")
        return tried[multiplier]

    for one in grid:
        value(one)
    best = max(grid, key=lambda one: (tried[one], one))
    if steps and len(grid) > 1:
        at = grid.index(best)
        low, high = math.log(grid[max(at - 1, 0)]), math.log(grid[min(at + 1, len(grid) - 1)])
        left, right = high - _RATIO * (high - low), low + _RATIO * (high - low)
        for _ in range(steps):  # the first one tries both inner points, each later one the point that is new
            if value(math.exp(left)) > value(math.exp(right)):
                high, right = right, left
                left = high - _RATIO * (high - low)
            else:
                low, left = left, right
                right = low + _RATIO * (high - low)
    best = max(tried, key=lambda one: (tried[one], one))
    return best, list(tried.items())
