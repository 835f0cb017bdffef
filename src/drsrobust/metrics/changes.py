"""Changes of decisions and scores against the golden run.

The parameter vulnerability factor (PVF) is the share of injections that give an incorrect output (Jiao et al.,
arXiv:2405.01741). Here an output is incorrect if its decision at the click threshold changes, or its logit. The relative
deviation of scores and their rank correlation also apply to untrained models.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from drsrobust._arguments import check_number
from drsrobust.metrics._inputs import columns

THRESHOLD = 0.5
EPSILON = 1e-3


def decision_changed(scores: np.ndarray, golden: np.ndarray, threshold: float = THRESHOLD) -> float:
    """Share of rows whose click decision, probability > threshold, is not the golden one; NaN without rows.

    Logits are compared with log(threshold / (1 - threshold)), so that no sigmoid rounds. A score that is NaN is an incorrect
    decision always; `decision_changed_no_click` has another rule, and less `nan_share` this metric leaves out NaN.

    Args:
        scores, golden: logits [n] each.
        threshold: a probability, in (0, 1).

    Raises:
        ValueError: arrays of different lengths, or a threshold outside (0, 1).

    Example:
        >>> decision_changed(np.array([1.0, -1.0, np.nan, 5.0]), np.array([2.0, 2.0, -2.0, 0.1]))
        0.5
    """
    scores, golden = columns(scores=scores, golden=golden)
    return _share(is_flipped(scores, golden, cut(threshold)))


def decision_changed_no_click(scores: np.ndarray, golden: np.ndarray, threshold: float = THRESHOLD) -> float:
    """As `decision_changed`, but a score that is NaN is the decision "no click", since NaN > threshold is false: incorrect
    where the golden decision is a click.

    Example:
        >>> decision_changed_no_click(np.array([1.0, -1.0, np.nan, 5.0]), np.array([2.0, 2.0, -2.0, 0.1]))
        0.25
    """
    scores, golden = columns(scores=scores, golden=golden)
    return _share(is_flipped(scores, golden, cut(threshold), nan_wrong=False))


def nan_share(scores: np.ndarray) -> float:
    """Share of rows whose score is NaN; NaN without rows.

    Args:
        scores: [n].

    Example:
        >>> nan_share(np.array([1.0, np.inf, np.nan, 5.0]))
        0.25
    """
    (scores,) = columns(scores=scores)
    return _share(np.isnan(scores))


def score_changed(scores: np.ndarray, golden: np.ndarray, epsilon: float = EPSILON) -> float:
    """Share of rows whose logit is more than epsilon away from the golden one; NaN and infinities have always moved. NaN
    without rows.

    Args:
        scores, golden: logits [n] each.
        epsilon: in logits, 0 or more.

    Raises:
        ValueError: arrays of different lengths, or an epsilon that is negative or not finite.

    Example:
        >>> score_changed(np.array([1.0, 1.01, np.inf, np.nan]), np.array([1.0, 1.0, 1.0, 1.0]))
        0.75
    """
    scores, golden = columns(scores=scores, golden=golden)
    return _share(is_moved(scores, golden, checked_epsilon(epsilon)))


def cut(threshold: float) -> np.float64:
    """The logit of a probability in (0, 1).

    Raises:
        ValueError: another number.
    """
    checked_threshold(threshold)
    return np.float64(math.log(threshold) - math.log1p(-threshold))


def checked_epsilon(epsilon: float) -> float:
    """A distance in logits, finite, 0 or more.

    Raises:
        ValueError: another number.
    """
    return check_number("epsilon", epsilon, "a finite distance in logits, 0 or more", lambda epsilon: epsilon >= 0)


def checked_threshold(threshold: float) -> float:
    """A probability over which the decision is a click.

    Raises:
        ArgumentError: another number.
    """
    right = "a probability between 0 and 1, both excluded"
    return check_number("threshold", threshold, right, lambda threshold: 0 < threshold < 1)


def is_flipped(scores: np.ndarray, golden: np.ndarray, at: np.floating, *, nan_wrong: bool = True) -> np.ndarray:
    """Rows, bool [n], on the other side of `at` than golden, or NaN; without `nan_wrong` a NaN is not over `at`. Logits are
    compared in float64, so that the threshold is exact."""
    with np.errstate(invalid="ignore"):
        flipped = (scores > at) != (golden > at)
    return flipped | np.isnan(scores) | np.isnan(golden) if nan_wrong else flipped


def is_moved(scores: np.ndarray, golden: np.ndarray, epsilon: float) -> np.ndarray:
    """Rows, bool [n], more than epsilon away from golden, or not finite where golden is."""
    return ~(_change(scores, golden) <= epsilon)


def is_deviated(scores: np.ndarray, golden: np.ndarray, threshold: float) -> np.ndarray:
    """Rows, bool [n], that differ from golden by more than `threshold` times its size, or are not finite where golden is."""
    with np.errstate(invalid="ignore"):  # a NaN with its quiet bit off
        allowed = threshold * np.abs(golden.astype(np.float64))
    allowed[np.isinf(golden)] = 0.0
    return ~(_change(scores, golden) <= allowed)


def _share(rows: np.ndarray) -> float:
    return float(np.count_nonzero(rows) / len(rows)) if len(rows) else float("nan")


def deviated(scores: np.ndarray, golden: np.ndarray, threshold: float) -> float:
    """Share of rows whose score differs from the golden one by more than `threshold` times the golden one's size; NaN and
    infinities always do. NaN without rows.

    Args:
        scores, golden: [n] each; golden ones finite.
        threshold: relative, 0 or more: 0.01 is 1 %.

    Raises:
        ValueError: arrays of different lengths, or a threshold that is negative or not finite.

    Example:
        >>> deviated(np.array([1.0, 1.02, np.inf, np.nan]), np.array([1.0, 1.0, 1.0, 1.0]), threshold=0.01)
        0.75
    """
    right = "a finite share of the golden score, 0 or more"
    threshold = check_number("threshold", threshold, right, lambda threshold: threshold >= 0)
    return _share(is_deviated(*columns(scores=scores, golden=golden), threshold))


def median_change(scores: np.ndarray, golden: np.ndarray) -> float:
    """Median over rows of |score - golden score|; a NaN counts as infinitely far. NaN without rows.

    Args:
        scores, golden: [n] each; golden ones finite.

    Raises:
        ValueError: arrays of different lengths.

    Example:
        >>> median_change(np.array([1.0, 1.5, np.nan]), np.array([1.0, 1.0, 1.0]))
        0.5
    """
    change = _change(*columns(scores=scores, golden=golden))
    return float(np.median(np.where(np.isnan(change), np.inf, change))) if len(change) else np.nan


def spearman(scores: np.ndarray, golden: np.ndarray) -> float:
    """Rank correlation (C. Spearman, American Journal of Psychology 15, 1904): Pearson's correlation of ranks, equal scores
    sharing the mean of theirs.

    Infinities keep their order. A NaN carries no information: it is tied with every other row, as in AUC, so it has the middle
    rank and moves all others half a place. 0 where all scores are tied; NaN where the golden ones are, or with fewer than 2
    rows.

    Args:
        scores, golden: [n] each.

    Raises:
        ValueError: arrays of different lengths.

    Example:
        >>> spearman(np.array([1.0, 2.0, np.inf, 3.0]), np.array([0.1, 0.2, 0.3, 0.4]))
        0.8
    """
    scores, golden = columns(scores=scores, golden=golden)
    ranks, golden_ranks = _centred_ranks(scores), _centred_ranks(golden)
    scale = np.sqrt((ranks @ ranks) * (golden_ranks @ golden_ranks))
    if not golden_ranks.any():
        return float("nan")
    return float(np.clip(ranks @ golden_ranks / scale, -1.0, 1.0)) if scale else 0.0


DEVIATED = {"deviated_0.01": 0.01, "deviated_0.1": 0.1}  # thresholds of `deviated`
# Those that campaigns know by name: (scores, golden) -> number.
DEVIATIONS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    **{name: partial(deviated, threshold=threshold) for name, threshold in DEVIATED.items()},
    "median_change": median_change,
    "spearman": spearman,
}


def _change(scores: np.ndarray, golden: np.ndarray) -> np.ndarray:
    """|scores - golden|, float64: there no difference of float32 overflows. 0 where both are the same infinity, as scores of
    items that a model masks."""
    with np.errstate(invalid="ignore", over="ignore"):  # a NaN with its quiet bit off; float64 scores
        change = np.abs(np.subtract(scores, golden, dtype=np.float64))
    change[np.isinf(golden) & (scores == golden)] = 0.0
    return change


def _centred_ranks(scores: np.ndarray) -> np.ndarray:
    """Ranks less their mean (n + 1) / 2, float64 [n]; 0 for NaN. All are multiples of 1/2, so their sums are exact."""
    from scipy.stats import rankdata

    is_number = ~np.isnan(scores)
    ranks = np.zeros(len(scores))
    ranks[is_number] = rankdata(scores[is_number]) - (np.count_nonzero(is_number) + 1) / 2
    return ranks
