import math
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

import drsrobust.metrics as metrics
from drsrobust.metrics import ClickMetrics, MultiMetrics, RankMetrics, known_bounds
from drsrobust.metrics.item_lists import ItemLists

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


def test_rows_without_users_have_no_lists():
    labels, golden, _, scores, _ = clicks()
    found = ClickMetrics(labels, golden, 0.4).measures(["auc", "recall", "ndcg@10", "score_changed"], scores)
    assert found["recall"] is None and found["ndcg@10"] is None and None not in (found["auc"], found["score_changed"])


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
    return Ids(
        np.array([item for row in relevant for item in row], np.int32), np.array([*map(len, relevant)], np.int32)
    )


def best(scores, k):
    shown = [item for item, score in enumerate(scores) if not math.isnan(score)]
    return sorted(shown, key=lambda item: -scores[item])[:k]


def dcg(items, wanted):
    return sum(1 / math.log2(2 + rank) for rank, item in enumerate(items) if item in wanted)


def row_by_row(relevant, golden, scores, k, epsilon):
    lists, golden_lists = ([best(row.tolist(), k) for row in one] for one in (scores, golden))
    judged = [row for row, wanted in enumerate(relevant) if wanted]
    places = min(k, golden.shape[1])

    def ndcg(row, items):
        return dcg(items, relevant[row]) / dcg(range(min(k, len(relevant[row]))), range(k))

    def average(values):
        return sum(values) / len(values) if values else math.nan

    with np.errstate(invalid="ignore"):
        change = np.abs(scores.astype(float) - golden)
    change[np.isnan(change)] = math.inf
    return {
        "ndcg": average([ndcg(row, lists[row]) for row in judged]),
        "hit_rate": average([bool({*lists[row]} & {*relevant[row]}) for row in judged]),
        "recall": average([len({*lists[row]} & {*relevant[row]}) / len(relevant[row]) for row in judged]),
        "overlap": average([len({*one} & {*other}) / places for one, other in zip(lists, golden_lists, strict=True)]),
        "list_changed": average([one != other for one, other in zip(lists, golden_lists, strict=True)]),
        "users_harmed": average([ndcg(row, lists[row]) < ndcg(row, golden_lists[row]) - 1e-12 for row in judged]),
        "score_changed": float(np.mean(change > epsilon)),
        "deviated_0.01": float(np.mean(change > 0.01 * np.abs(golden.astype(float)))),
        "deviated_0.1": float(np.mean(change > 0.1 * np.abs(golden.astype(float)))),
        "median_change": float(np.median(change)),
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


def test_few_changed_rows_cost_what_these_rows_cost(monkeypatch):
    relevant, golden, scores, rows = rank(5, 300, 20)
    found, ordered, best_items = RankMetrics(as_ids(relevant), golden), [], ItemLists._best
    monkeypatch.setattr(ItemLists, "_best", lambda self, some: ordered.append(len(some)) or best_items(self, some))
    found.measures(["recall", "ndcg", "overlap"], scores, rows)
    assert 0 < sum(ordered) == len(rows)


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


def test_what_was_written_to_is_found():
    relevant, golden, _, _ = rank(1, 5, 4)
    found = RankMetrics(as_ids(relevant), golden)
    found.measures(["ndcg@2"], golden)
    with pytest.raises(ValueError, match="read-only"):
        found.golden[0, 0] = 9
    with pytest.raises(RuntimeError, match="RankMetrics.golden is not what"):
        found.check(golden + 1)
    found.check(golden)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ndgc", "unknown metric 'ndgc'; did you mean 'ndcg'"),
        ("gauc", "unknown metric 'gauc'; known: auc.*; metrics={'gauc': function} takes one of your own"),
        ("ndgc@10", "unknown metric 'ndgc'; did you mean 'ndcg'"),
        ("ndcg@0", "metric 'ndcg@0': the length of a list must be a whole number, 1 or more, as in 'ndcg@10'"),
        ("ndcg@x", "metric 'ndcg@x': the length of a list"),
        ("ndcg@", "metric 'ndcg@': the length of a list"),
        ("auc@3", "metric 'auc@3': auc is not of lists; those that take a length are ndcg, hit_rate, recall"),
        (5, "unknown metric 5"),
    ],
)
def test_names_that_are_refused(name, says):
    labels, golden, _, _, _ = clicks()
    several = np.stack([golden, golden], axis=1)
    for found, scores in (
        (ClickMetrics(labels, golden, 0.4), golden),
        (MultiMetrics(np.stack([labels, labels], axis=1), several, [0.4, 0.4], ["a", "b"]), several),
        (RankMetrics(np.zeros(400, np.int64), several), several),
    ):
        found.check_name("ndcg@10")
        for answer in (found.check_name, lambda name, found=found, scores=scores: found.measures([name], scores)):
            with pytest.raises(ValueError, match=says):
                answer(name)


def test_names_of_other_tasks_are_refused():
    labels, golden, _, _, _ = tasks()
    found = MultiMetrics(labels, golden, [0.4, 0.4], ["click", "buy"])
    with pytest.raises(ValueError, match="unknown task 'bui'; did you mean 'buy'"):
        found.check_name("auc/bui")
    with pytest.raises(ValueError, match="unknown metric 'auc/buy'; did you mean 'auc'"):
        ClickMetrics(labels[:, 0], golden[:, 0], 0.4).check_name("auc/buy")
    ranked = RankMetrics(np.zeros(400, np.int64), golden)
    for name in ("calibration", "decision_changed", "spearman"):
        with pytest.raises(ValueError, match=f"unknown metric '{name}'"):
            ranked.check_name(name)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"tasks": ["a"]},
            r"labels of shape \(2, 2\), golden of shape \(2, 2\), 2 priors and 1 tasks; they must be \[n, T\]",
        ),
        ({"labels": np.zeros(2)}, r"labels of shape \(2,\)"),
        ({"priors": [0.5]}, "1 priors and 2 tasks"),
        ({"tasks": ["a", "a"]}, r"tasks are \('a', 'a'\); they must be different names"),
        ({"tasks": ["a", ""]}, "they must be different names"),
        ({"golden": np.array([[0.0, np.nan], [0, 0]])}, "task 'b': golden score nan of row 0; scores without errors"),
        ({"labels": np.array([[0, 1], [2, 0]])}, "task 'a': labels hold 2"),
    ],
)
def test_tasks_that_are_refused(change, says):
    good = {"labels": np.eye(2), "golden": np.zeros((2, 2)), "priors": [0.5, 0.5], "tasks": ["a", "b"]}
    with pytest.raises(ValueError, match=says):
        MultiMetrics(**good | change)


@pytest.mark.parametrize(
    ("relevant", "golden", "says"),
    [
        (np.array([0, 3]), np.zeros((2, 3)), "row 1 has the relevant item 3, and there are scores of items 0 to 2"),
        (np.array([0.0, 1.0]), np.zeros((2, 3)), r"relevant is float64 of shape \(2,\); it must be item numbers"),
        (np.array([0]), np.zeros((2, 3)), r"relevant items of 1 rows \(1 items\), and golden scores of 2 rows"),
        (Ids(np.array([0, 1]), np.array([1, 2])), np.zeros((2, 3)), r"of 2 rows \(2 items\)"),
        (np.array([0, 1]), np.zeros(2), r"golden of shape \(2,\); it must be \[n, items\]"),
        (np.array([0, 1]), np.array([[0, 1], [np.inf, 0]]), "golden score inf of row 1; scores without errors must be"),
    ],
)
def test_rankings_that_are_refused(relevant, golden, says):
    with pytest.raises(ValueError, match=says):
        RankMetrics(relevant, golden)


@pytest.mark.parametrize(
    ("scores", "changed", "says"),
    [
        (np.zeros((2, 2)), None, r"scores of shape \(2, 2\); the golden ones are \[40, 2\]"),
        (np.zeros((40, 2)), np.array([40]), "changed holds 40; rows are numbered 0 to 39"),
        (np.zeros((40, 2)), np.array([1, 1]), "changed holds row 1 twice"),
        (np.zeros((40, 2)), np.zeros(40, bool), "changed is bool"),
    ],
)
def test_scores_and_rows_that_are_refused(scores, changed, says):
    labels = np.stack([np.arange(40) % 2] * 2, axis=1)
    for found in (
        MultiMetrics(labels, np.zeros((40, 2)), [0.5, 0.5], ["a", "b"]),
        RankMetrics(np.zeros(40, int), np.zeros((40, 2))),
    ):
        with pytest.raises(ValueError, match=says):
            found.measures(["score_changed"], scores, changed)


def test_known_bounds():
    for name in ("auc", "ndcg", "hit_rate", "recall", "overlap", "list_changed", "users_harmed", "deviated_0.01"):
        assert known_bounds(name) == known_bounds(f"{name}/buy") == (0.0, 1.0)
    assert known_bounds("ndcg@10") == known_bounds("recall@3/buy") == (0.0, 1.0)
    assert known_bounds("logloss/buy") == known_bounds("median_change") == (0.0, math.inf)
    assert known_bounds("spearman") == (-1.0, 1.0)
    assert known_bounds("auc_drop") is None and known_bounds("mine@10") is None
    assert all(known_bounds(name) for name in metrics.NAMES)
