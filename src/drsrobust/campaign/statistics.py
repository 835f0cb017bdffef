"""Intervals, as plain functions on arrays."""

import numpy as np

LEVEL = 0.95


def mean_interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float, float]:
    """Mean of values [n] and its confidence interval by Student's t: m +- t_(n-1) s / sqrt(n).

    With one value the ends are NaN; with none all three are. Values that are all equal give an interval of no width: it
    says nothing of outcomes rarer than about 3 / n.

    Example:
        >>> mean_interval(np.array([1.0, 2.0, 3.0]))
        (2.0, -0.48413771175033..., 4.48413771175033...)
    """
    from scipy.stats import t

    values = np.asarray(values, np.float64)
    n = len(values)
    if n < 2:
        return (float(values[0]) if n else float("nan")), float("nan"), float("nan")
    if values.min() == values.max():  # the formula would give a width of rounding
        return (float(values[0]),) * 3
    mean = float(values.mean())
    half = float(t.ppf((1 + level) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return mean, mean - half, mean + half


def wilson(count: int, n: int, level: float = LEVEL) -> tuple[float, float, float]:
    """Share count / n and its Wilson score interval (Wilson, JASA 22, 1927); NaN when n is 0.

    Example:
        >>> wilson(0, 100)
        (0.0, 0.0, 0.03699...)
    """
    from scipy.stats import binomtest

    if not n:
        return float("nan"), float("nan"), float("nan")
    interval = binomtest(int(count), int(n)).proportion_ci(level, method="wilson")
    return count / n, float(interval.low), float(interval.high)
