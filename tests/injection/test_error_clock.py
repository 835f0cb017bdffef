import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from drsrobust.injection import ErrorClock


def slow(n, seed, summand, rate=None, k=None):
    """The clock's docstring, one arrival at a time, in plain Python numbers."""

    def words(use):
        stream = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(summand, use)))
        while True:
            yield int(stream.random_raw())

    gaps, positions = words(0), words(1)
    shift, now, order = 64 - (n - 1).bit_length(), 0.0, []
    while True:
        if k is not None and len(order) == k:
            return sorted(order)
        if k is None:
            now += -float(np.log(((next(gaps) >> 12) + 0.5) * 2.0**-52)) / n
            if now >= -math.log1p(-rate):
                return sorted(order)
        position = 0 if n == 1 else next(positions) >> shift
        while position >= n:
            position = next(positions) >> shift
        if position not in order:
            order.append(position)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.floats(0, 0.97))
def test_against_the_slow_clock(n, seed, summand, rate):
    clock = ErrorClock(n, seed=seed, summand=summand)
    assert clock.until(rate).tolist() == slow(n, seed, summand, rate=rate)
    k = min(n, round(rate * n))
    assert clock.first(k).tolist() == slow(n, seed, summand, k=k)


def test_known_answers():
    """For those who write the clock again."""
    assert ErrorClock(1000, seed=7).until(0.004).tolist() == [111, 332, 893]
    assert ErrorClock(1000, seed=7).first(5).tolist() == [60, 111, 332, 680, 893]
    assert ErrorClock(526_803_488, seed=2**64 - 1, summand=1).until(1e-8).tolist() == [256835836, 341079591, 421597341]
    assert ErrorClock(33, seed=0, summand=2**32 - 1).until(0.25).tolist() == [0, 1, 2, 8, 11, 12, 13, 21, 25]


def test_cutting_the_stream_changes_nothing(monkeypatch):
    whole = ErrorClock(5000, seed=3).until(0.3)
    monkeypatch.setattr("drsrobust.injection.error_clock._CHUNK", 37)
    assert np.array_equal(ErrorClock(5000, seed=3).until(0.3), whole)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2000), st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_lower_rates_and_counts_are_nested(n, seed, one, other):
    clock = ErrorClock(n, seed=seed)
    low, high = sorted((one, other))
    assert set(clock.until(low)) <= set(clock.until(high))
    few, many = sorted((int(one * n), int(other * n)))
    assert set(clock.first(few)) <= set(clock.first(many)) and len(clock.first(many)) == many
    found = clock.until(high)
    if high < 1:
        assert np.array_equal(clock.first(len(found)), found)


# Rates at which a published tool draws nothing (7e-3, 9e-4, 2e-9, 1e-10 .. 6e-10) or float32 uniforms draw too many.
@pytest.mark.parametrize("rate", [0.5, 0.1, 1e-2, 7e-3, 1e-3, 9e-4, 1e-4, 1e-6, 2e-9, 6e-10, 1e-10, 1e-12, 1e-15])
def test_counts_are_binomial(rate):
    n, seeds = min(200_000, int(2000 / rate)), 200
    # Rare rates over a wide space: only the count of arrivals is drawn, so a space of 1e16 bits costs nothing.
    n = n if rate > 1e-3 else int(20 / rate)
    counts = [len(ErrorClock(n, seed=seed).until(rate)) for seed in range(seeds)]
    low, high = binom.ppf([0.00005, 0.99995], n * seeds, rate)
    assert low <= sum(counts) <= high
    assert np.var(counts) == pytest.approx(n * rate * (1 - rate), rel=0.45)


def test_positions_are_uniform():
    n = 33  # far from a power of two
    hits = np.zeros(n)
    for seed in range(2000):
        hits[ErrorClock(n, seed=seed).until(0.1)] += 1
    assert chisquare(hits).pvalue > 1e-4
    hits[:] = 0
    for seed in range(2000):
        hits[ErrorClock(n, seed=seed).first(1)] += 1
    assert chisquare(hits).pvalue > 1e-4


def test_ends():
    clock = ErrorClock(50, seed=1)
    assert len(clock.until(0)) == 0 and clock.until(1).tolist() == list(range(50))
    assert len(clock.first(0)) == 0 and clock.first(50).tolist() == list(range(50))
    assert ErrorClock(1, seed=1).first(1).tolist() == [0]
    assert ErrorClock(1, seed=1).until(0.9999999).tolist() in ([], [0])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ErrorClock(0, seed=1), "at least 1 place, got 0"),
        (lambda: ErrorClock(5, seed=-1), "seed is -1"),
        (lambda: ErrorClock(5, seed=2**64), "seed is 18446744073709551616"),
        (lambda: ErrorClock(5, seed=1).until(1.5), "rate is 1.5; it must be a number from 0 to 1"),
        (lambda: ErrorClock(5, seed=1).until(-0.1), "rate is -0.1"),
        (lambda: ErrorClock(5, seed=1).until(float("nan")), "rate is nan"),
        (lambda: ErrorClock(5, seed=1).first(6), "k is 6; it must be from 0 to 5, the number of eligible bits"),
        (lambda: ErrorClock(5, seed=1).first(-1), "k is -1"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(ValueError, match=says):
        call()
