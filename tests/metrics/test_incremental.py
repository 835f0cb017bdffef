import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drsrobust.metrics as metrics
from drsrobust.metrics import NAMES, BaselineMetrics
from drsrobust.metrics import incremental as module

EXTREMES = np.array([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])
LISTS = ("ndcg", "hit_rate", "recall", "overlap", "list_changed", "users_harmed")
LISTS += ("ndcg@7", "recall@1", "hit_rate@50", "overlap@1", "users_harmed@7")
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
    of_users, one, two = dict.fromkeys(LISTS), (labels, shown), (shown, golden_shown)
    given = {"ndcg": one, "hit_rate": one, "recall": one, "topk_overlap": two, "list_changed": two}
    for name in LISTS if users is not None else ():
        base, _, length = name.replace("overlap", "topk_overlap").partition("@")
        of_users[name] = getattr(metrics, base)(*given.get(base, (labels, *two)), users, int(length or K))
    return found | of_users


def by_reference(reference, scores, changed):
    first = {name: getattr(reference, name)(scores, changed) for name in ("auc", "log_loss", "normalised_entropy")}
    return first | reference.measures(dict.fromkeys((*NAMES, *LISTS)), scores, changed)


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
    reference, before = BaselineMetrics(labels, golden, PRIOR, users, **options), (labels.copy(), golden.copy())
    rows = rng.choice(n, round(share * n), replace=False)
    scores = upset(rng, golden, rows)
    expected = in_full(labels, golden, users, scores, compare)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_SHARE_CHANGED", few)
        same(by_reference(reference, scores, rows), expected)
    same(by_reference(reference, scores[:, None], None), expected)
    reference.check(golden)
    for array, was in zip((labels, golden), before, strict=True):
        assert (array == was).all() and array.flags.writeable


def test_a_twentieth_of_the_rows_is_looked_at_alone():
    """Others count as golden, though here they are not; beyond, all rows are looked at."""
    rng = np.random.default_rng(3)
    labels, users, golden = drawn(rng, 200, 20, False, np.float32)
    reference = BaselineMetrics(labels, golden, PRIOR, users, k=K, threshold=THRESHOLD, epsilon=EPSILON)
    scores = upset(rng, golden, np.arange(200))
    for count in (1, 10, 11):
        known = np.where(np.arange(200) < (count if count <= 10 else 200), scores, golden)
        found, expected = by_reference(reference, scores, np.arange(count)), in_full(labels, golden, users, known)
        names = set(expected) - set(LISTS) - set(module.DEVIATIONS)
        same({name: found[name] for name in names}, {name: expected[name] for name in names})


@pytest.mark.parametrize("own", [False, True])
def test_all_pairs_are_counted_where_any_row_changed_or_many_and_a_device_counts(own, monkeypatch):
    rng, gains, real = np.random.default_rng(2), [], module.GoldenPairs._gain
    monkeypatch.setattr(module, "FEW_CHANGED", 3)
    monkeypatch.setattr(module.GoldenPairs, "_gain", lambda self, *given: gains.append(given) or real(self, *given))
    labels, _, golden = drawn(rng, 50, 5, True, np.float32)
    pairs = module.GoldenPairs(labels == 1, golden, *([lambda *given: module.twice_won(*given)] if own else []))
    for count, by_gain in ((3, True), (4, not own), (None, False)):
        scores = upset(rng, golden, np.arange(count or 50))
        assert pairs.auc(scores, count and np.arange(count)) == metrics.auc(labels, scores)
        assert bool(gains) == by_gain
        gains.clear()


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


def test_scores_of_another_kind():
    """float64 scores beside float32 golden ones: all rows count as changed."""
    rng = np.random.default_rng(7)
    labels, users, golden = drawn(rng, 200, 20, False, np.float32)
    reference = BaselineMetrics(labels, golden, PRIOR, users, k=K, threshold=THRESHOLD, epsilon=EPSILON)
    scores = golden + rng.normal(size=200) * 1e-9
    same(by_reference(reference, scores, np.array([3])), in_full(labels, golden, users, scores))
