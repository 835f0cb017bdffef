"""Metrics of scores that differ from the golden scores in few rows: only what depends on changed rows is computed again."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from drsrobust._choices import unknown
from drsrobust.metrics._inputs import (
    BLOCK,
    check_finite,
    check_same,
    checked,
    checked_k,
    checked_prior,
    checked_rows,
    columns,
    distinct_rows,
)
from drsrobust.metrics.auc import share_won, twice_won, twice_won_by_row
from drsrobust.metrics.changes import DEVIATIONS, EPSILON, THRESHOLD, checked_epsilon, cut, is_flipped, is_moved
from drsrobust.metrics.list_metrics import ListMetrics
from drsrobust.metrics.log_loss import entropy, factors, mean_log, over_clicks, probabilities, served
from drsrobust.metrics.names import DECISIONS, LISTS, split_name
from drsrobust.metrics.ranking import UserLists
from drsrobust.metrics.row_parts import auc_parts

CountPairs = Callable[[np.ndarray, np.ndarray], int]  # as `twice_won`
FEW_CHANGED = (
    10_000  # rows; a GPU counts all pairs of a million rows in the time in which a core looks at so many changed ones
)


class GoldenPairs:
    """The pairs (click, other row) of golden scores, sorted once.

    Args:
        clicked: bool [n].
        golden: scores [n], finite.
        count: counts the pairs of other scores where many rows changed.
    """

    def __init__(self, clicked: np.ndarray, golden: np.ndarray, count: CountPairs = twice_won) -> None:
        self._clicked, self._golden, self._count = clicked, golden, count
        self._clicks, self._others = np.sort(golden[clicked]), np.sort(golden[~clicked])
        self._won = np.zeros(len(golden), np.int64)  # twice, of a row's pairs with all of the other class, by the click
        self._twice = 0
        for start in range(0, len(golden), BLOCK):
            rows = slice(start, start + BLOCK)
            won, part, is_click = self._won[rows], golden[rows], clicked[rows]
            clicks, others = np.flatnonzero(is_click), np.flatnonzero(~is_click)
            clicks, others = clicks[np.argsort(part[clicks])], others[np.argsort(part[others])]
            won[clicks] = twice_above(part[clicks], self._others)
            won[others] = 2 * len(self._clicks) - twice_above(part[others], self._clicks)
            self._twice += int(won[clicks].sum())

    def auc(self, scores: np.ndarray, rows: np.ndarray | None) -> float:
        """AUC of scores [n], of which all but `rows` (distinct, int64; None: any row) are golden: bit for bit `metrics.auc`."""
        few = rows is not None and (self._count is twice_won or len(rows) <= FEW_CHANGED)
        twice = self._twice + self._gain(scores, rows) if few else self._count(self._clicked, scores)
        return share_won(twice, len(self._clicks), len(self._others))

    def _gain(self, scores: np.ndarray, rows: np.ndarray) -> int:
        """What changed rows add to twice the pairs won.

        Changed rows are compared with the golden scores of the other class first. Pairs of two changed rows are wrong then;
        the last terms correct them.
        """
        clicked = self._clicked.take(rows)
        clicks, others = rows[clicked], rows[~clicked]
        new_clicks, new_others = np.sort(scores.take(clicks)), np.sort(scores.take(others))
        gain = int(twice_above(new_clicks, self._others).sum()) - int(self._won.take(clicks).sum())
        gain += int((2 * len(self._clicks) - twice_above(new_others, self._clicks)).sum())
        gain -= int(self._won.take(others).sum())
        if len(clicks) and len(others):
            old_clicks, old_others = np.sort(self._golden.take(clicks)), np.sort(self._golden.take(others))
            gain += int(twice_above(new_clicks, new_others).sum()) - int(twice_above(new_clicks, old_others).sum())
            gain += int(twice_above(old_clicks, old_others).sum()) - int(twice_above(old_clicks, new_others).sum())
        return gain


def twice_above(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Twice the number of others that each score beats, ties and NaN counting one.

    Args:
        scores: [m].
        others: [n], sorted, NaN last.

    Returns:
        int64 [m].
    """
    if not len(scores):
        return np.empty(0, np.int64)
    missing = int(np.count_nonzero(np.isnan(others)))
    twice = np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right") + missing
    return np.where(np.isnan(scores), len(others), twice)


SCORES = ("logit", "probability")  # what AUC, lists and decisions compare
MAX_SHARE_CHANGED = 0.05  # of rows; above it starting over is quicker than looking at these alone (measured: 4 to 7 %)


class BaselineMetrics:
    """Metrics of scores, in less time if they differ from the golden scores in few rows.

    Each metric equals the function of its name bit for bit (`overlap` is `topk_overlap`, `ndcg@10` is `ndcg` of lists of 10
    rows, names with a threshold are `deviated`), with `compare="probability"` AUC, lists and decisions that of
    `served(scores)`. Golden lists of a further length are made once, when a name first asks for them; nothing else is kept, so
    nothing accumulates over a campaign. With 100 changed of 100,000 rows all metrics except `DEVIATIONS`, which need all rows,
    together take a millisecond.

    Args:
        labels: [n], 0 or 1.
        golden: scores (logits) [n] without errors, finite.
        prior: click rate of the training rows.
        users: ids int64 [n], or None where rows have no user.
        k: length of a user's list, where the name has none.
        threshold: of the click decision, a probability in (0, 1).
        epsilon: distance in logits beyond which a score has moved.
        compare: what AUC, users' lists and decisions compare: `logit`, or `probability` (float32, as `served` gives it).
        count_pairs: as `auc.twice_won`, which it replaces where many rows changed, on a GPU.

    Attributes:
        golden: as given, read-only.
        entropy: of the rows' own click rate, in nats; NaN when only one class is there.

    Raises:
        ValueError: arrays of different lengths; a label other than 0 and 1; golden scores that are not finite; users that are
            no whole numbers; a prior, k, threshold or epsilon out of its range.

    Example:
        >>> labels, golden = np.array([1, 0, 1, 0]), np.array([2.0, -1.0, 0.5, 0.1])
        >>> reference = BaselineMetrics(labels, golden, prior=0.5, users=np.array([1, 1, 2, 2]), k=1)
        >>> scores = golden.copy()
        >>> scores[3] = 1e9  # a bit flipped
        >>> reference.auc(golden), reference.auc(scores, changed=np.array([3]))
        (1.0, 0.5)
        >>> reference.measures(["ndcg", "overlap", "score_changed"], scores, changed=np.array([3]))
        {'ndcg': 0.5, 'overlap': 0.5, 'score_changed': 0.25}
    """

    def __init__(
        self,
        labels: np.ndarray,
        golden: np.ndarray,
        prior: float,
        users: np.ndarray | None = None,
        *,
        k: int = 5,
        threshold: float = THRESHOLD,
        epsilon: float = EPSILON,
        compare: str = "logit",
        count_pairs: CountPairs = twice_won,
    ) -> None:
        if compare not in SCORES:
            raise unknown("scores", compare, SCORES)
        clicked, golden = checked(labels, golden)
        check_finite(golden)
        self._clicked, self.golden, self._prior = clicked, golden.copy(), checked_prior(prior)
        self._k, self._threshold, self._epsilon = checked_k(k), threshold, checked_epsilon(epsilon)
        self._compare, logit = compare, cut(threshold)
        self._cut = logit if compare == "logit" else np.float32(threshold)
        self.entropy = entropy(clicked)
        self._compared = self._shown(self.golden)
        self._pairs = GoldenPairs(clicked, self._compared, count_pairs)
        self._factors = factors(clicked, golden, prior)
        self._lists: ListMetrics | None = None
        if users is not None:
            _, users = columns(labels=labels, users=users)
            self._lists = ListMetrics(UserLists(users, k), clicked, self._compared)
        for array in (_arrays(self) | _arrays(self._pairs)).values():
            array.setflags(write=False)

    @cached_property
    def _probabilities(self) -> np.ndarray:
        return probabilities(self.golden, self._prior)

    def auc(self, scores: np.ndarray, changed: np.ndarray | None = None) -> float:
        """`metrics.auc` of scores [n].

        Args:
            scores: [n].
            changed: distinct row numbers, all rows whose score may differ from the golden one in any bit; None: any row.

        Raises:
            ValueError: scores of another length, or rows that are no distinct numbers of rows.
        """
        return self._auc(*self._checked(scores, changed))

    def _auc(self, scores: np.ndarray, rows: np.ndarray | None) -> float:
        return self._pairs.auc(self._shown(scores, rows), rows)

    def auc_parts(self, scores: np.ndarray) -> np.ndarray | None:
        """Each row's part of the error of `auc(scores)` over rows, float64 [n] (`row_parts.auc_parts`)."""
        scores, _ = self._checked(scores, None)
        return auc_parts(self._clicked, twice_won_by_row(self._clicked, self._shown(scores)))

    def of_clicks(self, scores: np.ndarray, changed: np.ndarray | None = None) -> tuple[float, float, float]:
        """AUC, log loss and normalised entropy of scores [n], which are checked once. Else as `auc`."""
        scores, rows = self._checked(scores, changed)
        logloss = self._log_loss(scores, rows)
        return self._auc(scores, rows), logloss, logloss / self.entropy

    def _shown(self, scores: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """What AUC, lists and decisions compare [n], of scores of which all but `rows` (None: any row) are golden."""
        if self._compare == "logit":
            return scores
        if rows is None:
            return served(scores)
        compared = self._compared.copy()
        compared[rows] = served(scores.take(rows))
        return compared

    def log_loss(self, scores: np.ndarray, changed: np.ndarray | None = None) -> float:
        """`metrics.log_loss` of scores [n]. Arguments and errors are those of `auc`."""
        return self._log_loss(*self._checked(scores, changed))

    def _log_loss(self, scores: np.ndarray, rows: np.ndarray | None) -> float:
        if rows is None:
            return mean_log(factors(self._clicked, scores, self._prior))
        # A copy, since the golden factors serve all trials; it costs less than their logarithms.
        factor = self._factors.copy()
        factor[rows] = factors(self._clicked.take(rows), scores.take(rows), self._prior)
        return mean_log(factor)

    def normalised_entropy(self, scores: np.ndarray, changed: np.ndarray | None = None) -> float:
        """`metrics.normalised_entropy` of scores [n]: log loss over `entropy`. Arguments and errors are those of `auc`."""
        return self.log_loss(scores, changed) / self.entropy

    def calibration(self, scores: np.ndarray, changed: np.ndarray | None = None) -> float:
        """`metrics.calibration` of scores [n]. Arguments and errors are those of `auc`."""
        return self._calibration(*self._checked(scores, changed))

    def _calibration(self, scores: np.ndarray, rows: np.ndarray | None) -> float:
        if rows is None:
            return over_clicks(probabilities(scores, self._prior), self._clicked)
        p = self._probabilities.copy()
        p[rows] = probabilities(scores.take(rows), self._prior)
        return over_clicks(p, self._clicked)

    def measure(self, name: str, scores: np.ndarray, changed: np.ndarray | None = None) -> float | None:
        """The metric of one of `NAMES`, or with a length of the lists, `ndcg@10`; None for one of users where rows have none.

        Raises:
            ValueError: an unknown name; else as `auc`.
        """
        return self.measures([name], scores, changed)[name]

    def measures(
        self, names: Sequence[str], scores: np.ndarray, changed: np.ndarray | None = None
    ) -> dict[str, float | None]:
        """Several metrics at once: lists are ordered once for all of them. Else as `measure`."""
        bases = {name: split_name(name) for name in names}
        of_lists = {name: base for name, base in bases.items() if base[0] in LISTS}
        checked_scores, rows = self._checked(scores, changed)
        values: dict[str, float | None] = dict.fromkeys(names)
        if self._lists is not None and of_lists:
            who = None if rows is None else self._lists.lists.owners(rows)
            values |= self._lists.measures(of_lists, self._shown(checked_scores, rows), who)
        for name in set(names) - set(of_lists):
            if name in DEVIATIONS:
                values[name] = DEVIATIONS[name](checked_scores, self.golden)
            elif name == "calibration":
                values[name] = self._calibration(checked_scores, rows)
            else:
                values[name] = self._share(name, checked_scores, rows)
        return values

    def check(self, golden: np.ndarray) -> None:
        """Raises RuntimeError if the arrays here are not those of the golden scores [n]."""
        clicked, golden = checked(self._clicked, golden)
        shown = self._shown(golden)
        fresh = {f"{type(self).__name__}.golden": golden, f"{type(self).__name__}._compared": shown}
        check_same({name: _arrays(self)[name] for name in fresh}, fresh)
        # One after another, since each takes much memory.
        check_same({"factors": self._factors}, {"factors": factors(clicked, golden, self._prior)})
        if "_probabilities" in vars(self):
            check_same({"probabilities": self._probabilities}, {"probabilities": probabilities(golden, self._prior)})
        check_same(_arrays(self._pairs), _arrays(GoldenPairs(clicked, shown)))
        if self._lists is not None:
            lists = self._lists.lists
            others = ListMetrics(UserLists(lists.users.take(lists.codes), self._k), clicked, shown)
            check_same(self._lists.arrays(), others.arrays(self._lists))

    def _checked(self, scores: np.ndarray, changed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Scores [n], and the changed rows, sorted; None: any row may have changed, or over `MAX_SHARE_CHANGED` of all, so that
        a full computation is faster. Scores of another dtype than the golden ones count as all changed.
        """
        scores, n = np.asarray(scores), len(self.golden)
        if scores.size != n or n not in scores.shape:
            raise ValueError(f"scores of shape {scores.shape}; the golden ones are [{n}]")
        scores = scores.ravel()
        if changed is None:
            return scores, None
        changed = checked_rows(changed)
        if scores.dtype != self.golden.dtype or len(changed) > MAX_SHARE_CHANGED * n:
            return scores, None
        return scores, distinct_rows(changed, n)

    def _share(self, name: str, scores: np.ndarray, rows: np.ndarray | None) -> float:
        """Share of rows that are flipped, moved or NaN; a row with its golden score, which is finite, is none of these."""
        rows = slice(None) if rows is None else rows
        if name == "nan_share":
            is_changed = np.isnan(scores[rows])
        elif name in DECISIONS:
            scores = scores[rows] if self._compare == "logit" else served(scores[rows])
            is_changed = is_flipped(scores, self._compared[rows], self._cut, nan_wrong=name == "decision_changed")
        else:
            is_changed = is_moved(scores[rows], self.golden[rows], self._epsilon)
        return float(np.count_nonzero(is_changed) / len(self.golden)) if len(self.golden) else float("nan")


def _arrays(part: BaselineMetrics | GoldenPairs) -> dict[str, np.ndarray]:
    """All arrays of an object, by name."""
    return {
        f"{type(part).__name__}.{name}": value for name, value in vars(part).items() if isinstance(value, np.ndarray)
    }
