"""Metrics of scores by task: clicks, several tasks of a row, and the ranking of items, with one interface.

`of_clicks` gives AUC, log loss and normalised entropy, `measures` metrics by name. Lists take their length in the name, as
`ndcg@10`; `auc/buy` is the metric of one of several tasks, and `auc` the mean over tasks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from drsrobust._choices import unknown
from drsrobust.metrics._inputs import check_finite, check_same, checked_rows, distinct_rows
from drsrobust.metrics.changes import (
    DEVIATED,
    EPSILON,
    checked_epsilon,
    is_deviated,
    is_moved,
    median_change,
)
from drsrobust.metrics.incremental import BaselineMetrics
from drsrobust.metrics.item_lists import ItemLists, parts
from drsrobust.metrics.list_metrics import ListMetrics
from drsrobust.metrics.names import CLICK, LISTS, OF_CLICKS, RANK, split_name

OfClicks = tuple[float | None, float | None, float | None]


class ClickMetrics(BaselineMetrics):
    """`BaselineMetrics` of click scores [n] that compare probabilities by default.

    Example:
        >>> labels, golden = np.array([1, 0, 1, 0]), np.array([2.0, -1.0, 0.5, 0.1])
        >>> metrics = ClickMetrics(labels, golden, prior=0.5, users=np.array([1, 1, 2, 2]))
        >>> metrics.measures(["auc", "recall@1"], np.array([2.0, -1.0, 0.5, 1e9]), changed=np.array([3]))
        {'auc': 0.5, 'recall@1': 0.5}
    """

    def __init__(self, *arguments: Any, compare: str = "probability", **options: Any) -> None:
        super().__init__(*arguments, compare=compare, **options)

    def measures(
        self, names: Sequence[str], scores: np.ndarray, changed: np.ndarray | None = None
    ) -> dict[str, float | None]:
        """Metrics by name; None for those of users where rows have none.

        Raises:
            ValueError: an unknown name; else as `of_clicks`.
        """
        for name in names:
            self.check_name(name)
        further = [name for name in names if name not in OF_CLICKS]
        measured = dict.fromkeys(names) | super().measures(further, scores, changed)
        if len(further) < len(names):
            values = dict(zip(OF_CLICKS, self.of_clicks(scores, changed), strict=True))
            measured |= {name: value for name, value in values.items() if name in measured}
        return measured

    def check_name(self, name: str) -> None:
        """Raises ValueError for an unknown name."""
        split_name(name, CLICK)


class MultiMetrics:
    """Metrics of the scores [n, T] of T tasks: of each by `auc/<task>`, and the means over tasks by plain names. All metrics of
    a task are over the rows whose label of this task was observed.

    Args:
        labels: [n, T], 0 or 1, or NaN: not observed.
        golden: scores (logits) [n, T] without errors, finite.
        priors: click rates of the training rows, [T].
        tasks: T names.
        users, options: as of `ClickMetrics`.

    Attributes:
        golden: as given, read-only.

    Raises:
        ValueError: arrays of other shapes, tasks without names of their own, or as `ClickMetrics`.

    Example:
        >>> labels, golden = np.array([[1, 0], [0, 1]]), np.array([[2.0, 1.0], [1.0, 0.0]])
        >>> metrics = MultiMetrics(labels, golden, [0.5, 0.5], ["click", "buy"])
        >>> metrics.measures(["auc", "auc/click", "auc/buy"], golden)
        {'auc': 0.5, 'auc/click': 1.0, 'auc/buy': 0.0}
    """

    def __init__(
        self,
        labels: np.ndarray,
        golden: np.ndarray,
        priors: Sequence[float],
        tasks: Sequence[str],
        users: np.ndarray | None = None,
        **options: Any,
    ) -> None:
        labels, self.golden, tasks = np.asarray(labels), np.array(golden), tuple(tasks)
        if not tasks or "" in tasks or len(set(tasks)) < len(tasks):
            raise ValueError(f"tasks are {tasks}; they must be different names, one or more")
        if labels.shape != self.golden.shape or labels.shape[1:] != (len(tasks),) or len(priors) != len(tasks):
            raise ValueError(
                f"labels of shape {labels.shape}, golden of shape {self.golden.shape}, {len(priors)} priors and {len(tasks)} "
                "tasks; they must be [n, T], [n, T], T and T"
            )
        self._by_task: dict[str, ClickMetrics] = {}
        self._observed: list[np.ndarray | None] = []  # rows of a task, int64; None: all
        for t, task in enumerate(tasks):
            missing = np.isnan(labels[:, t])
            self._observed.append(rows := np.flatnonzero(~missing) if missing.any() else None)
            of_task = [_of_rows(column, rows) for column in (labels[:, t], self.golden[:, t], users)]
            try:
                self._by_task[task] = ClickMetrics(*of_task[:2], priors[t], of_task[2], **options)
            except ValueError as error:
                raise ValueError(f"task {task!r}: {error}") from error
        self.golden.setflags(write=False)

    def of_clicks(self, scores: np.ndarray, changed: np.ndarray | None = None) -> OfClicks:
        """The means over tasks of AUC, log loss and normalised entropy of scores [n, T].

        Args:
            scores: [n, T].
            changed: as of `BaselineMetrics.auc`.

        Raises:
            ValueError: scores of another shape, or as `BaselineMetrics.auc`.
        """
        measured = self.measures(OF_CLICKS, scores, changed)
        return measured["auc"], measured["logloss"], measured["ne"]

    def measures(
        self, names: Sequence[str], scores: np.ndarray, changed: np.ndarray | None = None
    ) -> dict[str, float | None]:
        """Metrics by name; None for those of users where rows have none.

        Raises:
            ValueError: an unknown name; else as `of_clicks`.
        """
        for name in names:
            self.check_name(name)
        scores = np.asarray(scores)
        if scores.shape != self.golden.shape:
            raise ValueError(f"scores of shape {scores.shape}; the golden ones are {list(self.golden.shape)}")
        split = [name.partition("/")[::2] for name in names]
        measured: dict[str, float | None] = dict.fromkeys(names)
        by_task = {}
        for t, (task, metrics) in enumerate(self._by_task.items()):
            bases = list(dict.fromkeys(base for base, each_task in split if each_task in ("", task)))
            rows, of_changed = self._observed[t], changed
            if rows is not None and changed is not None:
                of_changed = np.searchsorted(
                    rows, np.intersect1d(rows, distinct_rows(checked_rows(changed), len(scores)))
                )
            by_task[task] = metrics.measures(bases, _of_rows(scores[:, t], rows), of_changed) if bases else {}
        for name, (base, task) in zip(names, split, strict=True):
            values = [by_task[task][base]] if task else [each_task[base] for each_task in by_task.values()]
            measured[name] = None if None in values else float(np.mean(values))
        return measured

    def auc_parts(self, scores: np.ndarray) -> np.ndarray | None:
        """Each row's part of the error over rows of the mean AUC of scores [n, T], float64 [n]."""
        every = np.zeros(scores.shape)  # 0 where a label was not observed
        for t, (metrics, rows) in enumerate(zip(self._by_task.values(), self._observed, strict=True)):
            part = metrics.auc_parts(_of_rows(scores[:, t], rows))
            every[slice(None) if rows is None else rows, t] = np.nan if part is None else part
        return None if np.isnan(every).any() else every.mean(axis=1)

    def check_name(self, name: str) -> None:
        """Raises ValueError for an unknown name or task."""
        base, slash, task = name.partition("/") if isinstance(name, str) else (name, "", "")
        split_name(base, CLICK)
        if slash and task not in self._by_task:
            raise unknown("task", task, self._by_task)

    def check(self, golden: np.ndarray) -> None:
        """Raises RuntimeError if the arrays here are not those of the golden scores."""
        check_same({"MultiMetrics.golden": self.golden}, {"MultiMetrics.golden": np.asarray(golden)})
        for t, metrics in enumerate(self._by_task.values()):
            metrics.check(_of_rows(golden[:, t], self._observed[t]))


def _of_rows(column: np.ndarray | None, rows: np.ndarray | None) -> np.ndarray | None:
    """The values of some rows (None: all) of a column, if there is one."""
    return column if column is None or rows is None else column[rows]


class RankMetrics:
    """Metrics of the scores [n, items] of all items for every row, by the lists of its best k items.

    A row is what a user is for `ClickMetrics`, and its relevant items are what her clicks are; rows without a relevant item
    count in `overlap` and `list_changed` alone. `score_changed`, `deviated_*` and `median_change` are over all scores. There is
    no AUC, log loss or normalised entropy: they are None.

    Args:
        relevant: the items that are relevant to each row: int64 [n], or with any number per row as the data's `Ids` (`values`
            of all rows, `lengths` per row). A negative item is none.
        golden: scores [n, items] without errors, finite, or -inf of items that a row does not offer (that a user has seen):
            they come last in its list, and have not changed where they are -inf with errors too.
        k: length of a list, where the name has none.
        epsilon: distance beyond which a score has moved.

    Attributes:
        golden: as given, read-only.

    Raises:
        ValueError: arrays of other shapes, items that are no whole numbers or have no score, golden scores that are NaN or
            +inf, or a k or epsilon out of its range.

    Example:
        >>> golden = np.array([[0.1, 0.9, 0.5], [0.7, 0.2, 0.3]])
        >>> metrics, scores = RankMetrics(np.array([1, 2]), golden, k=1), golden.copy()
        >>> scores[0, 2] = 1e9  # a bit flipped
        >>> metrics.measures(["hit_rate", "hit_rate@2", "list_changed"], scores, changed=np.array([0]))
        {'hit_rate': 0.0, 'hit_rate@2': 1.0, 'list_changed': 0.5}
    """

    def __init__(self, relevant: Any, golden: np.ndarray, *, k: int = 5, epsilon: float = EPSILON) -> None:
        self._relevant, self.golden = relevant, np.array(golden)
        if self.golden.ndim != 2 or not self.golden.shape[1]:
            raise ValueError(f"golden of shape {self.golden.shape}; it must be [n, items]")
        check_finite(self.golden, masked=True)
        self._epsilon, lists = checked_epsilon(epsilon), ItemLists(*self.golden.shape, k)
        self._lists = ListMetrics(lists, is_relevant(relevant, *self.golden.shape), self.golden)
        self.golden.setflags(write=False)

    def of_clicks(self, scores: np.ndarray, changed: np.ndarray | None = None) -> OfClicks:
        """None, None, None."""
        return None, None, None

    def measures(
        self, names: Sequence[str], scores: np.ndarray, changed: np.ndarray | None = None
    ) -> dict[str, float | None]:
        """Metrics by name.

        Args:
            names: lists' metrics, `score_changed`, `deviated_0.01`, `deviated_0.1`, `median_change`; None for AUC and the like.
            scores: [n, items].
            changed: distinct row numbers, all rows that may have a score that differs from the golden one in any bit; None: any
                row.

        Raises:
            ValueError: an unknown name, scores of another shape, or rows that are no distinct numbers of rows.
        """
        bases = {name: split_name(name, RANK) for name in names}
        scores, rows = np.asarray(scores), None
        if scores.shape != self.golden.shape:
            raise ValueError(f"scores of shape {scores.shape}; the golden ones are {list(self.golden.shape)}")
        if changed is not None and scores.dtype == self.golden.dtype:
            rows = distinct_rows(checked_rows(changed), len(scores))
        measured: dict[str, float | None] = dict.fromkeys(names)
        of_lists = {name: base for name, base in bases.items() if base[0] in LISTS}
        if of_lists:
            measured |= self._lists.measures(of_lists, scores, rows)
        for name in set(names) - set(of_lists) - set(OF_CLICKS):
            measured[name] = self._of_scores(name, scores, rows)
        return measured

    def _of_scores(self, name: str, scores: np.ndarray, rows: np.ndarray | None) -> float:
        """A metric over all scores, of which those of all but `rows` (None: any row) are golden."""
        n, items = self.golden.shape
        if name == "median_change":
            if rows is not None and 2 * len(rows) < n:  # most have not changed
                return 0.0
            return median_change(scores.ravel(), self.golden.ravel())
        count = 0
        for part in parts(np.arange(n) if rows is None else rows, items):
            pair = scores[part], self.golden[part]
            is_changed = (
                is_moved(*pair, self._epsilon) if name == "score_changed" else is_deviated(*pair, DEVIATED[name])
            )
            count += np.count_nonzero(is_changed)
        return count / self.golden.size if n else float("nan")

    def check_name(self, name: str) -> None:
        """Raises ValueError for an unknown name."""
        split_name(name, RANK)

    def check(self, golden: np.ndarray) -> None:
        """Raises RuntimeError if the arrays here are not those of the golden scores."""
        fresh = RankMetrics(self._relevant, golden, k=self._lists.lists.k, epsilon=self._epsilon)
        mine, others = {"RankMetrics.golden": self.golden}, {"RankMetrics.golden": fresh.golden}
        check_same(mine | self._lists.arrays(), others | fresh._lists.arrays(self._lists))


def is_relevant(relevant: Any, n: int, items: int) -> np.ndarray:
    """Whether item i is relevant to row r, bool [n * items] at r * items + i.

    Raises:
        ValueError: as `RankMetrics`.
    """
    values, lengths = (relevant.values, relevant.lengths) if hasattr(relevant, "lengths") else (relevant, None)
    values = np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"relevant is {values.dtype} of shape {values.shape}; it must be item numbers, int64 [n]")
    lengths = np.ones(len(values), np.int64) if lengths is None else np.asarray(lengths)
    if len(lengths) != n or lengths.sum() != len(values):
        raise ValueError(f"relevant items of {len(lengths)} rows ({len(values)} items), and golden scores of {n} rows")
    rows = np.repeat(np.arange(n), lengths)
    if (invalid := np.flatnonzero(values >= items)).size:
        row, item = rows[invalid[0]], values[invalid[0]]
        raise ValueError(f"row {row} has the relevant item {item}, and there are scores of items 0 to {items - 1}")
    is_item = values >= 0
    flags = np.zeros(n * items, bool)
    flags[rows[is_item] * items + values[is_item]] = True
    return flags
