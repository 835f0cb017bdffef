import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drsrobust_extras.protection import rates


def test_by_hand():
    """25,000 FIT per Mbit are 25,000 / 1e9 / 2**20 errors per bit and hour: 2.38e-11 (Schroeder et al., 2009)."""
    assert rates.ber(25_000, 1) == pytest.approx(2.384e-11, rel=1e-3)
    assert rates.ber(70_000, 1) == pytest.approx(6.676e-11, rel=1e-3)
    assert rates.ber(0, 1e6) == rates.ber(1e6, 0) == 0.0
    assert rates.ber(1e30, 1e9) == 1.0


@given(st.floats(1e-15, 0.999), st.floats(1e-3, 1e5))
def test_there_and_back(ber, hours):
    fit = rates.fit_per_mbit(ber, hours)
    assert rates.ber(fit, hours) == pytest.approx(ber, rel=1e-9)
    assert rates.hours(ber, fit) == pytest.approx(hours, rel=1e-9)


@pytest.mark.parametrize("end", [1e-9, 1e-5, 1.00001e-5, 1e-3, 0.5, 0.999])
def test_the_mean_over_an_interval(end):
    """Against the sum over a million moments."""
    fit = rates.fit_per_mbit(end, 24)
    moments = (np.arange(1_000_000) + 0.5) / 1_000_000
    expected = -np.expm1(math.log1p(-end) * moments).mean()
    assert rates.mean_ber(fit, 24) == pytest.approx(expected, rel=1e-6)


def test_events_and_faults_count_different_things():
    """5,000 to 14,000 logged events per TB and day; 0.013 faults, the sum over the modes of `MemoryFault`."""
    frame = rates.field_rates(24).set_index("kind")
    assert frame.loc["events", "per_tb_day_low"] == pytest.approx(5033, rel=1e-3)
    assert frame.loc["events", "per_tb_day_high"] == pytest.approx(14_093, rel=1e-3)
    assert frame.loc["faults", "per_tb_day_low"] == pytest.approx(0.01300, rel=1e-3)
    assert frame.loc["faults", "fit_low"] * 1024 == pytest.approx(sum(one.total for one in rates.FIT.values()))
    assert frame.loc["events", "ber_low"] == pytest.approx(24 * 2.384e-11, rel=1e-3)
    assert frame.loc["events", "fit_low"] / frame.loc["faults", "fit_low"] == pytest.approx(3.9e5, rel=0.01)
