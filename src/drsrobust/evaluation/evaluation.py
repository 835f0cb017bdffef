"""The result of one evaluation: its outcome and its metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from drsrobust.metrics import served
from drsrobust.metrics.tasks import ClickMetrics, MultiMetrics, RankMetrics

TaskMetrics = ClickMetrics | MultiMetrics | RankMetrics | Any  # or those that passes have of their own
NUMBERS = ("outcome", "rows_reached", "auc", "logloss", "ne", "nan_rows", "inf_rows")  # that every rank has


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of one evaluation of n rows.

    Attributes:
        outcome: `ok`; `nonfinite` (a score is NaN, or infinite and not masked without errors); `raised` (the
            model raised: metrics are None).
        rows_reached: rows whose scores errors may have changed; only these were computed again.
        auc: of logits, or of the float32 probabilities that a server returns (see `scores` of `Evaluator`); the mean over
            tasks; None for ranking.
        logloss (nats per row), ne: of logits, in float64; the mean over tasks; None for ranking.
        nan_rows, inf_rows: rows with a score that is NaN; other rows with an infinite one.
        scores: logits float32 [n], or [n, T] or [n, items]; do not write to them. None of a stream, and of a model that is
            sharded over ranks on all but the first.
        error: text of the exception, if any.
    """

    outcome: str
    rows_reached: int
    auc: float | None = None
    logloss: float | None = None
    ne: float | None = None
    nan_rows: int | None = None
    inf_rows: int | None = None
    scores: np.ndarray | None = field(default=None, repr=False)
    error: str | None = None
    _reference: Any = field(default=None, repr=False)  # TaskMetrics
    _changed: np.ndarray | None = field(default=None, repr=False)

    @property
    def probabilities(self) -> np.ndarray | None:
        """Click probabilities float32, the sigmoid of `scores` computed in float32; None if there are no scores."""
        return None if self.scores is None else served(self.scores)

    @cached_property
    def auc_parts(self) -> np.ndarray | None:
        """Each row's part of the error of `auc` over rows, float64 [n], whose squares sum up to DeLong's variance; None without
        an AUC or scores."""
        return None if self.auc is None or self.scores is None else self._reference.auc_parts(self.scores)

    def unreached(self) -> "Evaluation":
        """The same as the result of errors that affect no row."""
        return replace(self, rows_reached=0, _changed=np.empty(0, np.int64))

    def metric(self, name: str) -> float | None:
        """A further metric of `drsrobust.metrics.NAMES`: `calibration`; of users' lists of k rows `ndcg`, `hit_rate`, `recall`,
        and against golden lists `overlap`, `list_changed`, `users_harmed` (`ndcg@10` sets k); of rows `decision_changed`
        and `decision_changed_no_click` (a NaN is wrong, or no click), `nan_share`, `score_changed`; against golden scores
        `deviated_0.01`, `deviated_0.1`, `median_change`, `spearman`. Of one of several tasks: `ndcg/<task>`. None if the model
        raised or the data has no users.

        Raises:
            ValueError: an unknown name.
        """
        return self.metrics([name])[name]

    def metrics(self, names: Sequence[str]) -> dict[str, float | None]:
        """Several metrics at once, which takes less time than one by one."""
        for name in names:
            self._reference.check_name(name)
        if self.scores is None:
            return {name: getattr(self, name, None) for name in names}  # of a stream there are those of clicks
        return self._reference.measures(names, self.scores, self._changed)


def compared(result: Evaluation, scores: str) -> np.ndarray | Any:
    """The scores of a result, float32 in the shape of `result.scores`, that AUC and own metrics compare (`scores` of
    `Evaluator`); None if there are none."""
    return result.scores if scores == "logit" else result.probabilities


def non_finite_rows(scores: np.ndarray, golden: np.ndarray | None = None) -> tuple[int, int]:
    """The number of rows with NaN, and of other rows with an infinite score, of scores [n], [n, T] or [n, items]. A score of
    -inf whose golden one is -inf too is that of a masked item, and does not count."""
    finite = np.isfinite(scores)
    if finite.all():
        return 0, 0
    if golden is not None:
        finite |= np.isneginf(scores) & np.isneginf(golden)
    rows = len(scores)
    nan_rows = int(np.isnan(scores).reshape(rows, -1).any(axis=1).sum())
    return nan_rows, int((~finite).reshape(rows, -1).any(axis=1).sum()) - nan_rows
