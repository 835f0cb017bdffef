"""What an AUC on some rows says of all rows: DeLong's variance, for one model and for two on the same rows.

Sources: E. R. DeLong, D. M. DeLong and D. L. Clarke-Pearson, Biometrics 44(3), 1988; by ranks in O(n log n): X. Sun and W. Xu,
IEEE Signal Processing Letters 21(11), 2014.

Where all placements of a class are equal, as of scores that separate the classes or of two models that rank all rows alike,
they have no variance. That is certain of these rows and not of others: a share of up to `unseen(rows of the class)` of all rows
may be placed anywhere, and widens the interval, added in squares.
"""

import numpy as np

from drsrobust.campaign.statistics import LEVEL, unseen
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
    return value, *_ends(value, placements(labels, scores), (0.0, 1.0), level)


def auc_difference(
    labels: np.ndarray, scores: np.ndarray, others: np.ndarray, level: float = LEVEL
) -> tuple[float, float, float, float]:
    """AUC(scores) - AUC(others) on the same rows, its confidence interval over rows, and the two-sided p-value that there is
    no difference: the rows that both find hard cancel.

    Args:
        labels: [n], 0 or 1.
        scores, others: [n] each.

    Returns:
        difference, low, high, p (NaN where the scores rank all rows alike: the difference is 0 on these rows, and the interval
        is what other rows may have; for a protection that never touches a score, as memory with ECC, it is 0 on all rows).

    Raises:
        ValueError: rows of one class, or fewer than two of either.
    """
    from scipy.stats import norm

    value = auc(labels, scores) - auc(labels, others)
    one, two = placements(labels, scores), placements(labels, others)
    error = np.sqrt(_variance(one[0] - two[0], one[1] - two[1]))
    p = float(2 * norm.sf(abs(value) / error)) if error > 0 else float("nan")
    low, high = _ends(value, (one[0] - two[0], one[1] - two[1]), (-1.0, 1.0), level)
    return value, low, high, p


def _ends(
    value: float, classes: tuple[np.ndarray, np.ndarray], bounds: tuple[float, float], level: float
) -> tuple[float, float]:
    """Both ends of the interval of a mean placement, or of a mean difference of placements, of clicks and of others."""
    half = _z(level) * np.sqrt(_variance(*classes))
    shares = [unseen(len(one), level) for one in classes if np.ptp(one) <= 1e-12]  # of classes without variance
    below, above = (np.hypot(half, np.linalg.norm(shares) * abs(bound - value)) for bound in bounds)
    return float(max(bounds[0], value - below)), float(min(bounds[1], value + above))


def _variance(clicks: np.ndarray, others: np.ndarray) -> float:
    if min(len(clicks), len(others)) < 2:
        raise ValueError(f"{len(clicks)} clicks and {len(others)} other rows; a variance needs two of each")
    return float(clicks.var(ddof=1) / len(clicks) + others.var(ddof=1) / len(others))


def _z(level: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf((1 + level) / 2))
