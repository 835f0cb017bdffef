"""An upper bound of the expected loss that holds for all plans at once, from the error maps that the plan was chosen on.

The solver picks among very many plans on these maps, so the mean loss of its choice is too low, and an interval of one plan
does not hold for it. With m_gk the mean loss of option k of tensor g and s_gk its standard error, all plans together have

    expected loss <= sum_g (m_gk + f s_gk) + c    with probability 95 %.

f is the 97.5 % quantile, over bootstrap samples of whole maps within strata, of the largest ratio of sum_g (m*_gk - m_gk) to
sum_g s_gk over all plans. c covers what the maps may not have shown (`rule_of_three` of each stratum, at 97.5 % together),
on the assumption that no such loss is larger than the largest of its stratum. The bound is linear in the choice, so that a plan
can minimise it.
"""

from dataclasses import dataclass

import numpy as np

from drsrobust.statistics import CONFIDENCE, rule_of_three

RESAMPLES = 999


@dataclass(frozen=True)
class Uncertainty:
    """How far losses may lie over their means.

    Attributes:
        mean, error: float64 [tensors, options], means over maps and their standard errors; NaN where an option is missing.
        factor: of the standard errors, in the simultaneous bound.
        bonferroni: the same by Student's t at 1 - 0.025 / number of coefficients: the check.
        unseen: what the maps may not have shown.
    """

    mean: np.ndarray
    error: np.ndarray
    factor: float
    bonferroni: float
    unseen: float

    @property
    def upper(self) -> np.ndarray:
        """float64 [tensors, options]; its sum over a plan plus `unseen` is the bound."""
        return self.mean + self.factor * self.error

    def spread(self, shares: np.ndarray) -> np.ndarray:
        """What the maps may not have shown, spread over tensors by their shares of the bits, float64 [tensors, options]. An
        option leaves as much of it as it left of the mean losses that were seen. Without it a plan would leave tensors
        unprotected only because no map happened to do harm there."""
        without = np.where(np.isnan(self.mean), np.nan, self.mean[:, :1])
        with np.errstate(invalid="ignore", divide="ignore"):
            remaining_share = np.nansum(self.mean, axis=0) / np.nansum(without, axis=0)
        return (
            self.unseen
            * shares[:, None]
            * np.clip(np.where(np.isfinite(remaining_share), remaining_share, 1.0), 0.0, 1.0)
        )


def uncertainty(values: np.ndarray, members: np.ndarray, weights: np.ndarray, *, seed: int = 0) -> Uncertainty:
    """The simultaneous bound.

    Args:
        values: float64 [maps, tensors, options], losses; NaN where a tensor lacks an option.
        members: bool [strata, maps]; two maps or more in each.
        weights: float64 [strata], their probabilities.
        seed: of the bootstrap.
    """
    from scipy.special import stdtrit

    n = members.sum(axis=1)
    shares = weights @ (members / n[:, None])  # of each map
    mean = np.tensordot(shares, values, 1)
    variance = sum(w**2 * values[m].var(axis=0, ddof=1) / m.sum() for w, m in zip(weights, members, strict=True))
    error = np.sqrt(variance)
    random = np.random.default_rng(seed)
    ratios = []
    for _ in range(RESAMPLES):
        resample = np.zeros(len(values))
        for member in members:
            maps = np.flatnonzero(member)
            resample += np.bincount(random.choice(maps, len(maps)), minlength=len(values))
        ratios.append(largest_ratio(np.tensordot(shares * resample, values, 1) - mean, error))
    alpha = (1 - CONFIDENCE) / 2
    coefficients = int((error > 0).sum())
    largest = [np.nanmax(values[member], axis=2).sum(axis=1).max() for member in members]
    missed = [rule_of_three(int(count), 1 - alpha / len(n)) for count in n]
    return Uncertainty(
        mean,
        error,
        float(np.quantile(ratios, 1 - alpha)),
        float(stdtrit(n.min() - 1, 1 - alpha / max(1, coefficients))),  # one stratum may carry the variance
        float(np.maximum(largest, 0.0) @ (weights * missed)),
    )


def largest_ratio(deviation: np.ndarray, error: np.ndarray) -> float:
    """The largest ratio of the sum of deviations to the sum of errors over all choices of one option per row, 0 or more (W.
    Dinkelbach, "On nonlinear fractional programming", Management Science 13, 1967).

    Args:
        deviation, error: float64 [rows, options]; NaN where an option is missing.

    Example:
        >>> largest_ratio(np.array([[0.0, 2.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 1.0]]))
        2.0
    """
    ratio, rows = 0.0, np.arange(len(error))
    while True:
        option = np.nanargmax(deviation - ratio * error, axis=1)
        top, bottom = deviation[rows, option].sum(), error[rows, option].sum()
        if bottom <= 0 or top <= ratio * bottom * (1 + 1e-12):
            return float(ratio)
        ratio = top / bottom
