import math

import numpy as np
import pytest

from drsrobust.campaign import mean_interval, wilson


def test_mean_interval():
    mean, low, high = mean_interval(np.array([2.0, 4.0, 6.0, 8.0]))
    half = 3.182446 * math.sqrt(20 / 3) / 2  # t_3 from a table; s^2 = 20 / 3
    assert (mean, low, high) == pytest.approx((5.0, 5.0 - half, 5.0 + half), abs=1e-5)
    assert mean_interval(np.array([3.0]))[0] == 3.0 and math.isnan(mean_interval(np.array([3.0]))[1])
    assert all(math.isnan(value) for value in mean_interval(np.array([])))
    assert mean_interval(np.full(9, 0.8)) == pytest.approx((0.8, 0.8, 0.8))


def test_mean_interval_covers():
    """95 % intervals of the mean of 12 normal values hold the true mean in 95 % of 4,000 simulations."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(4000):
        _, low, high = mean_interval(rng.normal(1.0, 2.0, 12))
        covered += low <= 1.0 <= high
    assert abs(covered / 4000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


def test_wilson():
    share, low, high = wilson(3, 20)
    z = 1.959964
    centre = (0.15 + z * z / 40) / (1 + z * z / 20)
    half = z * math.sqrt(0.15 * 0.85 / 20 + z * z / 1600) / (1 + z * z / 20)
    assert (share, low, high) == pytest.approx((0.15, centre - half, centre + half), abs=1e-6)
    assert wilson(0, 10)[1] == 0 and wilson(0, 10)[2] > 0.2  # never of no width
    assert math.isnan(wilson(0, 0)[0])
