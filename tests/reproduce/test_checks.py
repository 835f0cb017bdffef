"""Each kind of check on a few rows: what is sure, what holds by its values alone, what does not hold."""

import math

import numpy as np
import pandas as pd
import pytest

from reproduce.checks import (
    at_least,
    at_most,
    interval,
    largest_is,
    number,
    power,
    stated,
)


def rows(*values, **columns):
    """Rows of (value, low, high), or of a value alone."""
    triples = [value if isinstance(value, tuple) else (value,) * 3 for value in values]
    return pd.DataFrame(triples, columns=["value", "low", "high"], dtype=float).assign(**columns)


@pytest.mark.parametrize(
    ("given", "verdict", "least"),
    [
        (rows((0.5, 0.4, 0.6), (0.35, 0.3, 0.4)), "reproduced", 0.35),
        (rows((0.5, 0.4, 0.6), (0.35, 0.2, 0.4)), "partly", 0.35),  # by the values only
        (rows((0.5, 0.4, 0.6), (0.1, 0.0, 0.2)), "partly", 0.1),  # in some rows
        (rows((0.1, 0.0, 0.9)), "not", 0.1),
    ],
)
def test_bounds(given, verdict, least):
    found = at_least(given, bound=0.3)
    assert (found.verdict, found.value) == (verdict, least)
    mirrored = given.assign(value=-given["value"], low=-given["high"], high=-given["low"])
    found = at_most(mirrored, bound=-0.3)
    assert (found.verdict, found.value) == (verdict, -least)


def test_bounds_say_where_and_take_a_tolerance():
    given = rows(0.0005, 0.002, ber=[1e-5, 1e-4])
    found = at_most(given, bound=0.0, tolerance=0.001, along="ber")
    assert found.verdict == "partly" and found.detail == "at ber 1e-4, 1 of 2 hold"
    assert at_most(given, bound=0.0, tolerance=0.002).verdict == "reproduced"
    assert at_least(given, bound=0.001, tolerance=0.0005).verdict == "reproduced"


@pytest.mark.parametrize(
    ("value", "verdict", "detail"),
    [
        ((0.2, 0.15, 0.3), "reproduced", "then 29: 0.1 [0.05, 0.12]"),
        ((0.2, 0.11, 0.3), "partly", "then 29: 0.1 [0.05, 0.12]"),
        ((0.05, 0.04, 0.06), "not", "less than 29: 0.1 [0.05, 0.12]"),
    ],
)
def test_largest_is(value, verdict, detail):
    found = largest_is(rows((0.1, 0.05, 0.12), value, 0.0, bit=[29, 30, 3]), column="bit", named=30)
    assert (found.verdict, found.detail, found.value) == (verdict, detail, value[0])


def test_largest_of_what_is_not_there_is_no_test():
    found = largest_is(rows(1.0, 2.0, bit=[1, 2]), column="bit", named=30)
    assert found.verdict == "not tested" and found.detail == "0 rows of bit 30, 2 in all"
    assert largest_is(rows(1.0, bit=[30]), column="bit", named=30).verdict == "not tested"


def test_powers():
    bits, noise = np.array([1e3, 1e4, 1e5, 1e6]), np.array([1.1, 0.9, 0.9, 1.1])
    found = power(rows(*(3e-6 * bits**0.5 * noise), bits=bits), along="bits")
    assert (
        found.verdict == "reproduced" and found.value == pytest.approx(0.5) and 0.3 < found.low < 0.5 < found.high < 0.7
    )
    flat = power(rows(*noise, bits=bits), along="bits")
    assert flat.verdict == "not" and flat.low < 0 < flat.high and flat.detail == "0.9 to 1.1 in 4, bits 1,000 to 1e6"
    assert (
        power(rows(*noise[::-1], 0.0, bits=[*bits, 1e7]), along="bits").detail == flat.detail
    )  # no logarithm of nothing
    assert power(rows(0.1, 0.2, 0.3, bits=[64, 64, 128]), along="bits").verdict == "not tested"


def test_a_stated_verdict_is_taken_over():
    one = rows((0.4, 0.3, 0.5), verdict=["partly"], detail=["clip 6 at 0.001"])
    assert stated(one).verdict == "partly" and stated(one).detail == "clip 6 at 0.001" and stated(one).low == 0.3
    nothing = stated(rows(math.nan, verdict=["nothing lost"], detail=[math.nan]))
    assert nothing.verdict == "not tested" and nothing.detail == "nothing lost"
    with pytest.raises(ValueError, match="2 rows state a verdict"):
        stated(pd.concat([one, one]))


def test_numbers_are_short():
    values = [100.0, 1e-5, 0.123456, 12345.6, 3e37, 30, math.nan, math.inf]
    assert [number(one) for one in values] == ["100", "1e-5", "0.123", "12,346", "3e37", "30", "none", "infinite"]
    assert interval(0.3, 0.2, 0.4) == "0.3 [0.2, 0.4]" and interval(0.3, 0.3, 0.3) == interval(0.3, math.nan, math.nan)
    assert interval(math.nan, 0.1, 0.2) == ""
