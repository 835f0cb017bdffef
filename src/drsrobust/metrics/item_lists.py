"""Lists of the best items of each row, of scores [rows, items]."""

import copy
from collections.abc import Iterator

import numpy as np

from drsrobust.metrics._inputs import checked_k
from drsrobust.metrics.auc import best_first_keys, not_shown
from drsrobust.metrics.ranking import NOT_A_ROW

_SCORES_AT_ONCE = 2**17  # scores that are ordered at once, so that they stay in the processor's cache


class ItemLists:
    """The lists of rows: a row's items ordered by score, the best first, ties by item, cut at k; a NaN is never shown.

    It has what `UserLists` has: a row is a user, and row * items + item is the number of an item's score.

    Args:
        rows, items: shape of the scores.
        k: length of a list.

    Attributes:
        counts: items of every row, int64 [rows].
        k: as given.
        depth: places in the lists: k, or `items` where that is less.

    Raises:
        ValueError: k less than 1.

    Example:
        >>> ItemLists(2, 3, k=2).top(np.array([[0.1, 0.5, 0.5], [np.nan, 1.0, np.nan]]))  # a column per row
        array([[ 1,  4],
               [ 2, -1]])
    """

    def __init__(self, rows: int, items: int, k: int) -> None:
        self.k, self._items = checked_k(k), items
        self.counts = np.full(rows, items)
        self.depth = min(self.k, items)

    def cut(self, k: int) -> "ItemLists":
        """The same with lists of k places."""
        other = copy.copy(self)
        other.k, other.depth = checked_k(k), min(k, self._items)
        return other

    def count(self, marked: np.ndarray) -> np.ndarray:
        """How many items of every row are marked (bool [rows * items]), int64 [rows]."""
        return np.count_nonzero(marked.reshape(len(self.counts), self._items), axis=1)

    def top(self, scores: np.ndarray, who: np.ndarray | None = None) -> np.ndarray:
        """The lists by scores [rows, items] of all rows, or of those whose numbers int64 [A] are given.

        Returns:
            numbers of scores, int64 [depth, rows or A], -1 where a list has ended.
        """
        who = np.arange(len(self.counts)) if who is None else who
        best = [self._best(scores[rows]) for rows in parts(who, self._items)]
        items = np.concatenate(best) if best else np.empty((0, self.depth), np.int64)
        return np.where(items == NOT_A_ROW, NOT_A_ROW, who[:, None] * self._items + items).T

    def _best(self, scores: np.ndarray) -> np.ndarray:
        """Items int64 [A, depth] of some rows' scores [A, items]."""
        keys = best_first_keys(scores)
        if keys.dtype == np.uint32:  # key and item fit into 64 bits, so that only the best are sorted
            key_and_item = keys.astype(np.uint64) << np.uint64(32) | np.arange(self._items, dtype=np.uint64)
            key_and_item = np.sort(np.partition(key_and_item, self.depth - 1, axis=1)[:, : self.depth], axis=1)
            items, keys = (
                (key_and_item & np.uint64(2**32 - 1)).astype(np.int64),
                (key_and_item >> np.uint64(32)).astype(np.uint32),
            )
        else:
            items = np.argsort(keys, axis=1, kind="stable")[:, : self.depth]
            keys = np.take_along_axis(keys, items, axis=1)
        return np.where(keys == not_shown(keys), NOT_A_ROW, items)


def parts(rows: np.ndarray, items: int) -> Iterator[np.ndarray]:
    """Row numbers int64 [m] in parts of about 2**17 scores."""
    step = max(1, _SCORES_AT_ONCE // items)
    return (rows[start : start + step] for start in range(0, len(rows), step))
