import math

import numpy as np
import pytest
from scipy.special import expit

from drsrobust.metrics import decision_changed, decision_changed_no_click, nan_share, score_changed


def test_decisions_by_probability():
    rng = np.random.default_rng(0)
    golden, scores = rng.normal(size=(2, 5000)).astype(np.float32)
    for threshold in (0.1, 0.5, 0.9):
        expected = np.mean((expit(scores) > threshold) != (expit(golden) > threshold))
        assert decision_changed(scores, golden, threshold) == pytest.approx(expected, abs=1e-3)
    assert decision_changed(golden, golden) == 0.0


def test_the_threshold_is_not_rounded_to_the_scores():
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
    assert math.isnan(decision_changed(np.array([]), np.array([]))) and math.isnan(
        score_changed(np.array([]), np.array([]))
    )


def test_moved():
    golden = np.zeros(4, np.float32)
    scores = np.array([0.0, 1e-3, -2e-3, 3e38], np.float32)
    assert score_changed(scores, golden) == 0.75  # 1e-3 as a float32 is above 1e-3
    assert score_changed(scores, golden, epsilon=0.002) == 0.5 and score_changed(scores, golden, epsilon=0) == 0.75
    assert score_changed(-scores, scores, epsilon=1.0) == 0.25  # no float32 difference overflows


@pytest.mark.parametrize("threshold", [0, 1, -0.5, math.nan])
def test_thresholds(threshold):
    with pytest.raises(ValueError, match=f"threshold is {threshold}; it must be a probability between 0 and 1"):
        decision_changed(np.zeros(2), np.zeros(2), threshold)


@pytest.mark.parametrize("epsilon", [-1.0, math.inf, math.nan])
def test_distances(epsilon):
    with pytest.raises(ValueError, match=f"epsilon is {epsilon}; it must be a finite distance"):
        score_changed(np.zeros(2), np.zeros(2), epsilon)


@pytest.mark.parametrize("metric", [decision_changed, score_changed])
def test_lengths(metric):
    with pytest.raises(ValueError, match=r"scores of shape \(2,\) and golden of shape \(3,\); both must be \[n\]"):
        metric(np.zeros(2), np.zeros(3))
