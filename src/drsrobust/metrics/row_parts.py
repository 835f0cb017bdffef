"""The error of an AUC over rows, row by row, and draws of it.

The AUC of other rows of the same kind differs by about the sum of one independent part per row, whose squares sum up to
DeLong's variance (`auc_parts`). A draw multiplies each part by -1 or 1 by chance: the wild bootstrap (C. F. J. Wu, Annals of
Statistics 14, 1986). Since the signs are the same in all trials on these rows, a mean of draws over trials is a draw of the
error of their mean AUC: parts that trials have in common stay, others cancel, which standard errors alone do not tell."""

from functools import lru_cache

import numpy as np

from drsrobust.statistics.columns import DRAWS

_SEED = 0  # of the signs: any, but the same in all trials


def auc_parts(clicked: np.ndarray, won: np.ndarray) -> np.ndarray | None:
    """Each row's part of the error of an AUC over rows; None if a class has fewer than two rows.

    Args:
        clicked: bool [n].
        won: `auc.twice_won_by_row` of the scores, int64 [n].

    Returns:
        float64 [n]: a row's placement minus the mean of its class, over sqrt(m (m - 1)) with the m rows of the class.
    """
    clicks = int(np.count_nonzero(clicked))
    others = len(clicked) - clicks
    if min(clicks, others) < 2:
        return None
    parts = np.empty(len(clicked))
    for of_class, m, opposite in ((clicked, clicks, others), (~clicked, others, clicks)):
        placement = won[of_class] / (2 * opposite)
        parts[of_class] = (placement - placement.mean()) / np.sqrt(m * (m - 1))
    return parts


def draws(parts: np.ndarray) -> np.ndarray:
    """`DRAWS` draws, float64, of the sum of parts [n], scaled so that their root mean square is its standard error."""
    error = np.sqrt((parts**2).sum())
    drawn = np.array([np.where(signs, parts, -parts).sum() for signs in _signs(len(parts))])
    size = np.sqrt((drawn**2).mean())
    return drawn * (error / size) if size > 0 else np.full(DRAWS, error)


@lru_cache(maxsize=4)
def _signs(n: int) -> np.ndarray:
    """The same for all that have n rows: bool [DRAWS, n], from the top bits of raw words, equal on every machine."""
    top = (np.random.PCG64(_SEED).random_raw(n) >> np.uint64(64 - DRAWS)).astype(np.uint8)
    return (top >> np.arange(DRAWS, dtype=np.uint8)[:, None] & 1).astype(bool)
