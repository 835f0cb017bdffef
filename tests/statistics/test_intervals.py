import math

import numpy as np
import pytest
from scipy.stats import skew

from drsrobust.statistics.intervals import (
    bootstrap_interval,
    bounded_interval,
    mean_interval,
    quantile_interval,
    rule_of_three,
    wilson,
)


def test_mean_interval():
    mean, low, high = mean_interval(np.array([2.0, 4.0, 6.0, 8.0]))
    half = 3.182446 * math.sqrt(20 / 3) / 2  # t_3 from a table; s^2 = 20 / 3
    assert (mean, low, high) == pytest.approx((5.0, 5.0 - half, 5.0 + half), abs=1e-5)
    assert mean_interval(np.array([3.0]))[0] == 3.0 and math.isnan(mean_interval(np.array([3.0]))[1])
    assert all(math.isnan(value) for value in mean_interval(np.array([])))
    value, low, high = mean_interval(np.full(9, 0.8))
    assert value == 0.8 and math.isnan(low) and math.isnan(high)  # without bounds nothing limits what was not seen


def test_skewed_values_have_halls_interval():
    """An end is where the statistic without skewness is t, that on the short side is Student's."""
    values = np.random.default_rng(0).exponential(size=40)
    mean, low, high = mean_interval(values)
    error, k = values.std(ddof=1) / math.sqrt(40), skew(values, bias=False) / math.sqrt(40)
    end = (mean - high) / error
    assert end + k * end**2 / 3 + k**2 * end**3 / 27 + k / 6 == pytest.approx(-2.022691)  # t of 39 degrees
    assert (mean - low) / error == pytest.approx(2.022691)
    assert mean_interval(-values) == pytest.approx((-mean, -high, -low))


def test_wilson():
    z = 1.959964
    centre = (0.15 + z * z / 40) / (1 + z * z / 20)
    half = z * math.sqrt(0.15 * 0.85 / 20 + z * z / 1600) / (1 + z * z / 20)
    assert wilson(3, 20) == pytest.approx((0.15, centre - half, centre + half), abs=1e-6)
    assert wilson(0, 10)[1] == 0 and wilson(0, 10)[2] > 0.2  # never of no width
    assert math.isnan(wilson(0, 0)[0])


def test_alike_values_with_bounds():
    assert (1 - rule_of_three(77)) ** 77 == pytest.approx(0.05)
    u = rule_of_three(40)
    assert mean_interval(np.full(40, 0.8), bounds=(0, 1)) == pytest.approx((0.8, 0.8 - 0.8 * u, 0.8 + 0.2 * u))
    assert mean_interval(np.array([0.3]), bounds=(0, 1)) == pytest.approx((0.3, 0.015, 0.965))
    values = np.array([0.1, 0.2, 0.4])
    wide = mean_interval(values, bounds=(-1, 2))
    assert wide == mean_interval(values) and wide[1] < 0  # Student's t, as ever
    assert mean_interval(values, bounds=(0, 1)) == (wide[0], 0, wide[2])  # but nothing that cannot be
    assert mean_interval(np.full(40, 0.8), bounds=(0, np.inf)) == (0.8, 0.8 - 0.8 * u, np.inf)
    tenths = np.array([0.9, 0.6, 0.8]) - np.array([0.8, 0.5, 0.7])  # 0.1 but for rounding
    room = rule_of_three(3)
    assert mean_interval(tenths, bounds=(0, 1)) == pytest.approx((0.1, 0.1 - 0.1 * room, 0.1 + 0.9 * room))


def test_bounded_interval_is_where_the_capital_reaches_its_bound():
    rng = np.random.default_rng(0)
    values = rng.beta(2, 1, 50).round(2)

    def low_end(x):
        grid = np.linspace(0.001, x.mean(), 20_001)
        capital = np.zeros_like(grid)
        for power in range(8):
            fraction = 0.5**power
            capital += np.prod(1 - fraction + fraction * x[:, None] / grid, axis=0) / 8
        return grid[capital >= 40].max()

    mean, low, high = bounded_interval(values)
    assert mean == pytest.approx(values.mean())
    assert low == pytest.approx(low_end(values), abs=1e-4) and high == pytest.approx(1 - low_end(1 - values), abs=1e-4)
    assert bounded_interval(rng.permutation(values)) == (mean, low, high)
    scaled = bounded_interval(values * 20 - 5, bounds=(-5, 15))
    assert scaled == pytest.approx([20 * end - 5 for end in (mean, low, high)])


def test_bounded_interval_at_the_ends():
    _, low, high = bounded_interval(np.zeros(1000))
    assert low == 0 and high == pytest.approx(1 - (0.05 / 2 / 8) ** (1 / 1000), rel=0.05)
    mean, low, high = bounded_interval(np.ones(1))
    assert mean == 1 == high and 0 < low < 0.1
    assert bounded_interval(np.array([0.0] * 10**5 + [1.0]))[1] >= 0


def test_quantile_interval_is_scipys():
    from scipy.stats import quantile_test

    rng = np.random.default_rng(0)
    for n, q, confidence in [(20, 0.1, 0.95), (20, 0.5, 0.95), (100, 0.9, 0.95), (36, 0.1, 0.9), (1, 0.5, 0.95)]:
        values = rng.normal(size=n).round(1)
        expected = quantile_test(values, q=0, p=q).confidence_interval(confidence)
        value, low, high = quantile_interval(values, q, confidence)
        np.testing.assert_equal((low, high), tuple(expected))
        assert value == np.quantile(values, q)
    assert all(math.isnan(value) for value in quantile_interval(np.array([]), 0.5))


def recovery(lost, left, axis):
    return 1 - left.mean(axis) / lost.mean(axis)


def test_bootstrap_interval():
    rng = np.random.default_rng(0)
    values = rng.normal(5, 2, 400)
    for method in ("BCa", "percentile"):
        found = bootstrap_interval(np.mean, values, method=method)
        assert found == pytest.approx(mean_interval(values), abs=0.02)
    assert bootstrap_interval(np.mean, values) == bootstrap_interval(np.mean, values)  # seeded
    assert bootstrap_interval(np.mean, values) != bootstrap_interval(np.mean, values, seed=1)
    lost = rng.exponential(size=50)
    share = lost / 4 + np.where(np.arange(50) % 2, 1e-3, -1e-3)
    found = bootstrap_interval(recovery, lost, share)
    assert found == pytest.approx((0.75, 0.75, 0.75), abs=2e-3) and found[1] < found[2]  # trials stay together
    for samples in ((recovery, lost, lost / 4), (np.mean, np.full(9, 0.8)), (np.mean, np.array([2.0]))):
        _, low, high = bootstrap_interval(*samples)  # no resample differs from another
        assert math.isnan(low) and math.isnan(high)
    rare = np.array([0.5] + [0.0] * 9)  # many resamples have no loss to recover from
    value, low, high = bootstrap_interval(recovery, rare, rare / 2)
    assert value == 0.5 and math.isnan(low) and math.isnan(high)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mean_interval(np.array([0.1, 0.2, 0.4]), bounds=(0, 0.3)), "1 of 3 values .*0.3, as 0.4"),
        (lambda: bounded_interval(np.array([0.5, np.nan])), "1 of 2 values .*as nan"),
        (lambda: bounded_interval(np.zeros(3), bounds=(1, 1)), r"bounds .*\(1, 1\)"),
        (lambda: quantile_interval(np.zeros(3), 10), "q .*10"),
        (lambda: bootstrap_interval(recovery, np.zeros(3), np.zeros(2)), r"samples .*\[3, 2\]"),
        (lambda: bootstrap_interval(np.mean), r"samples .*\[\]"),
    ],
)
def test_what_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
