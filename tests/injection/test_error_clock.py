import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import poisson

from drsrobust.injection import ErrorClock
from drsrobust.injection.block_arrivals import BlockArrivals, _log_of_rest, thresholds
from tests.injection.oracle import Clock


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.floats(1e-9, 0.97))
@example(1, 3, 4, 0.9)
@example(2, 3, 4, 0.7)
@example(50, 1, 0, 0)
@example(50, 1, 0, 1)
def test_against_the_oracle(n, seed, summand, rate):
    clock, slow, k = ErrorClock(n, seed=seed, summand=summand), Clock(n, seed, summand), min(n, round(rate * n))
    assert clock.until(rate).tolist() == sorted(slow.reached(rate))
    assert clock.first(k).tolist() == sorted(slow.first(k))


# Few and many arrivals a block, picked, sorted and marked ones; several blocks, of which the last is cut.
@pytest.mark.parametrize(
    ("n", "rate"),
    [(3_145_733, 1e-6), (9_437_189, 1.1e-5), (2_097_155, 2e-5), (1_500_000, 3e-4), (5000, 0.3), (70, 0.999)],
)
def test_many_blocks_against_the_oracle(n, rate):
    slow = Clock(n, 2**63 + 5, 2**32 - 1)
    clock, reached = ErrorClock(n, seed=slow.seed, summand=slow.summand), slow.reached(rate)
    assert clock.until(rate).tolist() == sorted(reached)
    assert {place: divmod(number, 2**32) for place, number in zip(*clock.arrivals(rate), strict=True)} == reached


def test_the_first_arrivals_of_all_places_of_several_blocks(monkeypatch):
    """At rate 1 they are those of lower rates, where these reach a place."""
    monkeypatch.setattr("drsrobust.injection.block_arrivals.LARGEST", 5)
    clock = ErrorClock(150, seed=2)
    places, numbers = clock.arrivals(1)
    assert places.tolist() == list(range(150)) and (numbers >> 32 == places // 32).all()
    for rate in (0.3, 0.9, 0.999):
        reached, first = clock.arrivals(rate)
        assert len(reached) > 30 and np.array_equal(numbers[reached], first)


@pytest.mark.parametrize(("blocks", "draws"), [((0, 20), 1), ((0, 100), 2), ((10**6, 10**6 + 1), 1)])
def test_values_near_each_other_are_drawn_at_once(blocks, draws, monkeypatch):
    clock, slow, calls, real = ErrorClock(2**50, seed=3, summand=4), Clock(2**50, 3, 4), [], BlockArrivals._raw
    monkeypatch.setattr(BlockArrivals, "_raw", lambda self, *place: calls.append(place) or real(self, *place))
    found = clock.values(np.array(blocks) << 32 | 20, 3, first=2)
    assert found.tolist() == [slow.brought((block, 20), 3)[:2] for block in blocks] and len(calls) == draws


@pytest.mark.parametrize(("rate", "quarters", "halves"), [(1 / 4, 1, 0), (1 / 2, 0, 1), (7 / 8, 0, 3), (13 / 16, 1, 2)])
def test_logarithms_of_powers_of_two(rate, quarters, halves):
    """-log(3/4) and -log(1/2) by their series, whose terms are exact."""
    quarter, half = (sum((1 << 160 - step * k) // k for k in range(1, 160 // step + 1)) for step in (2, 1))
    assert _log_of_rest(Fraction(rate)) == quarters * quarter + halves * half


def test_known_answers():
    """For those who write the clock again."""
    for n, seed, summand, rate, places in (
        (526_803_488, 2**64 - 1, 1, 1e-8, [23509590, 80406838]),
        (31_250_000_000, 11, 5, 1e-10, [23650104636]),
    ):
        assert ErrorClock(n, seed=seed, summand=summand).until(rate).tolist() == places
    for rate, least, sha256 in (
        (1e-9, 0, "0a0139a46df1b987"),
        (1e-3, 659, "042a066e1059a00e"),
        (0.5, 715848, "73dd928a4ee2252f"),
    ):
        low, ends = thresholds(rate, 20)
        assert (low, hashlib.sha256(ends.astype("<u8")).hexdigest()[:16]) == (least, sha256)
    clock = ErrorClock(1000, seed=7)
    assert clock.values(clock.arrivals(0.004)[1][:1], 2).tolist() == [[13215577242648608212, 3133342718015427631]]
    assert clock.first(5).tolist() == [60, 111, 332, 680, 893]


# SciPy's distribution function has an error of 1e-7 at a mean of ten million.
@pytest.mark.parametrize(
    ("rate", "within"),
    [(1e-30, 1e-15), (1e-15, 1e-15), (1e-9, 1e-15), (1e-4, 1e-14), (1e-2, 1e-13), (0.3, 2e-11), (0.9999, 1e-6)],
)
def test_thresholds_are_those_of_the_poisson_distribution(rate, within):
    low, ends = thresholds(rate, 20)
    counts = low + np.arange(len(ends))
    assert np.abs(ends / 2.0**64 - poisson.cdf(counts, -math.log1p(-rate) * 2**20)).max() < within
    assert (np.diff(ends.astype(object)) >= 0).all()
    assert low == 0 or poisson.cdf(low - 1, -math.log1p(-rate) * 2**20) < 2.0**-64


def test_a_process_draws_its_own_blocks():
    n = 5 * 2**20 + 777
    clock = ErrorClock(n, seed=3)
    assert clock.blocks == 6
    for rate in (1e-6, 1e-3, 0.2, 1):
        parts = [clock.until(rate, blocks=bounds) for bounds in ((0, 2), (2, 2), (2, 5), (5, 6))]
        assert np.array_equal(np.concatenate(parts), clock.until(rate))
        assert parts[1].size == 0 and (parts[3] >= 5 * 2**20).all()


@pytest.mark.parametrize("n", [1, 2, 33, 1000, 2**20 + 9, 2**35])
def test_values_belong_to_arrivals(n):
    """Whatever the rate, and however many are asked for; few of many blocks are drawn one by one."""
    clock, rates = ErrorClock(n, seed=5), (1e-4, 0.1, 0.9, 1) if n < 2**20 else (1e-6, 1e-4, 0.01)
    rates = (1e-10, 1e-9) if n == 2**35 else rates
    known = {}
    for rate in rates:
        places, numbers = clock.arrivals(rate)
        assert np.array_equal(places, clock.until(rate))
        values = clock.values(numbers, 3, first=2)
        for few in range(len(numbers))[-9:]:
            assert np.array_equal(clock.values(numbers[few : few + 1], 3)[:, :2], values[few : few + 1])
        for place, value in zip(places.tolist(), values.tolist(), strict=True):
            assert known.setdefault(place, value) == value
    assert len({tuple(value) for value in known.values()}) == len(known)


def test_cutting_the_stream_changes_nothing(monkeypatch):
    clock = ErrorClock(5000, seed=3)
    whole = clock.first(1000)
    monkeypatch.setattr("drsrobust.injection.first_arrivals._CHUNK", 37)
    assert np.array_equal(clock.first(1000), whole)
    wide = ErrorClock(3 * 2**20, seed=3)
    groups = [wide.until(rate) for rate in (1e-5, 1e-3, 0.3)]
    for name, size in (("_GROUP", 1), ("_SPARSE", 2000)):
        monkeypatch.setattr(f"drsrobust.injection.block_arrivals.{name}", size)
        for rate, places in zip((1e-5, 1e-3, 0.3), groups, strict=True):
            assert np.array_equal(wide.until(rate), places)
