"""A curve over all rates from one campaign: a metric given the number of errors, weighted by the binomial of each rate.

At bit error rate p the number of errors among N bits is K ~ Binomial(N, p), and given K they are a uniform K-subset. So

    E[metric; p] = sum_k P(K = k; p) m_k,   m_k = E[metric | k errors],

a stratification by K (conditioning: W. G. Cochran, Sampling Techniques, 3rd ed., 1977, chapter 5; S. M. Ross, Simulation,
section 9.3). The m_k come from trials of `FixedCount(k)` on a grid of k; a trial's map of fewer errors is part of its map of
more. So the values of one trial depend on each other: they are weighted first, and the mean over trials comes last.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics.intervals import CONFIDENCE, bounded_interval, mean_interval

if TYPE_CHECKING:
    import pandas as pd

LINEAR = 4  # errors: interpolation is linear up to here, logarithmic beyond
TAIL = 1e-9  # of the binomial, at each end, that sums omit
ABOVE = 1e-3  # of the binomial that may lie above the last point of the grid
NEGLIGIBLE = 1e-6  # weight of a point at which a raised trial does not count
_CELLS = 4096  # numbers of errors at which a binomial is evaluated


def error_count_grid(bits: int, rates: Sequence[float], growth: float = 2.0, tail: float = 1e-6) -> list[int]:
    """Numbers of errors for trials that give the curve over all `rates`: 0, and the whole numbers next to growth^i over the
    range of errors at these rates. The grid for more rates includes the grid for fewer.

    Args:
        bits: N, eligible bits.
        rates: bit error rates in [0, 1].
        growth: of one point over the one before, more than 1. Less growth gives less error of interpolation and more points.
        tail: probability that may lie beyond either end.

    Raises:
        ValueError: an argument out of its range.

    Example:
        >>> error_count_grid(10**6, [1e-7, 1e-5])
        [0, 1, 2, 4, 8, 16, 32]
    """
    from scipy.stats import binom

    if not growth > 1:
        raise ValueError(f"growth is {growth!r}; it must be more than 1")
    found = _rates(rates)
    highest = int(binom.ppf(1 - tail, bits, found.max()))
    lowest = max(0, int(binom.ppf(tail, bits, found.min())))
    points, step = [0], 1.0
    while points[-1] < highest:
        points.append(min(max(points[-1] + 1, round(step)), bits))
        step *= growth
    # Two more points below the lowest rate's errors, to estimate the error of interpolation.
    first = max(int(np.searchsorted(points, lowest, side="right")) - 3, 1)
    return [0, *points[first:]]


def binomial_weights(error_count_grid: Sequence[int], bits: int, rates: Sequence[float]) -> np.ndarray:
    """The weight of each grid point at each rate: E[metric; p] = sum of weight times the metric at the point.

    Between two points the metric is interpolated: linearly in k up to 4 errors, where each error acts by itself; linearly in
    log k beyond, where errors saturate. (For a loss 1 - exp(-k / k_0) on a grid that doubles, log k is off by at most 0.015 of
    the whole loss, linear in k by 0.022. Where the loss is proportional to k, log k is off by up to 6 % of it.) Errors above
    the last point count as the last point.

    Args:
        error_count_grid: points, ascending, the first of them 0.
        bits: N, eligible bits.
        rates: [rates], bit error rates in [0, 1].

    Returns:
        float64 [rates, points]; rows sum to 1.

    Raises:
        ValueError: another grid; more than 0.001 of a rate's probability above the last point.

    Example:
        >>> binomial_weights([0, 1, 2, 4], bits=1000, rates=[0, 5e-4]).round(2)
        array([[1.  , 0.  , 0.  , 0.  ],
               [0.61, 0.3 , 0.08, 0.01]])
    """
    from scipy.stats import binom

    points = _points(error_count_grid, bits)
    found = _rates(rates)
    weights = np.zeros((len(found), len(points)))
    for row, rate in zip(weights, found, strict=True):
        if (above := binom.sf(points[-1], bits, rate)) > ABOVE:
            raise ValueError(
                f"at rate {rate:g} {above:.2g} of the probability lies above the last point, {points[-1]} errors "
                f"among {bits} bits; a grid up to {int(binom.isf(1e-6, bits, rate))} covers it"
            )
        errors, mass = _binomial(bits, rate)
        left = np.clip(np.searchsorted(points, errors, side="right") - 1, 0, max(len(points) - 2, 0))
        right = np.minimum(left + 1, len(points) - 1)
        share = _between(errors, points[left], points[right])
        np.add.at(row, left, mass * (1 - share))
        np.add.at(row, right, mass * share)
    return weights


def curve_from_counts(
    values: np.ndarray,
    error_count_grid: Sequence[int],
    bits: int,
    rates: Sequence[float],
    confidence: float = CONFIDENCE,
    bounds: tuple[float, float] | None = None,
) -> "pd.DataFrame":
    """The mean of a metric at each rate, with its interval over trials.

    The values of each trial are weighted by `binomial_weights`, then averaged over trials. Points of one trial share errors: an
    interval that takes them as independent is too narrow (at 95 % it covers some 80 %).

    `interpolation_error` estimates the error of interpolation: half the change of the result without every other point, for the
    half of the points that changes it more. It includes noise, and is not part of the interval.

    Args:
        values: [trials, points], the metric of every trial at each number of errors; the first column is the golden metric. NaN
            where a model raised: that trial is dropped at rates where the point has weight.
        error_count_grid, bits, rates: as in `binomial_weights`.
        confidence: of the interval.
        bounds: least and greatest possible value. With them the interval is that of `bounded_interval`, which holds also where
            few trials or none show harm; else Student's t, whose ends are NaN where all trials agree.

    Returns:
        one row per rate: `rate`, `mean`, `low`, `high`, `interpolation_error` (NaN with fewer than two
        points to omit, 0 if no number of errors was skipped), `n` (trials).

    Raises:
        ValueError: values of another shape, golden values that differ, or as `binomial_weights`.

    Example:
        >>> values = np.array([[0.8, 0.8, 0.7], [0.8, 0.6, 0.6]])
        >>> curve_from_counts(values, [0, 1, 2], bits=100, rates=[1e-4])[["rate", "mean", "interpolation_error", "n"]].round(6)
             rate      mean  interpolation_error  n
        0  0.0001  0.799002                  0.0  2
    """
    import pandas as pd

    values = np.asarray(values, np.float64)
    points = _points(error_count_grid, bits)
    if values.ndim != 2 or values.shape[1] != len(points) or not len(values):
        raise ValueError(f"values have shape {values.shape}; they must be [trials, {len(points)} points]")
    golden = values[0, 0]
    if not (values[:, 0] == golden).all():
        raise ValueError("the first column differs between trials; without errors all trials have the golden metric")
    weights = binomial_weights(points, bits, rates)
    coarser = [_without(points, dropped, bits, rates) for dropped in _halves(points)]
    raised = np.isnan(values)
    filled = np.where(raised, golden, values)  # counts with a weight of less than NEGLIGIBLE
    rows = []
    for number, rate in enumerate(_rates(rates)):
        weight = weights[number]
        there = ~(raised & (weight > NEGLIGIBLE)).any(axis=1)
        mixtures = filled[there] @ weight
        if weight[0] == 1:  # no error, and nothing to sample
            mean = low = high = float(golden)
        elif bounds is None:
            mean, low, high = mean_interval(mixtures, confidence)
        else:
            # A weighted value is w_0 golden + (1 - w_0) y with y between the bounds.
            without = float(weight[0])
            rest = (mixtures - golden * without) / (1 - without) if without < 1 else np.full(len(mixtures), golden)
            part = bounded_interval(np.clip(rest, *bounds), bounds, confidence)
            mean, low, high = (float(golden * without + (1 - without) * end) for end in part)
        changes = []
        for change in (weight - one[number] for one in coarser):
            also = ~(raised & (abs(change) > NEGLIGIBLE)).any(axis=1)
            changes.append(abs(float((filled[also] @ change).mean())) if also.any() else float("nan"))
        error = max(changes) / 2 if changes else float("nan")
        row = {"rate": float(rate), "mean": mean, "low": low, "high": high, "interpolation_error": error}
        rows.append(row | {"n": len(mixtures)})
    return pd.DataFrame(rows)


def _rates(rates: Sequence[float]) -> np.ndarray:
    found = np.atleast_1d(np.asarray(rates, np.float64))
    if not found.size or not ((found >= 0) & (found <= 1)).all():
        raise ValueError(f"rates are {rates!r}; they must be one or more numbers from 0 to 1")
    return found


def _points(error_count_grid: Sequence[int], bits: int) -> np.ndarray:
    points = np.asarray(error_count_grid, np.int64)
    if not len(points) or points[0] != 0 or (np.diff(points) <= 0).any() or points[-1] > bits:
        raise ValueError(
            f"the grid is {list(error_count_grid)}; it must ascend from 0 errors to at most {bits}, the number of bits"
        )
    return points


def _binomial(bits: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of errors and their probabilities; many numbers are grouped into cells, each at its middle."""
    from scipy.stats import binom

    if rate in (0, 1):
        return np.array([bits * rate]), np.ones(1)
    low = max(int(binom.ppf(TAIL, bits, rate)) - 1, 0)
    high = min(int(binom.isf(TAIL, bits, rate)) + 1, bits)
    if high - low < _CELLS:
        errors = np.arange(low, high + 1)
        mass = binom.pmf(errors, bits, rate)
    else:
        ends = np.round(np.linspace(low - 1, high, _CELLS + 1))
        errors = (ends[:-1] + 1 + ends[1:]) / 2
        mass = np.diff(binom.cdf(ends, bits, rate))
    return errors.astype(np.float64), mass / mass.sum()


def _between(errors: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Position of numbers of errors between the point on their left (0) and on their right (1)."""
    errors, gap = np.minimum(errors, right), np.maximum(right - left, 1)
    logarithmic = (right > LINEAR) & (left > 0) & (right > left)
    start = np.where(logarithmic, left, 1)
    end = np.where(logarithmic, right, 2)
    return np.where(logarithmic, np.log(np.maximum(errors, 1) / start) / np.log(end / start), (errors - left) / gap)


def _halves(points: np.ndarray) -> list[np.ndarray]:
    """Indices of inner points next to skipped numbers, every other one in either half."""
    gaps = np.diff(points)
    if (gaps == 1).all():
        return [np.zeros(0, np.int64)]  # nothing is interpolated
    inner = np.arange(1, len(points) - 1)
    inner = inner[(gaps[:-1] > 1) | (gaps[1:] > 1)]
    return [half for half in (inner[::2], inner[1::2]) if len(half)]


def _without(points: np.ndarray, dropped: np.ndarray, bits: int, rates: Sequence[float]) -> np.ndarray:
    """As `binomial_weights`, with weight 0 for dropped points."""
    kept = np.setdiff1d(np.arange(len(points)), dropped)
    weights = np.zeros((len(_rates(rates)), len(points)))
    weights[:, kept] = binomial_weights(points[kept], bits, rates)
    return weights
