import math
from itertools import chain
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

import drsrobust.metrics as metrics
from drsrobust.metrics import ClickMetrics, MultiMetrics, RankMetrics, known_bounds

EXTREMES = np.array([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])
LISTS = ("ndcg", "hit_rate", "recall", "overlap", "list_changed", "users_harmed")


class Ids(NamedTuple):
    """As the data's."""

    values: np.ndarray
    lengths: np.ndarray | None = None


def same(found, expected):
    """Bit for bit; a NaN is a NaN."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value or (value != value and found[name] != found[name]), name


def clicks(seed=0, n=400):
    rng = np.random.default_rng(seed)
    golden = rng.normal(size=n).astype(np.float32)
    labels, users = (rng.random(n) < 1 / (1 + np.exp(-golden))).astype(np.float32), rng.integers(0, 40, n)
    scores, rows = golden.copy(), rng.choice(n, 9, replace=False)
    scores[rows] = rng.permutation([*EXTREMES, 2.0, -3.0, 1e30])
    return labels, golden, users, scores, rows


def test_the_headline_of_clicks():
    labels, golden, users, _, _ = clicks()
    found = ClickMetrics(labels, golden, 0.4, users)
    p, rate = 1 / (1 + np.exp(-golden.astype(float))), labels.mean()
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    loss = log_loss(labels, p)
    assert found.of_clicks(golden) == pytest.approx((roc_auc_score(labels, golden), loss, loss / entropy), abs=1e-6)
    assert found.measures(["ne", "ndcg", "auc"], golden)["ne"] == found.of_clicks(golden)[2]
    assert list(found.measures(["ne", "ndcg", "auc"], golden)) == ["ne", "ndcg", "auc"]


@pytest.mark.parametrize("compare", ["probability", "logit"])
def test_all_metrics_of_clicks(compare):
    labels, golden, users, scores, rows = clicks()
    options = {"k": 4, "threshold": 0.3, "epsilon": 0.01, "compare": compare}
    found = ClickMetrics(labels, golden, 0.4, users, **options)
    names = ["auc", "logloss", "ne", *metrics.NAMES, "recall@10", "ndcg@1", "users_harmed@40"]
    values = found.measures(names, scores)
    same(found.measures(names, scores, rows), values)
    assert found.of_clicks(scores, rows) == found.of_clicks(scores) == tuple(values[name] for name in names[:3])
    shown = metrics.served(scores) if compare == "probability" else scores
    assert values["auc"] == metrics.auc(labels, shown)
    assert values["logloss"] == metrics.log_loss(labels, scores, 0.4)
    assert values["ne"] == metrics.normalised_entropy(labels, scores, 0.4)
    assert values["recall@10"] == metrics.recall(labels, shown, users, 10)
    assert values["ndcg"] == metrics.ndcg(labels, shown, users, 4)
    assert values["score_changed"] == metrics.score_changed(scores, golden, 0.01)
    assert (found.golden == golden).all() and not found.golden.flags.writeable
    found.check(golden)
    with pytest.raises(RuntimeError, match="something wrote to it"):
        found.check(golden + 1)


def tasks():
    one, two = clicks(1), clicks(2)
    labels, golden, scores = (np.stack([one[i], two[i]], axis=1) for i in (0, 1, 3))
    return labels, golden, one[2], scores, np.union1d(one[4], two[4])


def test_each_task_and_the_mean_of_both():
    labels, golden, users, scores, rows = tasks()
    options = {"k": 4, "threshold": 0.3, "epsilon": 0.01, "compare": "logit"}
    found = MultiMetrics(labels, golden, np.array([0.4, 0.6]), ["click", "buy"], users, **options)
    plain = ["auc", "logloss", "ne", *metrics.NAMES, "ndcg@10", "overlap@2"]
    names = [*plain, *(f"{name}/{task}" for name in plain for task in ("click", "buy"))]
    values = found.measures(names, scores)
    same(found.measures(names, scores, rows), values)
    for t, (task, prior) in enumerate((("click", 0.4), ("buy", 0.6))):
        own, column = labels[:, t], scores[:, t]
        assert values[f"auc/{task}"] == metrics.auc(own, column)
        assert values[f"logloss/{task}"] == metrics.log_loss(own, column, prior)
        assert values[f"ne/{task}"] == metrics.normalised_entropy(own, column, prior)
        assert values[f"ndcg/{task}"] == metrics.ndcg(own, column, users, 4)
        assert values[f"ndcg@10/{task}"] == metrics.ndcg(own, column, users, 10)
        assert values[f"overlap@2/{task}"] == metrics.topk_overlap(column, golden[:, t], users, 2)
        assert values[f"decision_changed/{task}"] == metrics.decision_changed(column, golden[:, t], 0.3)
    for name in plain:
        assert values[name] == pytest.approx((values[f"{name}/click"] + values[f"{name}/buy"]) / 2, rel=1e-15), name
    assert found.of_clicks(scores) == found.of_clicks(scores, rows) == tuple(values[name] for name in plain[:3])
    without = MultiMetrics(labels, golden, [0.4, 0.6], ["click", "buy"], compare="logit")
    assert without.measures(["ndcg", "ndcg/buy", "auc/buy"], scores)["ndcg"] is None
    assert without.measures(["ndcg/buy"], scores)["ndcg/buy"] is None
    found.check(golden)
    with pytest.raises(RuntimeError, match="MultiMetrics.golden is not what"):
        found.check(golden[::-1].copy())


def rank(seed, n, items, dtype=np.float32):
    """Relevant items by row (a list), golden scores with ties, scores that differ in some rows, these rows."""
    rng = np.random.default_rng(seed)
    relevant = [sorted(set(rng.integers(0, items, rng.integers(0, 5)).tolist())) for _ in range(n)]
    golden = rng.normal(size=(n, items)).round(1).astype(dtype) + dtype(0)
    scores, rows = golden.copy(), rng.choice(n, min(n, int(rng.integers(0, 12))), replace=False)
    for row in rows:
        where = rng.choice(items, rng.integers(1, items + 1), replace=False)
        scores[row, where] = np.where(rng.random(len(where)) < 0.5, rng.choice(EXTREMES, len(where)), 2.0)
    return relevant, golden, scores, rows


def as_ids(relevant):
    return Ids(np.array([*chain(*relevant)], np.int32), np.array([*map(len, relevant)], np.int32))


def row_by_row(relevant, golden, scores, k, epsilon):
    """By the functions, of which a row is a user: her rows are the items, and she clicks on the relevant ones."""
    users = np.repeat(np.arange(len(golden)), golden.shape[1])
    labels = np.array([item in row for row in relevant for item in range(golden.shape[1])], float)
    scores, golden = scores.ravel(), golden.ravel()
    found = {name: getattr(metrics, name)(labels, scores, users, k) for name in ("ndcg", "hit_rate", "recall")}
    return found | {
        "overlap": metrics.topk_overlap(scores, golden, users, k),
        "list_changed": metrics.list_changed(scores, golden, users, k),
        "users_harmed": metrics.users_harmed(labels, scores, golden, users, k),
        "score_changed": metrics.score_changed(scores, golden, epsilon),
        "deviated_0.01": metrics.deviated(scores, golden, 0.01),
        "deviated_0.1": metrics.deviated(scores, golden, 0.1),
        "median_change": metrics.median_change(scores, golden),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(12))
def test_rankings_row_by_row(seed, dtype):
    n, items = ((40, 17), (7, 300), (13, 1), (25, 6))[seed % 4]
    relevant, golden, scores, rows = rank(seed, n, items, dtype)
    found = RankMetrics(as_ids(relevant), golden, k=3, epsilon=0.05)
    values = {}
    for k in (3, 1, 10):
        expected = row_by_row(relevant, golden, scores, k, 0.05)
        names = {name: name if k == 3 else f"{name}@{k}" for name in expected if k == 3 or name in LISTS}
        values |= found.measures(list(names.values()), scores)
        for name, asked in names.items():
            assert values[asked] == pytest.approx(expected[name], abs=1e-12, nan_ok=True), asked
    same(found.measures(list(values), scores, rows), values)
    same(found.measures(list(values), scores, np.arange(n)), values)
    found.check(golden)


def test_rankings_of_many_items_at_once():
    """More scores than are ordered in one part."""
    relevant, golden, scores, rows = rank(3, 700, 400)
    found = RankMetrics(as_ids(relevant), golden, k=10)
    values = found.measures(LISTS, scores)
    expected = row_by_row(relevant, golden, scores, 10, 1e-3)
    assert values == pytest.approx({name: expected[name] for name in LISTS}, abs=1e-12)
    same(found.measures(LISTS, scores, rows), values)
    with pytest.raises(RuntimeError, match="RankMetrics.golden"):
        found.check(golden + 1)


def test_one_relevant_item_or_none():
    golden = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    found = RankMetrics(np.array([0, 0, -1]), golden, k=1)
    names = ["hit_rate", "hit_rate@3", "recall", "overlap", "auc", "logloss", "ne"]
    nothing = {"auc": None, "logloss": None, "ne": None}
    expected = {"hit_rate": 0.5, "hit_rate@3": 1.0, "recall": 0.5, "overlap": 1.0}
    assert found.measures(names, golden) == expected | nothing
    assert found.of_clicks(golden) == (None, None, None)
    assert RankMetrics(Ids(np.array([0, 0, -1])), golden, k=1).measures(names, golden) == expected | nothing
    twice = RankMetrics(Ids(np.array([0, 0, 2]), np.array([3, 0, 0])), golden, k=1)
    assert twice.measures(["recall"], golden) == {"recall": 0.5}  # items 0 and 2, one of them shown
    scores = golden.copy()
    scores[0] = np.nan
    assert found.measures(["hit_rate@3"], scores, np.array([0])) == {"hit_rate@3": 0.5}  # a NaN is never shown


def test_known_bounds():
    for name in ("auc", *LISTS, "deviated_0.01", "ndcg@10", "recall@3"):
        assert known_bounds(name) == known_bounds(f"{name}/buy") == (0.0, 1.0)
    assert known_bounds("logloss/buy") == known_bounds("median_change") == (0.0, math.inf)
    assert known_bounds("spearman") == (-1.0, 1.0)
    assert known_bounds("auc_drop") is None and known_bounds("mine@10") is None
    assert all(known_bounds(name) for name in metrics.NAMES)
