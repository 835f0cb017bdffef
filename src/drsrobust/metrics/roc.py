"""Area under the ROC curve, exact: pairs are counted in integers."""

import numpy as np

from drsrobust.metrics.inputs import checked
from drsrobust.metrics.order import argsort_keys, best_first_keys


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Area under the ROC curve (Mann-Whitney, ties count 1/2), exact up to its last division.

    Args:
        labels: [n], 0 or 1.
        scores: [n], higher for clicks; NaN and infinities are allowed.

    Returns:
        P(score of a click > score of another row) + P(equal or not comparable) / 2; NaN when only one class is there.

    Raises:
        ValueError: labels and scores of different lengths, or a label other than 0 and 1.

    Example:
        >>> auc(np.array([0, 1, 0, 1]), np.array([0.1, 0.4, 0.35, float("nan")]))
        0.75
    """
    clicked, scores = checked(labels, scores)
    clicks = int(np.count_nonzero(clicked))
    return share_won(twice_won(clicked, scores), clicks, len(clicked) - clicks)


def share_won(twice: int, clicks: int, others: int) -> float:
    """AUC from twice the number of pairs that clicks win; NaN where there is no pair."""
    return twice / (2 * clicks * others) if clicks and others else float("nan")


def twice_won(clicked: np.ndarray, scores: np.ndarray) -> int:
    """Twice the number of pairs (click, other row) whose click scores higher; ties and pairs with a NaN count one.

    The trapezoids under the ROC curve, from the best score to the worst.

    Args:
        clicked: bool [n].
        scores: [n].
    """
    clicks = int(np.count_nonzero(clicked))
    pairs = clicks * (len(clicked) - clicks)
    keys = best_first_keys(scores)
    order = argsort_keys(keys)
    known = len(keys) - int(np.count_nonzero(np.isnan(scores)))
    keys, clicked = keys.take(order)[:known], clicked.take(order)[:known]  # a NaN comes last
    ends = np.flatnonzero(np.append(keys[1:] != keys[:-1], [True] * bool(known))) + 1  # of runs of equal scores
    edges = np.concatenate([[0], ends])
    clicks_at = np.concatenate([[0], np.cumsum(clicked, dtype=np.int64)]).take(edges)
    others_at = edges - clicks_at
    twice_lost = int(((clicks_at[1:] - clicks_at[:-1]) * (others_at[1:] + others_at[:-1])).sum())
    pairs_known = int(clicks_at[-1]) * int(others_at[-1])
    return 2 * pairs_known - twice_lost + (pairs - pairs_known)
