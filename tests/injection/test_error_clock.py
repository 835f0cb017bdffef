import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare, poisson

from drsrobust.injection import ErrorClock
from drsrobust.injection.block_arrivals import BlockArrivals, streams, thresholds
from tests.injection.oracle import philox


def slow_first(n, seed, summand, k):
    """The first k places as the docstring of `first_arrivals` says, one arrival at a time, in plain Python numbers."""
    stream = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(summand, 1)))
    order = []
    while len(order) < k:
        position = 0 if n == 1 else n
        while position >= n:
            position = int(stream.random_raw()) >> (64 - (n - 1).bit_length())
        if position not in order:
            order.append(position)
    return sorted(order)


def slow_blocks(n, seed, summand, rate):
    """The clock as the docstring of `block_arrivals` says, one arrival at a time."""

    def word(stream, number):
        return philox(number // 4, seed, summand << 32 | stream)[number % 4]

    bits, places = min(max((n - 1).bit_length(), 1), 20), set()
    low, ends = thresholds(rate, bits)
    for block in range(-(-n >> bits)):
        count = low + sum(int(end) <= word(0, block) for end in ends)
        for stream, start, words in streams(count):
            for arrival in range(start, min(start + 3 * words, count)):
                part, lane = divmod(arrival - start, words)
                place = (word(1 + stream, words * block + lane) >> (44 - 20 * part)) % (1 << 20) >> (20 - bits)
                places.add((block << bits) + place)
    return sorted(place for place in places if place < n)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.floats(1e-9, 0.97))
def test_against_the_slow_clock(n, seed, summand, rate):
    clock = ErrorClock(n, seed=seed, summand=summand)
    assert clock.until(rate).tolist() == slow_blocks(n, seed, summand, rate)
    k = min(n, round(rate * n))
    assert clock.first(k).tolist() == slow_first(n, seed, summand, k)


# Few and many arrivals a block, picked, sorted and marked ones; several blocks, of which the last is cut.
@pytest.mark.parametrize(
    ("n", "rate"), [(3_145_733, 1e-6), (2_097_155, 2e-5), (1_500_000, 3e-4), (5000, 0.3), (70, 0.999)]
)
def test_many_blocks_against_the_slow_clock(n, rate):
    assert ErrorClock(n, seed=2**63 + 5, summand=2**32 - 1).until(rate).tolist() == slow_blocks(
        n, 2**63 + 5, 2**32 - 1, rate
    )


def test_known_answers():
    """For those who write the clock again."""
    for n, seed, summand, rate, places in (
        (1000, 7, 0, 0.004, [54, 66, 482, 489, 536, 557, 582]),
        (33, 0, 2**32 - 1, 0.25, [0, 8, 11, 14, 19, 20, 21, 23]),
        (526_803_488, 2**64 - 1, 1, 1e-8, [23509590, 80406838]),
        (31_250_000_000, 11, 5, 1e-10, [23650104636]),
        (1 << 20, 3, 0, 5e-6, [52528, 340607, 628929, 702412, 738791, 782397, 852542]),
        (5, 1, 0, 0.999, [0, 1, 2, 3, 4]),
    ):
        assert ErrorClock(n, seed=seed, summand=summand).until(rate).tolist() == places
    low, ends = thresholds(1e-6, 20)
    assert (low, len(ends), ends[:2].tolist()) == (0, 33, [6464407480368674473, 13242833407717265915])
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
    ("rate", "within"), [(1e-9, 1e-15), (1e-6, 1e-15), (1e-4, 1e-14), (1e-2, 1e-13), (0.3, 2e-11), (0.9999, 1e-6)]
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


@pytest.mark.parametrize("n", [1, 2, 33, 1000, 2**20 + 9])
def test_values_belong_to_arrivals(n):
    """Whatever the rate, and however many are asked for."""
    clock, rates = ErrorClock(n, seed=5), (1e-4, 0.1, 0.9, 1) if n < 2**20 else (1e-6, 1e-4, 0.01)
    known = {}
    for rate in rates:
        places, numbers = clock.arrivals(rate)
        assert np.array_equal(places, clock.until(rate))
        values = clock.values(numbers, 3, first=2)
        few = clock.values(numbers[-2:], 3)
        assert np.array_equal(few[:, :2], values[-2:])
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
    for name, size in (("_GROUP", 1), ("_FEW", 0), ("_SPARSE", 2000)):
        monkeypatch.setattr(f"drsrobust.injection.block_arrivals.{name}", size)
        for rate, places in zip((1e-5, 1e-3, 0.3), groups, strict=True):
            assert np.array_equal(wide.until(rate), places)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2000), st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_lower_rates_and_counts_are_nested(n, seed, one, other):
    clock = ErrorClock(n, seed=seed)
    low, high = sorted((one, other))
    assert set(clock.until(low)) <= set(clock.until(high))
    few, many = sorted((int(one * n), int(other * n)))
    assert set(clock.first(few)) <= set(clock.first(many)) and len(clock.first(many)) == many


# Rates at which a published tool draws nothing (7e-3, 9e-4, 2e-9, 1e-10 .. 6e-10) or float32 uniforms draw too many.
@pytest.mark.parametrize("rate", [0.5, 0.1, 1e-2, 7e-3, 1e-3, 9e-4, 1e-4, 1e-6, 2e-9, 6e-10, 1e-10, 1e-12, 1e-15])
def test_counts_are_binomial(rate):
    n, seeds = min(200_000, int(2000 / rate)), 200
    n = n if rate > 1e-3 else int(20 / rate)
    if n > 10**11:  # a raw word for each 2**20 places: so rare rates are shown by their thresholds
        assert sum(int(end) for end in thresholds(rate, 20)[1][:1]) == pytest.approx(
            2**64 * math.exp(math.log1p(-rate) * 2**20), rel=1e-15
        )
        return
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


def test_places_of_a_block_are_uniform_and_independent():
    """Of all three parts of a word, over blocks and their ends; arrivals of neighbouring words are no pairs."""
    n, cells = 4 * 2**20, 64
    hits = np.concatenate([ErrorClock(n, seed=seed).until(1e-3) for seed in range(100)])
    assert chisquare(np.histogram(hits, bins=cells, range=(0, n))[0]).pvalue > 1e-4
    assert chisquare(np.bincount(hits % cells, minlength=cells)).pvalue > 1e-4
    first, second = BlockArrivals(2**20, 1, 0), BlockArrivals(2**20, 2, 0)
    of = [np.concatenate([part for part in clock.until_in_parts(0.01, 0, 1)]) for clock in (first, second)]
    both = len(np.intersect1d(*of))
    assert binom.ppf(1e-5, 2**20, 1e-4) <= both <= binom.ppf(1 - 1e-5, 2**20, 1e-4)


def test_ends():
    clock = ErrorClock(50, seed=1)
    assert len(clock.until(0)) == 0 and clock.until(1).tolist() == list(range(50))
    assert len(clock.first(0)) == 0 and clock.first(50).tolist() == list(range(50))
    assert ErrorClock(1, seed=1).first(1).tolist() == [0]
    assert ErrorClock(1, seed=1).until(0.9999999).tolist() in ([], [0])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ErrorClock(0, seed=1), "n must be at least 1, got 0"),
        (lambda: ErrorClock(5, seed=-1), "seed must be .*, got -1"),
        (lambda: ErrorClock(5, seed=2**64), "seed must be .*, got 18446744073709551616"),
        (
            lambda: ErrorClock(5, seed=1).until(0.1, blocks=(0, 2)),
            r"blocks is \(0, 2\); it must be a first block and an end, from 0",
        ),
        (lambda: ErrorClock(5, seed=1).arrivals(-1), "rate is -1"),
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
