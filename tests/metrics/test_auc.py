import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from drsrobust.metrics import auc
from drsrobust.metrics.auc import argsort_keys, auc_difference, auc_interval, best_first_keys, placements


def pairwise(labels, scores):
    """The definition, pair by pair: a NaN is comparable to nothing and counts 1/2."""
    wins = [
        0.5 if math.isnan(p) or math.isnan(n) or p == n else float(p > n)
        for p, a in zip(scores, labels, strict=True)
        for n, b in zip(scores, labels, strict=True)
        if a == 1 and b == 0
    ]
    return sum(wins) / len(wins)


def by_comparison(labels, scores):
    """The same in runs of equal scores after a sort by comparison: integers too, so equal bit for bit."""
    known = ~np.isnan(scores)
    order = np.argsort(scores[known])
    ordered, clicks = scores[known][order], labels[known][order].astype(np.int64)
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    m, n, m_all = int(clicks.sum()), len(clicks), int(labels.sum())
    pairs, twice = m_all * (len(labels) - m_all), 0
    if m and m < n:
        click = np.add.reduceat(clicks, starts)
        other = np.diff(np.append(starts, n)) - click
        twice = int((click * (2 * (np.cumsum(other) - other) + other)).sum())
    return (twice + (pairs - m * (n - m))) / (2 * pairs)


SCORE = st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, 2.0, math.nan, math.inf, -math.inf]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), SCORE), min_size=2, max_size=30), st.sampled_from(["f2", "f4", "f8"]))
def test_auc_is_the_definition(rows, dtype):
    with np.errstate(over="ignore"):
        labels, scores = np.array([r[0] for r in rows]), np.array([r[1] for r in rows]).astype(dtype)
    if len(set(labels.tolist())) == 1:
        assert math.isnan(auc(labels, scores))
    else:
        assert auc(labels, scores) == pytest.approx(pairwise(labels, scores), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decimals", [0, 2, 12])
def test_auc_by_radix_is_auc_by_comparison(decimals, dtype):
    rng = np.random.default_rng(decimals)
    labels = (rng.random(100_000) < 0.3).astype(np.float32)
    scores = (rng.normal(size=100_000) + labels).round(decimals).astype(dtype)
    assert auc(labels, scores) == by_comparison(labels, scores)
    scores *= dtype(10) ** rng.integers(-30, 30, 100_000).astype(dtype)
    scores[rng.integers(0, 100_000, 500)] = np.nan
    scores[rng.integers(0, 100_000, 500)] = -np.nan
    scores[rng.integers(0, 100_000, 500)] = -np.inf
    assert auc(labels, scores) == by_comparison(labels, scores)


@pytest.mark.parametrize(("floats", "integers"), [(np.float32, np.uint32), (np.float64, np.uint64)])
def test_keys_are_in_the_order_of_the_scores(floats, integers):
    """Of arbitrary bits: subnormals, infinities, both zeros, NaN of either sign, quiet and signalling."""
    bits = np.random.default_rng(1).integers(0, np.iinfo(integers).max, 20_000, integers, endpoint=True)
    bits[:3000] |= np.array(np.inf, floats).view(integers)  # many NaN
    scores = np.concatenate([bits.view(floats), np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], floats)])
    order = argsort_keys(best_first_keys(scores))
    with np.errstate(invalid="ignore"):
        assert (order == np.argsort(-scores, kind="stable")).all()


def test_constant_and_missing_scores_are_a_coin_toss():
    labels = np.array([0, 1, 1, 0])
    assert auc(labels, np.zeros(4)) == auc(labels[:, None], np.zeros((4, 1))) == 0.5
    assert auc(labels, np.full(4, np.nan)) == 0.5
    assert auc(labels, np.array([0.0, np.nan, np.nan, 1.0])) == 0.5


def pairs(labels, scores):
    """The kernel of every pair (click, other), by its definition."""
    clicks, others = scores[labels == 1][:, None], scores[labels == 0][None, :]
    known = ~(np.isnan(clicks) | np.isnan(others))
    return np.where(known, (clicks > others) + 0.5 * (clicks == others), 0.5)


@pytest.mark.parametrize("special", [0, 7])
def test_placements_are_means_over_pairs(special):
    rng = np.random.default_rng(special)
    labels, scores = rng.integers(0, 2, 200), rng.integers(0, 30, 200).astype(float)
    scores[rng.integers(0, 200, special)] = np.nan
    scores[rng.integers(0, 200, special)] = np.inf
    kernel = pairs(labels, scores)
    clicks, others = placements(labels, scores)
    np.testing.assert_allclose(clicks, kernel.mean(axis=1))
    np.testing.assert_allclose(others, kernel.mean(axis=0))
    assert clicks.mean() == pytest.approx(auc(labels, scores)) == pytest.approx(others.mean())


def test_variance_is_delongs_formula():
    """S10 / m + S01 / n, with the covariance for a difference, from the kernel of all pairs."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 300)
    one, two = (labels * shift + rng.normal(size=300) for shift in (1.0, 0.6))
    a, b = pairs(labels, one), pairs(labels, two)
    m, n = a.shape
    s10 = np.cov(a.mean(axis=1), b.mean(axis=1))
    s01 = np.cov(a.mean(axis=0), b.mean(axis=0))
    covariance = s10 / m + s01 / n
    value, low, high = auc_interval(labels, one)
    assert (high - low) / 2 == pytest.approx(1.959964 * np.sqrt(covariance[0, 0]), rel=1e-6)
    assert value == pytest.approx(a.mean()) and low < value < high
    error = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    difference, low, high, p = auc_difference(labels, one, two)
    assert difference == pytest.approx(a.mean() - b.mean())
    assert (high - low) / 2 == pytest.approx(1.959964 * error, rel=1e-6)
    assert p == pytest.approx(2 * norm.sf(difference / error))


def test_scores_that_rank_alike():
    labels = np.array([0, 1, 0, 1, 1, 0])
    scores = np.arange(6.0)
    # Certain of these rows; of others, 1 - 0.05^(1/3) of either class may be placed anywhere.
    room = np.sqrt(2) * (1 - 0.05 ** (1 / 3))
    for others in (scores, scores * 2):
        difference, low, high, p = auc_difference(labels, scores, others)
        assert (difference, low, high) == pytest.approx((0, -room, room)) and np.isnan(p)
    assert auc_interval(labels, labels) == pytest.approx((1, max(0, 1 - room), 1))
    many = np.repeat(labels, 1000)
    assert auc_interval(many, many)[1] == pytest.approx(1 - np.sqrt(2) * (1 - 0.05 ** (1 / 3000)))
