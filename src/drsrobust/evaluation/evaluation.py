"""What comes out of scoring the rows of a split once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from drsrobust._names import unknown
from drsrobust.metrics import NAMES, Reference


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What came out of one evaluation of n rows.

    Attributes:
        outcome: `ok`; `nonfinite` (a score is NaN or infinite); `raised` (the model raised: metrics are None).
        rows_reached: rows whose scores errors may have changed; only these were computed anew.
        auc, logloss (nats per row), ne: metrics under the rules of `drsrobust.metrics`.
        nan_rows, inf_rows: rows whose score is NaN, or infinite.
        scores: logits float32 [n]; do not write to them.
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
    _reference: Reference | None = field(default=None, repr=False)
    _changed: np.ndarray | None = field(default=None, repr=False)

    def unreached(self) -> "Evaluation":
        """The same, as the answer for errors that reach no row."""
        return replace(self, rows_reached=0, _changed=np.empty(0, np.int64))

    def metric(self, name: str) -> float | None:
        """A further metric: `calibration`; of users' lists of k rows `ndcg`, `hit_rate`, and against golden lists `overlap`,
        `reranked`, `users_harmed`; of rows `flipped`, `moved`; against golden scores `deviated_0.01`, `deviated_0.1`,
        `median_change`, `spearman` (see `drsrobust.metrics`). None where the model raised, or where the data has no users.

        Raises:
            ValueError: an unknown name.
        """
        return self.metrics([name])[name]

    def metrics(self, names: Sequence[str]) -> dict[str, float | None]:
        """Several of them at once, which takes less time than one by one."""
        for name in names:
            if name not in NAMES:
                raise unknown("metric", name, NAMES)
        if self._reference is None:
            return dict.fromkeys(names)
        return self._reference.measures(names, self.scores, self._changed)
