"""What an AUC on some rows says of all rows: DeLong's variance, for one model and for two on the same rows.

Sources: E. R. DeLong, D. M. DeLong and D. L. Clarke-Pearson, Biometrics 44(3), 1988; by ranks in O(n log n): X. Sun and W. Xu,
IEEE Signal Processing Letters 21(11), 2014.
"""

import numpy as np

from drsrobust.campaign.statistics import LEVEL
from drsrobust.metrics import auc


def placements(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every click the share of other rows that score below it, for every other row the share of clicks that score above
    it. Ties and pairs with a NaN count 1/2, as in `metrics.auc`, which is the mean of either.

    Args:
        labels: [n], 0 or 1; both must be there.
        scores: [n], higher for clicks.

    Returns:
        float64 [clicks] and float64 [others], in the order of the rows.

    Raises:
        ValueError: rows of one class.
    """
    from scipy.stats import rankdata

    clicked, scores = np.asarray(labels).ravel() == 1, np.asarray(scores, np.float64).ravel()
    known = ~np.isnan(scores)
    m, n = int(clicked.sum()), int((~clicked).sum())
    if not m or not n:
        raise ValueError(f"{m} clicks and {n} other rows; an AUC needs both")
    clicks, others = clicked & known, ~clicked & known
    rank = np.zeros(len(scores))
    rank[known] = rankdata(scores[known])
    above, below = np.full(len(scores), n / 2), np.full(len(scores), m / 2)
    above[clicks] = rank[clicks] - rankdata(scores[clicks]) + (n - others.sum()) / 2
    below[others] = m - (rank[others] - rankdata(scores[others]) + (m - clicks.sum()) / 2)
    return above[clicked] / n, below[~clicked] / m


def auc_interval(labels: np.ndarray, scores: np.ndarray, level: float = LEVEL) -> tuple[float, float, float]:
    """AUC of scores [n] for labels [n] and its confidence interval over rows: auc +- z sqrt(DeLong's variance), within [0, 1].

    Raises:
        ValueError: rows of one class, or fewer than two of either.

    Example:
        >>> auc_interval(np.array([0, 0, 0, 1, 1, 1]), np.array([1.0, 2.0, 3.0, 2.5, 3.5, 4.0]))
        (0.88888888888888..., 0.5809..., 1.0)
    """
    value = auc(labels, scores)
    half = _z(level) * np.sqrt(_variance(*placements(labels, scores)))
    return value, float(max(0.0, value - half)), float(min(1.0, value + half))


def auc_difference(
    labels: np.ndarray, scores: np.ndarray, others: np.ndarray, level: float = LEVEL
) -> tuple[float, float, float, float]:
    """AUC(scores) - AUC(others) on the same rows, its confidence interval over rows, and the two-sided p-value that there is
    no difference: the rows that both find hard cancel.

    Args:
        labels: [n], 0 or 1.
        scores, others: [n] each.

    Returns:
        difference, low, high, p (NaN where the scores rank all rows alike, so that the difference is 0 without doubt).

    Raises:
        ValueError: rows of one class, or fewer than two of either.
    """
    from scipy.stats import norm

    value = auc(labels, scores) - auc(labels, others)
    one, two = placements(labels, scores), placements(labels, others)
    error = np.sqrt(_variance(one[0] - two[0], one[1] - two[1]))
    p = float(2 * norm.sf(abs(value) / error)) if error > 0 else float("nan")
    half = _z(level) * error
    return value, float(value - half), float(value + half), p


def _variance(clicks: np.ndarray, others: np.ndarray) -> float:
    if min(len(clicks), len(others)) < 2:
        raise ValueError(f"{len(clicks)} clicks and {len(others)} other rows; a variance needs two of each")
    return float(clicks.var(ddof=1) / len(clicks) + others.var(ddof=1) / len(others))


def _z(level: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf((1 + level) / 2))
