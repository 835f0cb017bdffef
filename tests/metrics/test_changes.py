import math
import warnings
from functools import partial

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import spearmanr

from drsrobust.metrics import (
    auc,
    decision_changed,
    decision_changed_no_click,
    deviated,
    median_change,
    nan_share,
    score_changed,
    spearman,
)


def test_decisions_by_probability():
    rng = np.random.default_rng(0)
    golden, scores = rng.normal(size=(2, 5000)).astype(np.float32)
    for threshold in (0.1, 0.5, 0.9):
        expected = np.mean((expit(scores) > threshold) != (expit(golden) > threshold))
        assert decision_changed(scores, golden, threshold) == pytest.approx(expected, abs=1e-3)
    assert decision_changed(golden, golden) == 0.0
    # The threshold is not rounded to the scores.
    at = np.float32(math.log(0.1 / 0.9))  # one of its neighbours is on the other side of the exact logit
    near = np.array([np.nextafter(at, np.float32(-9)), at, np.nextafter(at, np.float32(9))], np.float32)
    golden = np.full(3, -5, np.float32)
    assert decision_changed(near, golden, 0.1) == np.mean(near.astype(np.float64) > math.log(0.1) - math.log1p(-0.1))


def test_decisions_without_a_number():
    nan, inf = math.nan, math.inf
    scores, golden = np.array([nan, nan, inf, -inf, inf, -inf]), np.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
    assert decision_changed(scores, golden) == 4 / 6
    assert decision_changed_no_click(scores, golden) == 3 / 6  # the first NaN in place of a click
    assert nan_share(scores) == 2 / 6  # so that a check for NaN leaves 4 / 6 - 2 / 6 wrong
    assert score_changed(scores, golden) == 1.0


def test_moved():
    golden = np.zeros(4, np.float32)
    scores = np.array([0.0, 1e-3, -2e-3, 3e38], np.float32)
    assert score_changed(scores, golden) == 0.75  # 1e-3 as a float32 is above 1e-3
    assert score_changed(scores, golden, epsilon=0.002) == 0.5 and score_changed(scores, golden, epsilon=0) == 0.75
    assert score_changed(-scores, scores, epsilon=1.0) == 0.25  # no float32 difference overflows


def test_relative_changes():
    golden = np.array([100.0, -100.0, 1.0, 0.0, 0.0], np.float32)
    scores = np.array([101.0, -98.0, 1.001, 0.0, 1e-30], np.float32)
    assert deviated(scores, golden, 0.01) == 0.4  # 1 % is not over 1 %; of 0 any change is
    assert deviated(scores, golden, 0.1) == 0.2 and deviated(scores, golden, 0) == 0.8
    assert deviated(golden, golden, 0.01) == 0.0


def test_no_difference_overflows():
    large = np.array([3e38, -3e38], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert median_change(-large, large) == pytest.approx(6e38)
        assert deviated(-large, large, 1.5) == 1.0 and deviated(-large, large, 2.5) == 0.0


def test_median_change_counts_what_is_no_number_as_infinitely_far():
    golden = np.zeros(5, np.float32)
    assert median_change(np.array([0, 0, 0, np.nan, np.inf], np.float32), golden) == 0.0
    assert median_change(np.array([-0.5, 0.25, 0, np.nan, -np.inf], np.float32), golden) == 0.5
    assert median_change(np.array([0, 0, np.nan, np.nan, -np.inf], np.float32), golden) == math.inf


def test_spearman_is_scipys_where_all_are_numbers():
    rng = np.random.default_rng(0)
    golden = rng.normal(size=500).round(1).astype(np.float32)
    scores = (golden + rng.normal(size=500)).round(1).astype(np.float32)
    assert spearman(scores, golden) == pytest.approx(spearmanr(scores, golden).statistic, abs=1e-12)
    assert spearman(golden, golden) == 1.0 and spearman(-golden, golden) == -1.0
    assert spearman(np.exp(golden), golden) == 1.0


def test_spearman_ties_a_nan_with_every_row():
    """By pairs: Spearman's ranks are counts of pairs won, in which a NaN counts 1/2 as in AUC."""
    rng = np.random.default_rng(1)
    golden, scores = rng.normal(size=(2, 60))
    scores[rng.random(60) < 0.2], scores[:3] = np.nan, [np.inf, -np.inf, np.inf]
    others = [np.delete(np.arange(60), row) for row in range(60)]
    won = [
        auc(np.append(1, np.zeros(59)), np.append(scores[row], scores[rest])) for row, rest in enumerate(others)
    ]  # AUC of a single click is the share of the others that it beats, ties counting 1/2
    expected = np.corrcoef(won, golden.argsort().argsort())[0, 1]
    assert spearman(scores, golden) == pytest.approx(expected, abs=1e-12)


def test_scores_that_tell_nothing():
    golden = np.arange(4.0)
    assert spearman(np.full(4, np.nan), golden) == 0.0 and spearman(np.full(4, np.inf), golden) == 0.0
    assert math.isnan(spearman(golden, np.zeros(4))) and math.isnan(spearman(golden[:1], golden[:1]))
    none = np.array([])
    for metric in (decision_changed, score_changed, spearman, median_change, partial(deviated, threshold=0)):
        assert math.isnan(metric(none, none))
