"""How far scores are from the golden ones, whatever they mean: for models that were never trained."""

from collections.abc import Callable

import numpy as np

from drsrobust.metrics.inputs import columns


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
    if not 0 <= threshold < np.inf:
        raise ValueError(f"threshold is {threshold}; it must be a finite share of the golden score, 0 or more")
    change, golden = _change(scores, golden)
    return float(np.count_nonzero(~(change <= threshold * np.abs(golden))) / len(golden)) if len(golden) else np.nan


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
    change, _ = _change(scores, golden)
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
    found, wanted = _centred_ranks(scores), _centred_ranks(golden)
    scale = np.sqrt((found @ found) * (wanted @ wanted))
    if not wanted.any():
        return float("nan")
    return float(np.clip(found @ wanted / scale, -1.0, 1.0)) if scale else 0.0


# Those that campaigns know by name: (scores, golden) -> number.
DEVIATIONS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "deviated_0.01": lambda scores, golden: deviated(scores, golden, 0.01),
    "deviated_0.1": lambda scores, golden: deviated(scores, golden, 0.1),
    "median_change": median_change,
    "spearman": spearman,
}


def _change(scores: np.ndarray, golden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """|scores - golden| and golden, float64 [n] each: there no difference of float32 overflows."""
    scores, golden = columns(scores=scores, golden=golden)
    with np.errstate(invalid="ignore", over="ignore"):  # a NaN with its quiet bit off; float64 scores
        return np.abs(np.subtract(scores, golden, dtype=np.float64)), golden.astype(np.float64)


def _centred_ranks(scores: np.ndarray) -> np.ndarray:
    """Ranks less their mean (n + 1) / 2, float64 [n]; 0 for NaN. All are multiples of 1/2, so their sums are exact."""
    from scipy.stats import rankdata

    known = ~np.isnan(scores)
    ranks = np.zeros(len(scores))
    ranks[known] = rankdata(scores[known]) - (np.count_nonzero(known) + 1) / 2
    return ranks
