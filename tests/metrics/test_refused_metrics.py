"""What metrics refuse: the message names what is wrong, and shows it."""

import math

import numpy as np
import pytest
import torchmetrics

import drsrobust.metrics as metrics
from drsrobust.data.dataset import Ids
from drsrobust.metrics import BaselineMetrics, ClickMetrics, MultiMetrics, OwnMetric, RankMetrics, own_metrics
from drsrobust.metrics.auc import auc_interval, placements
from tests.refusals import refuses

NAN, NONE = math.nan, np.zeros(2)
ROWS, CLICKS = np.arange(100), np.arange(100) % 2
TWO = np.stack([CLICKS, CLICKS], axis=1)


def reference(**changed):
    return BaselineMetrics(
        **{"labels": CLICKS, "golden": np.zeros(100), "prior": 0.5, "users": ROWS, "compare": "logit"} | changed
    )


def tasks(**changed):
    return MultiMetrics(
        **{"labels": np.eye(2), "golden": np.zeros((2, 2)), "priors": [0.5, 0.5], "tasks": ["a", "b"]} | changed
    )


def two_tasks():
    return MultiMetrics(TWO, np.zeros((100, 2)), [0.5, 0.5], ["click", "buy"])


def rankings(relevant=ROWS % 2, golden=None):
    return RankMetrics(relevant, np.zeros((100, 2)) if golden is None else golden)


def harmed(**changed):
    good = {"labels": CLICKS[:3], "scores": np.zeros(3), "golden": np.zeros(3), "users": ROWS[:3], "k": 5}
    return metrics.users_harmed(**good | changed)


def own(value):
    return OwnMetric("mine", lambda labels, scores, golden_scores, users: value)


def golden_of(metric):
    return metric.check_golden(CLICKS, np.zeros(100), None)


WITH_PRIOR = (metrics.log_loss, metrics.normalised_entropy, metrics.calibration)
OF_TWO = (metrics.decision_changed, metrics.score_changed, metrics.median_change, metrics.spearman)


# The call, and what the message says of the argument and of its value.
CASES = [
    (lambda: metrics.auc(np.zeros(3), NONE), "labels of shape (3,)", "scores of shape (2,)"),
    (lambda: metrics.auc(TWO, TWO), "[n]"),
    (lambda: metrics.auc(np.array([0, 1, NAN]), np.zeros(3)), "labels", "nan"),
    *[(lambda one=one: one(np.array([0, 2]), NONE, 0.5), "labels", "2") for one in WITH_PRIOR],
    *[(lambda v=v: metrics.log_loss(np.array([1, 0]), np.array([0.0, NAN]), v), "prior", str(v)) for v in (-0.1, NAN)],
    *[(lambda one=one: one(NONE, np.zeros(3)), "scores of shape (2,)", "golden of shape (3,)") for one in OF_TWO],
    (lambda: metrics.deviated(NONE, np.zeros(3), 0.1), "scores of shape (2,)", "golden of shape (3,)"),
    *[(lambda v=v: metrics.deviated(NONE, NONE, v), "threshold", str(v)) for v in (-0.1, NAN)],
    (lambda: placements(np.ones(6), np.zeros(6)), "6 clicks", "0 other rows"),
    (lambda: auc_interval(np.arange(6) == 0, np.zeros(6)), "1 clicks", "5 other rows"),
    # users' lists
    (lambda: harmed(users=np.arange(2)), "users of shape (2,)"),
    (lambda: harmed(users=np.arange(3.0)), "users", "float64"),
    (lambda: harmed(labels=np.array([0, 1, 3])), "labels", "3"),
    (lambda: harmed(scores=np.zeros((1, 3, 1)), golden=np.zeros((3, 2))), "golden of shape (3, 2)"),
    (lambda: metrics.topk_overlap(np.zeros(3), NONE, ROWS[:3], 5), "golden of shape (2,)"),
    (lambda: metrics.UserLists(np.array([1, 1]), k=2).top(np.zeros(3)), "3 scores", "2 rows of users"),
    # metrics against golden scores
    *[
        (lambda one=one, of=of: of(reference())(np.zeros(100), one[0]), "changed", one[1])
        for one in ((np.array([100]), "100"), (np.array([-1]), "-1"), (np.array([7, 7]), "7 twice"), (NONE, "float64"))
        for of in (lambda found: found.auc, lambda found: lambda *given: found.measure("ndcg", *given))
    ],
    (lambda: reference().auc(np.zeros(100), np.zeros(100, bool)), "changed", "bool"),
    (lambda: reference().log_loss(np.zeros(3)), "scores of shape (3,)", "[100]"),
    (lambda: reference(golden=np.where(ROWS == 1, NAN, 0.0)), "golden score nan of row 1"),
    (lambda: reference(users=ROWS[:3]), "users of shape (3,)"),
    *[
        (lambda name=name, v=v: reference(**{name: v}), name, str(v))
        for name, v in (("prior", 2.0), ("k", 0), ("threshold", 1.0), ("epsilon", -1.0))
    ],
    (lambda: reference(compare="logits"), "scores", "logits"),
    # several tasks, rankings
    (lambda: tasks(tasks=["a"]), "labels of shape (2, 2)", "2 priors and 1 tasks"),
    (lambda: tasks(labels=NONE), "labels of shape (2,)"),
    (lambda: tasks(priors=[0.5]), "1 priors and 2 tasks"),
    *[(lambda v=v: tasks(tasks=v), "tasks", str(tuple(v))) for v in (["a", "a"], ["a", ""])],
    (lambda: tasks(golden=np.array([[0.0, NAN], [0, 0]])), "task 'b'", "golden score nan of row 0"),
    (lambda: tasks(labels=np.array([[0, 1], [2, 0]])), "task 'a'", "2"),
    (lambda: rankings(np.array([0, 3]), np.zeros((2, 3))), "row 1", "item 3", "0 to 2"),
    (lambda: rankings(np.zeros(2), np.zeros((2, 3))), "relevant", "float64"),
    (lambda: rankings(np.array([0]), np.zeros((2, 3))), "relevant", "1 rows (1 items)", "2 rows"),
    (lambda: rankings(Ids(np.array([0, 1]), np.array([1, 2])), np.zeros((2, 3))), "2 rows (2 items)"),
    (lambda: rankings(np.array([0, 1]), NONE), "golden of shape (2,)"),
    (lambda: rankings(np.array([0, 1]), np.array([[0, 1], [np.inf, 0]])), "golden score inf of row 1"),
    *[
        (lambda of=of, given=given: of().measures(["score_changed"], *given[:2]), *given[2:])
        for of in (two_tasks, rankings)
        for given in (
            (np.zeros((2, 2)), None, "scores of shape (2, 2)", "[100, 2]"),
            (np.zeros((100, 2)), np.array([100]), "changed", "100"),
            (np.zeros((100, 2)), np.array([1, 1]), "changed", "1 twice"),
            (np.zeros((100, 2)), np.zeros(100, bool), "changed", "bool"),
        )
    ],
    (lambda: two_tasks().check_name("auc/bui"), "task", "bui", "buy"),
    (lambda: ClickMetrics(CLICKS, np.zeros(100), 0.4).check_name("auc/buy"), "metric", "auc/buy"),
    *[(lambda v=v: rankings().check_name(v), "metric", v) for v in ("calibration", "decision_changed", "spearman")],
    # own metrics
    *[(lambda v=v: golden_of(own(v)), "'mine'", str(v)) for v in (NAN, math.inf)],
    (lambda: golden_of(OwnMetric("mine", lambda *_: 1 / 0)), "'mine'", "ZeroDivisionError"),
    (lambda: golden_of(OwnMetric("mine", lambda labels, scores: 1.0)), "2 positional arguments but 4"),
    *[(lambda v=v: own_metrics({v: len}), "built in", v) for v in ("auc", "ndcg", "ndcg@10", "recall@10", "ne")],
    *[(lambda v=v: own_metrics({v: len}), "name", repr(v)) for v in ("mine/click", "", 5)],
]


@pytest.mark.parametrize(("call", "said"), [(call, said) for call, *said in CASES], ids=range(len(CASES)))
def test_what_is_refused_is_named(call, said):
    refuses(call, ValueError, *said)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        *[
            (lambda v=v, call=call: call(own(v)), ("'mine'", kind))
            for v, kind in (
                (None, "NoneType"),
                ("0.5", "str"),
                (np.zeros(3), "ndarray of shape [3]"),
                ({"auc": 0.5}, "dict"),
                (1j, "complex"),
            )
            for call in (golden_of, lambda one: one(CLICKS, NONE, NONE, None))
        ],
        (lambda: own_metrics({"mine": 0.5}), ("'mine'", "a float")),
        (lambda: own_metrics({"mine": torchmetrics.MeanSquaredError}), ("'mine'", "the class MeanSquaredError")),
    ],
)
def test_what_is_no_metric(call, said):
    refuses(call, TypeError, *said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ndgc", "'ndgc'; did you mean 'ndcg'"),
        ("gauc", "'gauc'; known: auc.*; metrics={'gauc': function}"),
        ("ndgc@10", "'ndgc'; did you mean 'ndcg'"),
        ("ndcg@0", "'ndcg@0'"),
        ("ndcg@x", "'ndcg@x'"),
        ("ndcg@", "'ndcg@'"),
        ("auc@3", "'auc@3': auc"),
        (5, "5"),
    ],
)
def test_names_of_metrics_that_are_refused(name, said):
    for found in (ClickMetrics(CLICKS, np.zeros(100), 0.4), two_tasks(), rankings()):
        found.check_name("ndcg@10")
        for answer in (found.check_name, lambda name, found=found: found.measures([name], found.golden)):
            with pytest.raises(ValueError, match=f"metric {said}"):
                answer(name)
