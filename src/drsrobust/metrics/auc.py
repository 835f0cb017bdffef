"""Area under the ROC curve, exact: pairs are counted in integers. DeLong's variance, for one model and for two on the same
rows.

Sources: E. R. DeLong, D. M. DeLong and D. L. Clarke-Pearson, Biometrics 44(3), 1988; by ranks in O(n log n): X. Sun and W. Xu,
IEEE Signal Processing Letters 21(11), 2014.

Where all placements of a class are equal, as of scores that separate the classes or of two models that rank all rows alike,
they have no variance. That is certain of these rows and not of others: a share of up to
`rule_of_three(rows of the class)` of all rows may be placed anywhere, and widens the interval, added in squares."""

from collections.abc import Iterable

import numpy as np

from drsrobust.metrics._inputs import checked
from drsrobust.statistics.intervals import CONFIDENCE, rule_of_three


def best_first_keys(scores: np.ndarray) -> np.ndarray:
    """Unsigned integers in the order of scores, the best first: a < b exactly where the score of a is higher.

    float16 and float32 give uint32, anything else gives the uint64 of its float64. -0.0 and 0.0 share a key, +inf has the
    least, and every NaN has the largest number there is: `not_shown(keys)`.

    Args:
        scores: [n].

    Returns:
        uint32 or uint64 [n].

    Example:
        >>> best_first_keys(np.array([-np.inf, 0.0, np.nan, 2.0, -0.0], np.float32)).argsort(kind="stable")
        array([3, 1, 4, 0, 2])
    """
    scores = np.asarray(scores)
    narrow = scores.dtype in (np.float16, np.float32)
    floats, signed, unsigned = (np.float32, np.int32, np.uint32) if narrow else (np.float64, np.int64, np.uint64)
    with np.errstate(invalid="ignore"):  # a NaN with its quiet bit off
        scores = np.ascontiguousarray(scores, floats) + floats(0)  # -0.0 becomes 0.0
    # Bits of floats of one sign are in order: of negative ones the best first, of the others the worst first.
    mask = (~(scores.view(signed) >> signed(8 * scores.itemsize - 1))).view(unsigned) >> unsigned(1)
    keys = scores.view(unsigned) ^ mask
    missing = np.isnan(scores)
    if missing.any():
        keys[missing] = not_shown(keys)
    return keys


def not_shown(keys: np.ndarray) -> int:
    """The key of a NaN."""
    return int(np.iinfo(keys.dtype).max)


def argsort_keys(keys: np.ndarray) -> np.ndarray:
    """Stable order of unsigned integers [n], int64 [n]: a radix sort, 16 bits at a time.

    NumPy sorts 16-bit integers by radix, anything wider by comparing. For 100,000 float32 scores this takes 1 ms on any
    processor; `np.argsort` takes 2 ms with AVX2 and 5 ms with AVX-512 on Zen 4, whose compressed stores are slow.

    Example:
        >>> argsort_keys(np.array([70_000, 3, 70_000, 65_536], np.uint32))
        array([1, 3, 0, 2])
    """
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(16, 8 * keys.itemsize, 16):
        digit = (keys >> keys.dtype.type(shift)).astype(np.uint16)
        order = order.take(np.argsort(digit.take(order), kind="stable"))
    return order


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
    keys = best_first_keys(scores)
    if len(keys) > RANGE and keys.itemsize == 4:
        return twice_won_by_ranges(clicked, keys)
    return twice_won_of_keys(clicked, keys)


def twice_won_of_keys(clicked: np.ndarray, keys: np.ndarray) -> int:
    """`twice_won` of `best_first_keys`."""
    clicks = int(np.count_nonzero(clicked))
    pairs = clicks * (len(clicked) - clicks)
    order = argsort_keys(keys)
    n_numbers = len(keys) - int(np.count_nonzero(keys == not_shown(keys)))
    keys, clicked = keys.take(order)[:n_numbers], clicked.take(order)[:n_numbers]  # a NaN comes last
    ends = np.flatnonzero(np.append(keys[1:] != keys[:-1], [True] * bool(n_numbers))) + 1  # of runs of equal scores
    edges = np.concatenate([[0], ends])
    clicks_at = np.concatenate([[0], np.cumsum(clicked, dtype=np.int64)]).take(edges)
    others_at = edges - clicks_at
    twice_lost = int(((clicks_at[1:] - clicks_at[:-1]) * (others_at[1:] + others_at[:-1])).sum())
    pairs_known = int(clicks_at[-1]) * int(others_at[-1])
    return 2 * pairs_known - twice_lost + (pairs - pairs_known)


def twice_won_by_row(clicked: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Twice the pairs of each row with rows of the other class that the click wins, int64 [n]; ties and pairs with a NaN count
    one. Arguments as of `twice_won`."""
    keys = best_first_keys(scores)
    clicks = int(np.count_nonzero(clicked))
    others, order = len(keys) - clicks, argsort_keys(keys)
    n_numbers = len(keys) - int(np.count_nonzero(keys == not_shown(keys)))
    order, won = order[:n_numbers], np.where(clicked, others, clicks)  # of a NaN, which comes last
    keys, clicked = keys.take(order), clicked.take(order)
    edges = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1], [True]]))  # of runs of equal scores
    if n_numbers:
        clicks_at = np.concatenate([[0], np.cumsum(clicked, dtype=np.int64)]).take(edges)
        others_at, lengths = edges - clicks_at, np.diff(edges)
        by_clicks = 2 * others_at[-1] - others_at[:-1] - others_at[1:] + (others - others_at[-1])
        by_others = clicks_at[:-1] + clicks_at[1:] + (clicks - clicks_at[-1])
        won[order] = np.where(clicked, np.repeat(by_clicks, lengths), np.repeat(by_others, lengths))
    return won


RANGE = 1 << 21  # scores that are sorted at once, in 80 bytes each


def twice_won_by_ranges(clicked: np.ndarray, keys: np.ndarray) -> int:
    """`twice_won_of_keys`, range by range of the keys, in memory that does not grow with their number: both arrays may be maps
    of files, which are read once for every `RANGE` rows.

    Args:
        clicked: bool [n].
        keys: `best_first_keys` of float32, uint32 [n].
    """
    parts = [slice(start, start + RANGE) for start in range(0, len(keys), RANGE)]
    halves = _counted(((clicked[part], keys[part]) for part in parts), 16)
    clicks, others = halves.sum(axis=1).tolist()
    halves = halves[:, :-1]  # the last one is of NaN alone
    clicks_known, others_known = halves.sum(axis=1).tolist()
    ends = np.cumsum(halves.sum(axis=0))
    twice, start, below = clicks * others - clicks_known * others_known, 0, others_known
    while start < len(ends):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + RANGE, "right")))
        m, n = halves[:, start:end].sum(axis=1).tolist()
        below -= n
        twice += 2 * m * below
        within = (_between(clicked[part], keys[part], start << 16, (end << 16) - 1) for part in parts)
        if m + n > RANGE:  # of keys with one high half, which differ in the low half
            won, ties = _counted(within, 0)
            twice += int((won * (2 * (n - np.cumsum(ties)) + ties)).sum())
        elif m + n:
            twice += twice_won_of_keys(*map(np.concatenate, zip(*within, strict=True)))
        start = end
    return twice


def _between(clicked: np.ndarray, keys: np.ndarray, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = (keys >= low) & (keys <= high)
    return clicked[chosen], keys[chosen]


def _counted(parts: Iterable[tuple[np.ndarray, np.ndarray]], shift: int) -> np.ndarray:
    """Clicks and others by 16 bits of their keys, int64 [2, 65536]."""
    counts = np.zeros((2, 1 << 16), np.int64)
    for clicked, keys in parts:
        digit = (keys >> np.uint32(shift)).astype(np.uint16)
        for number, chosen in enumerate((clicked, ~clicked)):
            counts[number] += np.bincount(digit[chosen], minlength=1 << 16)
    return counts


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
    clicked, scores = np.asarray(labels).ravel() == 1, np.asarray(scores).ravel()
    m, n = int(clicked.sum()), int((~clicked).sum())
    if not m or not n:
        raise ValueError(f"{m} clicks and {n} other rows; an AUC needs both")
    won = twice_won_by_row(clicked, scores)
    return won[clicked] / (2 * n), won[~clicked] / (2 * m)


def auc_interval(labels: np.ndarray, scores: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """AUC of scores [n] for labels [n] and its confidence interval over rows: auc +- z sqrt(DeLong's variance), within [0, 1].

    Raises:
        ValueError: rows of one class, or fewer than two of either.

    Example:
        >>> auc_interval(np.array([0, 0, 0, 1, 1, 1]), np.array([1.0, 2.0, 3.0, 2.5, 3.5, 4.0]))
        (0.88888888888888..., 0.5809..., 1.0)
    """
    value = auc(labels, scores)
    return value, *_ends(value, placements(labels, scores), (0.0, 1.0), confidence)


def auc_difference(
    labels: np.ndarray, scores: np.ndarray, others: np.ndarray, confidence: float = CONFIDENCE
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
    from scipy.special import ndtr

    value = auc(labels, scores) - auc(labels, others)
    first, two = placements(labels, scores), placements(labels, others)
    error = np.sqrt(_variance(first[0] - two[0], first[1] - two[1]))
    p = float(2 * ndtr(-abs(value) / error)) if error > 0 else float("nan")
    low, high = _ends(value, (first[0] - two[0], first[1] - two[1]), (-1.0, 1.0), confidence)
    return value, low, high, p


def _ends(
    value: float, classes: tuple[np.ndarray, np.ndarray], bounds: tuple[float, float], confidence: float
) -> tuple[float, float]:
    """Both ends of the interval of a mean placement, or of a mean difference of placements, of clicks and of others."""
    half = _z(confidence) * np.sqrt(_variance(*classes))
    shares = [
        rule_of_three(len(values), confidence) for values in classes if np.ptp(values) <= 1e-12
    ]  # of classes without variance
    below, above = (np.hypot(half, np.linalg.norm(shares) * abs(bound - value)) for bound in bounds)
    return float(max(bounds[0], value - below)), float(min(bounds[1], value + above))


def _variance(clicks: np.ndarray, others: np.ndarray) -> float:
    if min(len(clicks), len(others)) < 2:
        raise ValueError(f"{len(clicks)} clicks and {len(others)} other rows; a variance needs two of each")
    return float(clicks.var(ddof=1) / len(clicks) + others.var(ddof=1) / len(others))


def _z(confidence: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))
