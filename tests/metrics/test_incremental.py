import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drsrobust.metrics as metrics
from drsrobust.metrics import NAMES, BaselineMetrics
from drsrobust.metrics import incremental as module

EXTREMES = np.array([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])
K, THRESHOLD, EPSILON, PRIOR = 3, 0.3, 0.01, 0.25


def in_full(labels, golden, users, scores, compare="logit"):
    """Every metric by its function; AUC, lists and decisions of what is compared."""
    shown, golden_shown = scores, golden
    if compare == "probability":
        shown, golden_shown = metrics.served(scores), metrics.served(golden)
        decided = (shown > np.float32(THRESHOLD)) != (golden_shown > np.float32(THRESHOLD))
        decisions = float(np.mean(decided | np.isnan(shown))), float(np.mean(decided))
    else:
        rules = (metrics.decision_changed, metrics.decision_changed_no_click)
        decisions = tuple(rule(scores, golden, THRESHOLD) for rule in rules)
    found = {
        "auc": metrics.auc(labels, shown),
        "log_loss": metrics.log_loss(labels, scores, PRIOR),
        "normalised_entropy": metrics.normalised_entropy(labels, scores, PRIOR),
        "calibration": metrics.calibration(labels, scores, PRIOR),
        "decision_changed": decisions[0],
        "decision_changed_no_click": decisions[1],
        "nan_share": metrics.nan_share(scores),
        "score_changed": metrics.score_changed(scores, golden, EPSILON),
        "deviated_0.01": metrics.deviated(scores, golden, 0.01),
        "deviated_0.1": metrics.deviated(scores, golden, 0.1),
        "median_change": metrics.median_change(scores, golden),
        "spearman": metrics.spearman(scores, golden),
    }
    of_users = dict.fromkeys(("ndcg", "hit_rate", "recall", "overlap", "list_changed", "users_harmed"))
    if users is not None:
        of_users = {
            "ndcg": metrics.ndcg(labels, shown, users, K),
            "hit_rate": metrics.hit_rate(labels, shown, users, K),
            "recall": metrics.recall(labels, shown, users, K),
            "overlap": metrics.topk_overlap(shown, golden_shown, users, K),
            "list_changed": metrics.list_changed(shown, golden_shown, users, K),
            "users_harmed": metrics.users_harmed(labels, shown, golden_shown, users, K),
        }
    return found | of_users


def by_reference(reference, scores, changed):
    first = {name: getattr(reference, name)(scores, changed) for name in ("auc", "log_loss", "normalised_entropy")}
    return first | {name: reference.measure(name, scores, changed) for name in NAMES}


def same(found, expected):
    """Bit for bit; a NaN is a NaN."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value or (value != value and found[name] != found[name]), name


def drawn(rng, n, people, ties, dtype):
    labels, users = rng.integers(0, 2, n).astype(np.float32), rng.integers(0, people, n) * 17
    return labels, users, (rng.normal(size=n).round(0 if ties else 9) + 0.0).astype(dtype)


def upset(rng, golden, rows):
    """Golden scores with new ones in some rows: near, far, tied with golden ones, extreme."""
    scores = golden.copy()
    new = rng.normal(size=len(rows)) * rng.choice([1e-4, 1, 1e30], len(rows))
    new = np.where(rng.random(len(rows)) < 0.3, rng.choice(golden, len(rows)), new)
    new = np.where(rng.random(len(rows)) < 0.3, rng.choice(EXTREMES, len(rows)), new)
    scores[rows] = new.astype(golden.dtype)
    return scores


@pytest.mark.parametrize("few", [0.0, 1.0], ids=["all rows", "changed rows"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("compare", module.SCORES)
@settings(max_examples=75, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 40), st.booleans(), st.booleans(), st.floats(0, 1))
def test_every_answer_is_that_of_the_function(dtype, few, compare, seed, n, people, ties, with_users, share):
    rng = np.random.default_rng(seed)
    labels, users, golden = drawn(rng, n, people, ties, dtype)
    users = users if with_users else None
    options = {"k": K, "threshold": THRESHOLD, "epsilon": EPSILON, "compare": compare}
    reference = BaselineMetrics(labels, golden, PRIOR, users, **options)
    rows = rng.choice(n, round(share * n), replace=False)
    scores = upset(rng, golden, rows)
    expected = in_full(labels, golden, users, scores, compare)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_SHARE_CHANGED", few)
        same(by_reference(reference, scores, rows), expected)
    same(by_reference(reference, scores, None), expected)
    assert reference.measures(NAMES, scores).keys() == set(NAMES)
    reference.check(golden)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ties", [False, True])
def test_many_rows(ties, dtype):
    rng = np.random.default_rng(5)
    labels, users, golden = drawn(rng, 30_001, 2500, ties, dtype)
    reference = BaselineMetrics(labels, golden, PRIOR, users, k=K, threshold=THRESHOLD, epsilon=EPSILON)
    for count in (0, 1, 2, 100, 1500, 1501, 30_001):
        rows = rng.choice(30_001, count, replace=False)
        scores = upset(rng, golden, rows)
        expected = in_full(labels, golden, users, scores)
        same(by_reference(reference, scores, rows), expected)
        same(by_reference(reference, scores[:, None], rows), expected)
        same(by_reference(reference, scores, None), expected)


def test_nothing_drifts():
    """After 10,000 measurements all is as it was, and so are the answers."""
    rng = np.random.default_rng(6)
    labels, users, golden = drawn(rng, 400, 30, False, np.float32)
    given_arrays = [array.copy() for array in (labels, users, golden)]
    reference = BaselineMetrics(labels, golden, PRIOR, users)
    before = by_reference(reference, golden, np.array([], np.int64))
    for trial in range(3400):  # of three each
        rows = rng.choice(400, rng.integers(1, 20), replace=False)
        scores = upset(rng, golden, rows)
        reference.measure(NAMES[trial % len(NAMES)], scores, rows)
        reference.auc(scores, rows), reference.log_loss(scores, rows)
    reference.check(golden)
    same(by_reference(reference, golden, np.array([], np.int64)), before)
    for array, was in zip((labels, users, golden), given_arrays, strict=True):
        assert (array == was).all() and array.flags.writeable


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("floats", "integers"), [(np.float32, np.uint32), (np.float64, np.uint64)])
def test_a_signalling_nan_is_a_nan(floats, integers):
    """What a flipped bit makes of an infinity; arithmetic on it would warn."""
    labels, users, golden = np.arange(100) % 2, np.arange(100) % 7, np.linspace(-1, 1, 100).astype(floats)
    reference = BaselineMetrics(labels, golden, PRIOR, users, k=K, threshold=THRESHOLD, epsilon=EPSILON)
    quiet, signalling = golden.copy(), golden.copy()
    quiet[:3] = np.nan
    signalling.view(integers)[:3] = np.array([np.inf, np.inf, -np.inf], floats).view(integers) | integers(1)
    expected = in_full(labels, golden, users, quiet)
    same(in_full(labels, golden, users, signalling), expected)
    same(by_reference(reference, signalling, np.arange(3)), expected)


def test_nothing_can_be_written_to():
    reference = BaselineMetrics(np.array([0, 1]), np.zeros(2), 0.5, np.array([1, 2]))
    with pytest.raises(ValueError, match="read-only"):
        reference.golden[0] = 1
    reference.golden.setflags(write=True)
    reference.golden[0] = 1
    with pytest.raises(RuntimeError, match="BaselineMetrics.golden is not what it was made of the golden scores"):
        reference.check(np.zeros(2))


@pytest.mark.parametrize("compare", module.SCORES)
@pytest.mark.parametrize("count", [0, 3, 300])
def test_the_length_of_lists_in_the_name(compare, count):
    rng = np.random.default_rng(count)
    labels, users, golden = drawn(rng, 2000, 90, True, np.float32)
    reference = BaselineMetrics(labels, golden, PRIOR, users, k=K, compare=compare)
    rows = rng.choice(2000, count, replace=False)
    scores = upset(rng, golden, rows)
    shown, golden_shown = (metrics.served(one) if compare == "probability" else one for one in (scores, golden))
    expected = {}
    for k in (1, 7, 20, 1000):
        lists = {"ndcg": metrics.ndcg, "hit_rate": metrics.hit_rate, "recall": metrics.recall}
        expected |= {f"{name}@{k}": function(labels, shown, users, k) for name, function in lists.items()}
        expected[f"overlap@{k}"] = metrics.topk_overlap(shown, golden_shown, users, k)
        expected[f"list_changed@{k}"] = metrics.list_changed(shown, golden_shown, users, k)
        expected[f"users_harmed@{k}"] = metrics.users_harmed(labels, shown, golden_shown, users, k)
    expected["ndcg"] = metrics.ndcg(labels, shown, users, K)
    for changed in (rows, None):
        same(reference.measures(list(expected), scores, changed), expected)
    same(reference.measures([f"ndcg@{K}"], scores, rows), {f"ndcg@{K}": expected["ndcg"]})
    reference.check(golden)
    with pytest.raises(RuntimeError, match="is not what it was made of the golden scores"):
        reference.check(np.roll(golden, 1))


def test_scores_of_another_kind():
    """float64 scores beside float32 golden ones: all rows count as changed."""
    rng = np.random.default_rng(7)
    labels, users, golden = drawn(rng, 200, 20, False, np.float32)
    reference = BaselineMetrics(labels, golden, PRIOR, users, k=K, threshold=THRESHOLD, epsilon=EPSILON)
    scores = golden + rng.normal(size=200) * 1e-9
    same(by_reference(reference, scores, np.array([3])), in_full(labels, golden, users, scores))


def test_rows_without_users():
    reference = BaselineMetrics(np.array([0, 1]), np.array([0.0, 1.0]), 0.5)
    found = reference.measures(NAMES, np.array([0.0, 1.0]))
    assert [name for name in NAMES if found[name] is None] == [
        "ndcg",
        "hit_rate",
        "recall",
        "overlap",
        "list_changed",
        "users_harmed",
    ]


def test_a_metric_there_is_not():
    reference = BaselineMetrics(np.array([0, 1]), np.array([0.0, 1.0]), 0.5)
    with pytest.raises(ValueError, match="unknown metric 'ndgc'; did you mean 'ndcg'"):
        reference.measure("ndgc", np.zeros(2))


@pytest.mark.parametrize(
    ("scores", "changed", "says"),
    [
        (np.zeros(3), None, r"scores of shape \(3,\); the golden ones are \[100\]"),
        (np.zeros(100), np.array([100]), "changed holds 100; rows are numbered 0 to 99"),
        (np.zeros(100), np.array([-1]), "changed holds -1"),
        (np.zeros(100), np.array([7, 7]), "changed holds row 7 twice"),
        (np.zeros(100), np.array([0.5]), "changed is float64"),
        (np.zeros(100), np.zeros(100, bool), "changed is bool"),
    ],
)
def test_scores_and_rows_that_are_refused(scores, changed, says):
    reference = BaselineMetrics(np.arange(100) % 2, np.zeros(100), 0.5, np.arange(100))
    for answer in (reference.auc, reference.log_loss, lambda *given: reference.measure("ndcg", *given)):
        with pytest.raises(ValueError, match=says):
            answer(scores, changed)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"golden": np.array([0.0, np.nan])}, "golden score nan of row 1; scores without errors must be finite"),
        ({"users": np.array([1, 2, 3])}, r"users of shape \(3,\)"),
        ({"prior": 2.0}, "prior must be .*, got 2.0"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"threshold": 1.0}, "threshold must be .*, got 1.0"),
        ({"epsilon": -1.0}, "epsilon must be .*, got -1.0"),
    ],
)
def test_a_reference_that_is_refused(change, says):
    good = {"labels": np.array([0, 1]), "golden": np.zeros(2), "prior": 0.5}
    with pytest.raises(ValueError, match=says):
        BaselineMetrics(**good | change)
