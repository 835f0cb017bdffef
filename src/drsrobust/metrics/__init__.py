"""Metrics of click predictions, on raw logits, with one rule for scores that are not numbers.

+inf and -inf keep their order. A NaN carries no information: in AUC every pair it is in counts 1/2; in log loss, normalised
entropy and calibration it predicts the click rate of the training rows; in a user's top-k list it is never shown; as a
decision it is incorrect; beside the golden score it is infinitely far, in a rank correlation tied with every other row.
`Reference` answers all of them for scores that differ from the golden ones in few rows.
"""

from drsrobust.metrics.decisions import flipped, moved
from drsrobust.metrics.deviation import DEVIATIONS, deviated, median_change, spearman
from drsrobust.metrics.likelihood import P_MIN, calibration, log_loss, normalised_entropy, probabilities
from drsrobust.metrics.lists import UserLists
from drsrobust.metrics.ranking import hit_rate, ndcg, reranked, topk_overlap, users_harmed
from drsrobust.metrics.reference import NAMES, Reference
from drsrobust.metrics.roc import auc

__all__ = [
    "DEVIATIONS",
    "NAMES",
    "P_MIN",
    "Reference",
    "UserLists",
    "auc",
    "calibration",
    "deviated",
    "flipped",
    "users_harmed",
    "hit_rate",
    "log_loss",
    "median_change",
    "moved",
    "ndcg",
    "normalised_entropy",
    "probabilities",
    "reranked",
    "spearman",
    "topk_overlap",
]
