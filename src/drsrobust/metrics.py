"""Metrics of click predictions, on raw logits, with one rule for scores that are not numbers.

+inf and -inf keep their order. A NaN carries no information: in AUC every pair it is in counts 1/2; in log loss and
normalised entropy it predicts the click rate of the training rows.
"""

import numpy as np
from scipy.special import expit

P_MIN = 1e-12  # probabilities are clipped to [P_MIN, 1 - P_MIN], as TorchRec's normalised entropy does


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
    positive, scores = _checked(labels, scores)
    pairs = int(positive.sum()) * int((~positive).sum())
    if not pairs:
        return float("nan")
    known = ~np.isnan(scores)
    order = np.argsort(scores[known])
    ordered, clicks = scores[known][order], positive[known][order].astype(np.int64)
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])  # of runs of equal scores
    pairs_known = int(clicks.sum()) * (len(clicks) - int(clicks.sum()))
    twice_wins = 0
    if pairs_known:
        click = np.add.reduceat(clicks, starts)
        other = np.diff(np.append(starts, len(clicks))) - click
        below = np.cumsum(other) - other
        twice_wins = int((click * (2 * below + other)).sum())
    return (twice_wins + (pairs - pairs_known)) / (2 * pairs)


def probabilities(scores: np.ndarray, prior: float) -> np.ndarray:
    """Click probabilities float64 [n] of logits [n]; NaN becomes `prior`, the click rate of the training rows."""
    scores = np.asarray(scores, np.float64)
    return np.clip(np.where(np.isnan(scores), prior, expit(scores)), P_MIN, 1 - P_MIN)


def log_loss(labels: np.ndarray, scores: np.ndarray, prior: float) -> float:
    """Mean binary cross-entropy, in nats, of logits [n] against labels [n]."""
    clicked, scores = _checked(labels, scores)
    p = probabilities(scores, prior)
    return float(-np.mean(np.log(np.where(clicked, p, 1 - p))))


def normalised_entropy(labels: np.ndarray, scores: np.ndarray, prior: float) -> float:
    """Log loss over the entropy of the rows' own click rate (He et al., ADKDD 2014); NaN when only one class is there."""
    rate = float(np.mean(np.asarray(labels) > 0.5))
    if rate in (0.0, 1.0):
        return float("nan")
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    return log_loss(labels, scores, prior) / float(entropy)


def _checked(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are clicks (bool [n]), and scores [n]; [n, 1] will do for both."""
    labels, scores = np.asarray(labels), np.asarray(scores)
    if (
        labels.size != scores.size
        or max(labels.shape, default=0) != labels.size
        or max(scores.shape, default=0) != scores.size
    ):
        raise ValueError(f"labels of shape {labels.shape} and scores of shape {scores.shape}; both must be [n]")
    clicked = labels.ravel() == 1
    if not (clicked | (labels.ravel() == 0)).all():
        raise ValueError(f"labels hold {labels.ravel()[~clicked & (labels.ravel() != 0)][0]}; they must be 0 or 1")
    return clicked, scores.ravel()
