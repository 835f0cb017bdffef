"""Decisions that errors change: what counts as an incorrect output of a recommender.

The parameter vulnerability factor (PVF) is the share of injections that give an incorrect output (Jiao et al.,
arXiv:2405.01741); what is incorrect is a choice: a row on the other side of the click threshold, or a logit that moved.
"""

import math

import numpy as np

from drsrobust.metrics.inputs import columns

THRESHOLD = 0.5
EPSILON = 1e-3


def flipped(scores: np.ndarray, golden: np.ndarray, threshold: float = THRESHOLD) -> float:
    """Share of rows whose click decision, probability > threshold, is not the golden one; NaN without rows.

    Logits are compared with log(threshold / (1 - threshold)), so that no sigmoid rounds. A score that is NaN is an incorrect
    decision always.

    Args:
        scores, golden: logits [n] each.
        threshold: a probability, in (0, 1).

    Raises:
        ValueError: arrays of different lengths, or a threshold outside (0, 1).

    Example:
        >>> flipped(np.array([1.0, -1.0, np.nan, 5.0]), np.array([2.0, 2.0, -2.0, 0.1]))
        0.5
    """
    scores, golden = columns(scores=scores, golden=golden)
    return _share(is_flipped(scores, golden, cut(threshold)))


def moved(scores: np.ndarray, golden: np.ndarray, epsilon: float = EPSILON) -> float:
    """Share of rows whose logit is more than epsilon away from the golden one; NaN and infinities have always moved. NaN
    without rows.

    Args:
        scores, golden: logits [n] each.
        epsilon: in logits, 0 or more.

    Raises:
        ValueError: arrays of different lengths, or an epsilon that is negative or not finite.

    Example:
        >>> moved(np.array([1.0, 1.01, np.inf, np.nan]), np.array([1.0, 1.0, 1.0, 1.0]))
        0.75
    """
    scores, golden = columns(scores=scores, golden=golden)
    return _share(is_moved(scores, golden, checked_epsilon(epsilon)))


def cut(threshold: float) -> np.float64:
    """The logit of a probability in (0, 1).

    Raises:
        ValueError: another number.
    """
    if not 0 < threshold < 1:
        raise ValueError(f"threshold is {threshold}; it must be a probability between 0 and 1, both excluded")
    return np.float64(math.log(threshold) - math.log1p(-threshold))


def checked_epsilon(epsilon: float) -> float:
    """A distance in logits, finite, 0 or more.

    Raises:
        ValueError: another number.
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon}; it must be a finite distance in logits, 0 or more")
    return float(epsilon)


def is_flipped(scores: np.ndarray, golden: np.ndarray, at: np.float64) -> np.ndarray:
    """Rows, bool [n], on the other side of the logit `at` than golden, or NaN. In float64, lest the cut be rounded."""
    with np.errstate(invalid="ignore"):
        return ((scores > at) != (golden > at)) | np.isnan(scores) | np.isnan(golden)


def is_moved(scores: np.ndarray, golden: np.ndarray, epsilon: float) -> np.ndarray:
    """Rows, bool [n], more than epsilon away from golden, or not finite. In float64, where no float32 difference overflows."""
    with np.errstate(invalid="ignore", over="ignore"):
        return ~(np.abs(np.subtract(scores, golden, dtype=np.float64)) <= epsilon)


def _share(rows: np.ndarray) -> float:
    return float(np.count_nonzero(rows) / len(rows)) if len(rows) else float("nan")
