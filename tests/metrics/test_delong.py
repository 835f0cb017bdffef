import numpy as np
import pytest

from drsrobust.metrics import auc
from drsrobust.metrics.auc import auc_difference, auc_interval, placements


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
    assert difference == pytest.approx(a.mean() - b.mean()) and (high - low) / 2 == pytest.approx(
        1.959964 * error, rel=1e-6
    )
    assert 0 < p < 0.1


@pytest.mark.long
def test_intervals_cover_what_they_should():
    """Normal scores a distance d apart: AUC = Phi(d / sqrt 2). In 2,000 samples, 95 % +- 4 standard errors of it."""
    from scipy.stats import binom, norm

    rng = np.random.default_rng(2)
    truth, covered, no_difference = norm.cdf(1 / np.sqrt(2)), 0, 0
    for _ in range(2000):
        labels = (rng.random(400) < 0.4).astype(int)
        common = labels + rng.normal(size=400) * 0.8
        one, two = (common + rng.normal(size=400) * 0.6 for _ in range(2))
        _, low, high = auc_interval(labels, one)
        covered += low <= truth <= high
        _, low, high, _ = auc_difference(labels, one, two)
        no_difference += low <= 0 <= high
    least, most = binom.ppf([3e-5, 1 - 3e-5], 2000, 0.95)
    assert least - 10 <= covered <= most and least - 10 <= no_difference <= most


def test_alike_and_useless():
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
    with pytest.raises(ValueError, match="6 clicks and 0 other rows; an AUC needs both"):
        placements(np.ones(6), scores)
    with pytest.raises(ValueError, match="1 clicks and 5 other rows; a variance needs two"):
        auc_interval(np.array([1, 0, 0, 0, 0, 0]), scores)
