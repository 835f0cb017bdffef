"""Ranking metrics of users' top-k lists, and changes against the golden lists.

All are over the rows of a split: a user's list is their rows ordered by score (`UserLists`), a click is relevant, another row
is not, and a row whose score is NaN is never shown."""

import copy

import numpy as np

from drsrobust.metrics._inputs import checked, checked_k, checked_users, columns
from drsrobust.metrics.auc import argsort_keys, best_first_keys, not_shown

NOT_A_ROW = -1  # an empty place in a list


class UserLists:
    """The lists of users: a user's rows ordered by score, the best first, ties by row order, cut at k.

    +inf comes first, -inf after all finite scores. A row whose score is NaN is never shown: it ends in no list, however short
    the list is.

    Args:
        users: ids int64 [n], the user of every row.
        k: length of a list.

    Attributes:
        users: the distinct ids int64 [U], sorted; a user's number is the place here.
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

    def cut(self, k: int) -> "UserLists":
        """The same with lists of k places."""
        other = copy.copy(self)
        other.k, other.depth = checked_k(k), min(k, self.longest)
        return other

    def count(self, marked: np.ndarray) -> np.ndarray:
        """How many rows of every user are marked (bool [n]), int64 [U]."""
        return np.bincount(self.codes[marked], minlength=len(self.users))

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
        best = order.take(np.minimum(starts + rank, len(order) - 1))
        listed = (rank < counts) & (keys.take(best) != not_shown(keys))
        return np.where(listed, best if rows is None else rows.take(best), NOT_A_ROW)


def ndcg(labels: np.ndarray, scores: np.ndarray, users: np.ndarray, k: int) -> float:
    """Normalised discounted cumulative gain at k, the mean over users with at least one click; NaN if there is none.

    A click at rank r = 1, 2, ... gains 1 / log2(1 + r); a user's sum is divided by the largest that the clicks allow in k
    places (K. Jarvelin and J. Kekalainen, ACM TOIS 20(4), 2002, with the discount of C. Burges et al., ICML 2005;
    torchmetrics' `RetrievalNormalizedDCG(top_k=k, empty_target_action="skip")`). There a NaN takes part in the order; here it
    is never shown and gains nothing.

    Args:
        labels: [n], 0 or 1.
        scores: [n].
        users: ids int64 [n].
        k: length of a list.

    Raises:
        ValueError: arrays of different lengths, a label other than 0 and 1, users that are no whole numbers, or k less than 1.

    Example:
        >>> ndcg(np.array([1, 0, 0, 1]), np.array([2.0, 3.0, 0.5, 0.7]), np.array([1, 1, 2, 2]), k=2)
        0.81546487678572...
    """
    clicks, lists, scores = _grouped(labels, scores, users, k)
    return clicks.mean(clicks.ndcg(lists.top(scores)))


def hit_rate(labels: np.ndarray, scores: np.ndarray, users: np.ndarray, k: int) -> float:
    """Share of users, of those with at least one click, who have a click among the first k rows shown; NaN if there is none.

    torchmetrics' `RetrievalHitRate(top_k=k, empty_target_action="skip")`; there a NaN may hit, here it is never shown.
    Arguments and errors are those of `ndcg`.

    Example:
        >>> hit_rate(np.array([1, 0, 0, 1]), np.array([2.0, 3.0, 0.5, 0.7]), np.array([1, 1, 2, 2]), k=1)
        0.5
    """
    clicks, lists, scores = _grouped(labels, scores, users, k)
    return clicks.mean(clicks.hit(lists.top(scores)))


def recall(labels: np.ndarray, scores: np.ndarray, users: np.ndarray, k: int) -> float:
    """Share of a user's clicks that are among the first k rows shown, the mean over users with at least one click; NaN if there
    is none.

    torchmetrics' `RetrievalRecall(top_k=k, empty_target_action="skip")`; there a NaN may be shown, here it never is.
    Arguments and errors are those of `ndcg`.

    Example:
        >>> recall(np.array([1, 0, 1, 1]), np.array([2.0, 3.0, 0.5, 0.7]), np.array([1, 1, 1, 2]), k=2)
        0.75
    """
    clicks, lists, scores = _grouped(labels, scores, users, k)
    return clicks.mean(clicks.recall(lists.top(scores)))


def topk_overlap(scores: np.ndarray, golden: np.ndarray, users: np.ndarray, k: int) -> float:
    """Mean over users of the rows that are in both lists, over the smaller of k and the user's rows.

    The overlap at depth k of W. Webber, A. Moffat and J. Zobel, ACM TOIS 28(4), 2010. A NaN is in no list, so that lists
    of NaN alone do not overlap. NaN without rows.

    Args:
        scores, golden: [n] each.
        users: ids int64 [n].
        k: length of a list.

    Raises:
        ValueError: arrays of different lengths, users that are no whole numbers, or k less than 1.

    Example:
        >>> topk_overlap(np.array([3.0, 2.0, 1.0]), np.array([3.0, 1.0, 2.0]), np.array([1, 1, 1]), k=2)
        0.5
    """
    scores, golden, users = columns(scores=scores, golden=golden, users=users)
    lists = UserLists(users, k)
    return mean(GoldenLists(lists, golden).overlap(lists.top(scores)))


def list_changed(scores: np.ndarray, golden: np.ndarray, users: np.ndarray, k: int) -> float:
    """Share of users whose list differs from the golden one: in a row or in the order. NaN without rows.

    Arguments and errors are those of `topk_overlap`.

    Example:
        >>> list_changed(np.array([3.0, 2.0, 1.0]), np.array([2.0, 3.0, 1.0]), np.array([1, 1, 2]), k=2)
        0.5
    """
    scores, golden, users = columns(scores=scores, golden=golden, users=users)
    lists = UserLists(users, k)
    return mean(GoldenLists(lists, golden).list_changed(lists.top(scores)))


def users_harmed(labels: np.ndarray, scores: np.ndarray, golden: np.ndarray, users: np.ndarray, k: int) -> float:
    """Share of users, of those with at least one click, whose `ndcg` is lower than by the golden scores; NaN if there is none.

    Args:
        labels: [n], 0 or 1.
        scores, golden: [n] each.
        users: ids int64 [n].
        k: length of a list.

    Raises:
        ValueError: as `ndcg`.

    Example:
        >>> users_harmed(np.array([1, 0, 1]), np.array([1.0, 2.0, 0.0]), np.array([2.0, 1.0, 0.0]), np.array([5, 5, 6]), k=2)
        0.5
    """
    _, golden = columns(labels=labels, golden=golden)
    clicks, lists, scores = _grouped(labels, scores, users, k)
    return clicks.mean(clicks.ndcg(lists.top(scores)) < clicks.ndcg(lists.top(golden)))


def mean(values: np.ndarray) -> float:
    """Mean of values [U], bool or float64; NaN where there are none."""
    if not len(values):
        return float("nan")
    return float((np.count_nonzero(values) if values.dtype == bool else values.sum()) / len(values))


class UserClicks:
    """What lists are worth by the clicks in them.

    Args:
        lists: of all users (or an `ItemLists`).
        clicked: bool [n].
    """

    def __init__(self, lists: UserLists, clicked: np.ndarray) -> None:
        self._clicked = np.append(clicked, False)  # what -1, an empty place, finds
        self._clicks = lists.count(clicked)
        self._with_click = np.flatnonzero(self._clicks)
        self._set_depth(lists.depth)

    def cut(self, depth: int) -> "UserClicks":
        """The same for lists of `depth` places."""
        other = copy.copy(self)
        other._set_depth(depth)
        return other

    def _set_depth(self, depth: int) -> None:
        self._discounts = 1 / np.log2(np.arange(depth) + 2.0)
        # Summed from left to right, as in `ndcg`, so that the best list has exactly 1. Without a click it is divided by 1.
        best = np.append(1.0, np.cumsum(self._discounts))
        self._best = best.take(np.minimum(self._clicks, depth))

    def ndcg(self, top: np.ndarray, who: np.ndarray | None = None) -> np.ndarray:
        """NDCG float64 [A] of lists [depth, A] of the users `who` (None: all); 0 for users without a click."""
        best = self._best if who is None else self._best.take(who)
        gain = np.zeros(len(best))
        for rank, discount in enumerate(self._discounts):  # not a matrix product: its sums would depend on the shape
            gain += discount * self._clicked.take(top[rank], mode="wrap")
        return gain / best

    def hit(self, top: np.ndarray) -> np.ndarray:
        """Whether there is a click in lists [depth, A], bool [A]."""
        return self._clicked.take(top, mode="wrap").any(axis=0)

    def recall(self, top: np.ndarray, who: np.ndarray | None = None) -> np.ndarray:
        """Share float64 [A] of a user's clicks that are in lists [depth, A]; 0 for users without a click."""
        clicks = self._clicks if who is None else self._clicks.take(who)
        return np.count_nonzero(self._clicked.take(top, mode="wrap"), axis=0) / np.maximum(clicks, 1)

    def mean(self, values: np.ndarray) -> float:
        """Mean over users with a click of values [U], bool or float64; NaN where there are none."""
        return mean(values.take(self._with_click))


class GoldenLists:
    """How lists differ from the golden ones.

    Args:
        lists: of all users (or an `ItemLists`).
        golden: scores, as `lists.top` takes them.
    """

    def __init__(self, lists: UserLists, golden: np.ndarray) -> None:
        self.top = lists.top(golden)
        self._listed = np.zeros(golden.size + 1, bool)
        self._listed[self.top] = True
        self._listed[-1] = False  # what -1, an empty place, finds
        self._places = np.minimum(lists.counts, lists.k)

    def overlap(self, top: np.ndarray, who: np.ndarray | None = None) -> np.ndarray:
        """Share float64 [A] of places of lists [depth, A] whose row is in the golden list as well."""
        places = self._places if who is None else self._places.take(who)
        return np.count_nonzero(self._listed.take(top, mode="wrap"), axis=0) / places

    def list_changed(self, top: np.ndarray, who: np.ndarray | None = None) -> np.ndarray:
        """Whether lists [depth, A] differ from the golden ones, bool [A]."""
        return (top != (self.top if who is None else self.top.take(who, axis=1))).any(axis=0)


def _grouped(
    labels: np.ndarray, scores: np.ndarray, users: np.ndarray, k: int
) -> tuple[UserClicks, UserLists, np.ndarray]:
    clicked, scores = checked(labels, scores)
    _, users = columns(labels=clicked, users=users)
    lists = UserLists(users, k)
    return UserClicks(lists, clicked), lists, scores
