"""Metrics of click predictions, with one rule for scores that are not numbers.

Functions take logits or what a server returns (`served`); infinities keep their order. A NaN carries no information: in AUC
every pair it is in counts 1/2; in log loss, normalised entropy and calibration it predicts the click rate of the training rows;
in a user's top-k list it is never shown; as a decision it is incorrect (or "no click", in
`decision_changed_no_click`); its distance from the golden score is infinite; in a
rank correlation it ties with every other row.
`BaselineMetrics` computes all metrics of scores that differ from the golden ones in few rows; `ClickMetrics`, `MultiMetrics`
and `RankMetrics` do so for the tasks of an evaluator, and `OwnMetric` is a user's function.
"""

from drsrobust._names import face
from drsrobust.metrics.auc import auc
from drsrobust.metrics.changes import (
    DEVIATIONS,
    decision_changed,
    decision_changed_no_click,
    deviated,
    median_change,
    nan_share,
    score_changed,
    spearman,
)
from drsrobust.metrics.incremental import BaselineMetrics
from drsrobust.metrics.log_loss import P_MIN, calibration, log_loss, normalised_entropy, probabilities, served
from drsrobust.metrics.names import NAMES
from drsrobust.metrics.own import OwnMetric, own_metrics
from drsrobust.metrics.ranking import UserLists, hit_rate, list_changed, ndcg, recall, topk_overlap, users_harmed
from drsrobust.metrics.tasks import ClickMetrics, MultiMetrics, RankMetrics
from drsrobust.statistics.headline import known_bounds

__getattr__, __dir__, __all__ = face(__name__)
