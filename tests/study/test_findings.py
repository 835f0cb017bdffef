"""Exact shares, ratios, and numbers in words."""

import math

import numpy as np
import pytest

from drsrobust_study.findings import exact_share, interval, number, ratio


def test_a_ratio_has_the_extremes_of_both_intervals():
    found = ratio((30, 27, 33), (3, 2.7, 3))
    assert (found["value"], found["low"], found["high"]) == pytest.approx((10, 27 / 3, 33 / 2.7))
    rng = np.random.default_rng(0)
    tops, bottoms = rng.normal(30, 1.5, 4000), rng.normal(3, 0.15, 4000)
    inside = [
        r["low"] <= 10 <= r["high"]
        for top, bottom in zip(tops, bottoms, strict=True)
        for r in [ratio((top, top - 2.94, top + 2.94), (bottom, bottom - 0.294, bottom + 0.294))]
    ]
    assert np.mean(inside) > 0.95
    for bottom in ((3, -1, 7), (0, 0, 0)):  # what may be 0 divides nothing
        assert math.isnan(ratio((30, 27, 33), bottom)["low"])


def test_numbers_are_short():
    values = [100.0, 1e-5, 0.123456, 12345.6, 3e37, 30, math.nan, math.inf]
    assert [number(one) for one in values] == ["100", "1e-5", "0.123", "12,346", "3e37", "30", "none", "infinite"]
    assert interval(0.3, 0.2, 0.4) == "0.3 [0.2, 0.4]" and interval(0.3, 0.3, 0.3) == interval(0.3, math.nan, math.nan)
    assert interval(math.nan, 0.1, 0.2) == ""


def test_an_exact_share_covers_every_share():
    """Whatever the share, at most 2.5 % of counts lie on either side of the interval."""
    from scipy.stats import binom

    n = 20
    found = [exact_share(count, n) for count in range(n + 1)]
    assert found[0]["low"] == 0 and found[0]["high"] == pytest.approx(1 - 0.025 ** (1 / n))
    assert found[n]["high"] == 1 and found[5]["value"] == 0.25
    for share in np.linspace(0.01, 0.99, 50):
        chances = binom.pmf(range(n + 1), n, share)
        assert sum(chances[[one["low"] > share for one in found]]) <= 0.025
        assert sum(chances[[one["high"] < share for one in found]]) <= 0.025
    assert all(math.isnan(end) for end in exact_share(0, 0).values())
