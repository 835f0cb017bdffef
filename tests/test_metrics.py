import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from drsrobust.metrics import auc, log_loss, normalised_entropy, probabilities


def pairwise(labels, scores):
    """The definition, pair by pair: a NaN is comparable to nothing and counts 1/2."""
    wins = [
        0.5 if math.isnan(p) or math.isnan(n) or p == n else float(p > n)
        for p, a in zip(scores, labels, strict=True)
        for n, b in zip(scores, labels, strict=True)
        if a == 1 and b == 0
    ]
    return sum(wins) / len(wins)


SCORE = st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, 2.0, math.nan, math.inf, -math.inf]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), SCORE), min_size=2, max_size=30))
def test_auc_is_the_definition(rows):
    labels, scores = np.array([r[0] for r in rows]), np.array([r[1] for r in rows], np.float32)
    if len(set(labels.tolist())) == 1:
        assert math.isnan(auc(labels, scores))
    else:
        assert auc(labels, scores) == pytest.approx(pairwise(labels, scores), abs=1e-12)


@pytest.mark.parametrize("decimals", [1, 3, 9])
def test_auc_against_scikit_learn(decimals):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 5000).astype(np.float32)
    scores = (rng.normal(size=5000) + labels).round(decimals).astype(np.float32)
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert auc(labels, 1000 * scores) == auc(labels, scores)  # large logits are no ties
    scores[:40] = np.inf
    finite = np.where(np.isinf(scores), np.float32(3e38), scores)
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, finite), abs=1e-12)


def test_constant_and_missing_scores_are_a_coin_toss():
    labels = np.array([0, 1, 1, 0])
    assert auc(labels, np.zeros(4)) == 0.5
    assert auc(labels, np.full(4, np.nan)) == 0.5
    assert auc(labels, np.array([0.0, np.nan, np.nan, 1.0])) == 0.5


def test_log_loss_and_entropy():
    rng = np.random.default_rng(1)
    labels, logits = rng.integers(0, 2, 1000), rng.normal(size=1000) * 3
    p = 1 / (1 + np.exp(-logits))
    assert log_loss(labels, logits, prior=0.3) == pytest.approx(sklearn_log_loss(labels, p))
    rate = labels.mean()
    base = sklearn_log_loss(labels, np.full(1000, rate))
    assert normalised_entropy(labels, logits, 0.3) == pytest.approx(sklearn_log_loss(labels, p) / base)
    assert math.isnan(normalised_entropy(np.ones(3), np.zeros(3), 0.3))


def test_scores_that_are_not_numbers():
    p = probabilities(np.array([np.nan, np.inf, -np.inf, 0.0]), prior=0.3)
    assert p == pytest.approx([0.3, 1 - 1e-12, 1e-12, 0.5])
    assert log_loss(np.array([1]), np.array([np.nan]), 0.3) == pytest.approx(-math.log(0.3))
    assert log_loss(np.array([1]), np.array([-np.inf]), 0.3) == pytest.approx(-math.log(1e-12))


@pytest.mark.parametrize(
    ("labels", "scores", "says"),
    [
        ([0, 1, 1], [0.1, 0.2], r"labels of shape \(3,\) and scores of shape \(2,\)"),
        ([[0, 1], [1, 0]], [[0.1, 0.2], [0.3, 0.4]], r"both must be \[n\]"),
        ([0, 1, math.nan], [0.1, 0.2, 0.3], "labels hold nan; they must be 0 or 1"),
        ([0, 2], [0.1, 0.2], "labels hold 2"),
    ],
)
@pytest.mark.parametrize("metric", [auc, lambda labels, scores: log_loss(labels, scores, 0.5)])
def test_input_that_is_no_input(metric, labels, scores, says):
    with pytest.raises(ValueError, match=says):
        metric(np.array(labels), np.array(scores))


def test_columns_will_do():
    assert auc(np.array([[0], [1]]), np.array([[0.1], [0.2]])) == 1.0
