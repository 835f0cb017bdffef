"""Every user's rows, grouped once, and his top-k list by any scores."""

import numpy as np

from drsrobust.metrics.inputs import checked_k, checked_users, columns
from drsrobust.metrics.order import argsort_keys, best_first_keys, not_shown

NOT_A_ROW = -1  # an empty place in a list


class UserLists:
    """The lists of users: a user's rows ordered by score, the best first, ties by row order, cut at k.

    +inf comes first, -inf after all finite scores. A row whose score is NaN is never shown: it ends in no list, however short
    the list is.

    Args:
        users: ids int64 [n], the user of every row.
        k: length of a list.

    Attributes:
        users: the distinct ids int64 [U], sorted; a user's number is his place here.
        codes: number of the user of every row, int64 [n].
        counts: rows of every user, int64 [U].
        k: as given.
        longest: rows of the user who has most.
        depth: places in the lists: k, or `longest` where that is less.

    Raises:
        ValueError: users that are no whole numbers, or k less than 1.

    Example:
        >>> lists = UserLists(np.array([7, 9, 7, 7]), k=2)
        >>> lists.top(np.array([0.5, 0.1, 2.0, np.nan]))  # a column per user
        array([[ 2,  1],
               [ 0, -1]])
    """

    def __init__(self, users: np.ndarray, k: int) -> None:
        self.k = checked_k(k)
        self.users, self.codes, self.counts = np.unique(checked_users(users), return_inverse=True, return_counts=True)
        self.longest = int(self.counts.max(initial=0))
        self.depth = min(self.k, self.longest)
        self._small_codes = self.codes.astype(np.min_scalar_type(max(len(self.users) - 1, 0)))  # 16 bits sort in one go
        self._rows = argsort_keys(self._small_codes)  # of the users, one after the other
        self._starts = np.cumsum(self.counts) - self.counts

    def owners(self, rows: np.ndarray) -> np.ndarray:
        """Numbers of the users who have one of the rows, sorted, each once."""
        return np.unique(self.codes.take(rows))

    def top(self, scores: np.ndarray, who: np.ndarray | None = None) -> np.ndarray:
        """The lists by scores [n] of all users, or of those whose numbers int64 [A] are given.

        Returns:
            row numbers int64 [depth, U or A], -1 where a list has ended.

        Raises:
            ValueError: scores of another length than the users.
        """
        (scores,) = columns(scores=scores)
        if len(scores) != len(self.codes):
            raise ValueError(f"{len(scores)} scores and {len(self.codes)} rows of users; every score needs its user")
        if who is None:
            counts, starts, rows = self.counts, self._starts, None
        else:
            counts = self.counts.take(who)
            starts = np.cumsum(counts) - counts
            rows = self._rows.take(np.arange(int(counts.sum())) + np.repeat(self._starts.take(who) - starts, counts))
            scores = scores.take(rows)
        if not len(scores):
            return np.full((self.depth, len(counts)), NOT_A_ROW)
        keys = best_first_keys(scores)
        order = argsort_keys(keys)
        owner = (
            self._small_codes
            if rows is None
            else np.repeat(np.arange(len(counts), dtype=np.min_scalar_type(len(counts))), counts)
        )
        order = order.take(argsort_keys(owner.take(order)))
        rank = np.arange(self.depth)[:, None]
        found = order.take(np.minimum(starts + rank, len(order) - 1))
        listed = (rank < counts) & (keys.take(found) != not_shown(keys))
        return np.where(listed, found if rows is None else rows.take(found), NOT_A_ROW)
