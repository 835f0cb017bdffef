"""Rules on a few rows: clear by the intervals, by the values alone, or not at all; and numbers in words."""

import math

import numpy as np
import pandas as pd
import pytest

from drsrobust.study.findings import RULES, conclusion, interval, number, rule_options, verdict, verdicts


def rows(*values, **columns):
    """Rows of (value, low, high), or of a value alone."""
    triples = [value if isinstance(value, tuple) else (value,) * 3 for value in values]
    return pd.DataFrame(triples, columns=["value", "low", "high"], dtype=float).assign(**columns)


@pytest.mark.parametrize(
    ("given", "expected", "least"),
    [
        (rows((0.5, 0.4, 0.6), (0.35, 0.3, 0.4)), "reproduced", 0.35),
        (rows((0.5, 0.4, 0.6), (0.35, 0.2, 0.4)), "partly", 0.35),  # by the values only
        (rows((0.5, 0.4, 0.6), (0.1, 0.0, 0.2)), "partly", 0.1),  # in some rows
        (rows((0.1, 0.0, 0.9)), "not", 0.1),
    ],
)
def test_bounds(given, expected, least):
    word, found = verdict(given, "at_least", bound=0.3)
    assert (word, found.value, found.n) == (expected, least, len(given))
    mirrored = given.assign(value=-given["value"], low=-given["high"], high=-given["low"])
    word, found = verdict(mirrored, "at_most", bound=-0.3)
    assert (word, found.value) == (expected, -least)


def test_bounds_say_where():
    given = rows(0.0005, 0.002, ber=[1e-5, 1e-4])
    word, found = verdict(given, "at_most", bound=0.001, along="ber")
    assert word == "partly" and found.text == "at ber 1e-4, 1 of 2 hold"
    assert verdict(given, "at_most", bound=0.002)[0] == "reproduced"


@pytest.mark.parametrize(
    ("value", "expected", "detail"),
    [
        ((0.2, 0.15, 0.3), "reproduced", "then 29: 0.1 [0.05, 0.12]"),
        ((0.2, 0.11, 0.3), "partly", "then 29: 0.1 [0.05, 0.12]"),
        ((0.05, 0.04, 0.06), "not", "less than 29: 0.1 [0.05, 0.12]"),
    ],
)
def test_largest_is(value, expected, detail):
    given = rows((0.1, 0.05, 0.12), value, 0.0, bit=[29, 30, 3])
    word, found = verdict(given, "largest_is", column="bit", named=30)
    assert (word, found.text, found.value) == (expected, detail, value[0])


def test_the_largest_needs_its_row_and_others():
    word, found = verdict(rows(1.0, 2.0, bit=[1, 2]), "largest_is", column="bit", named=30)
    assert (word, found.n, found.text) == ("not tested", 0, "0 rows of bit 30, 2 in all")
    assert verdict(rows(1.0, bit=[30]), "largest_is", column="bit", named=30)[0] == "not tested"


def test_powers():
    bits, noise = np.array([1e3, 1e4, 1e5, 1e6]), np.array([1.1, 0.9, 0.9, 1.1])
    word, found = verdict(rows(*(3e-6 * bits**0.5 * noise), bits=bits), "power", along="bits")
    assert word == "reproduced" and found.value == pytest.approx(0.5) and 0.3 < found.low < 0.5 < found.high < 0.7
    word, flat = verdict(rows(*noise, bits=bits), "power", along="bits")
    assert word == "not" and flat.low < 0 < flat.high and flat.text == "0.9 to 1.1 in 4, bits 1,000 to 1e6"
    zero = rows(*noise[::-1], 0.0, bits=[*bits, 1e7])  # 0 has no logarithm
    assert verdict(zero, "power", along="bits")[1].text == flat.text
    assert verdict(rows(0.1, 0.2, 0.3, bits=[64, 64, 128]), "power", along="bits")[0] == "not tested"


def test_a_table_of_findings():
    table = rows((0.4, 0.3, 0.5), (0.4, 0.1, 0.5), (0.1, -0.1, 0.5), math.nan)
    table = table.assign(detail=["clip 6", "b", "c", "nothing lost"], reason=["", "", "", "nothing lost"])
    assert verdicts(table, "recovers", bound=0.3) == ["reproduced", "partly", "not", "not tested"]
    assert verdict(table[:1], "recovers", bound=0.3)[1].text == "clip 6"
    with pytest.raises(ValueError, match="4 rows for a rule of one row"):
        verdict(table, "recovers", bound=0.3)
    with pytest.raises(KeyError, match="change_low"):
        verdict(table[:1], "falls")


@pytest.mark.parametrize("kind", [kind for kind in RULES if not RULES[kind].many])
def test_a_rule_has_a_verdict_on_nothing(kind):
    """Every rule of one row reads numeric columns alone; NaN everywhere is `not`."""
    names = [
        "change_low",
        "down",
        "differs",
        "more",
        "cells",
        "right",
        "apart",
        "held",
        "kept",
        "rates_lost",
        "noticed",
    ]
    names += ["time", "alarms", "alarms_high", "alarm_share", "least", "greatest", "beaten"]
    row = rows(math.nan, **dict.fromkeys(names, math.nan)).assign(differs=False, apart=False)
    assert verdict(row, kind, **dict.fromkeys(rule_options(kind), 1.0))[0] == "not"


def test_numbers_are_short():
    values = [100.0, 1e-5, 0.123456, 12345.6, 3e37, 30, math.nan, math.inf]
    assert [number(one) for one in values] == ["100", "1e-5", "0.123", "12,346", "3e37", "30", "none", "infinite"]
    assert interval(0.3, 0.2, 0.4) == "0.3 [0.2, 0.4]" and interval(0.3, 0.3, 0.3) == interval(0.3, math.nan, math.nan)
    assert interval(math.nan, 0.1, 0.2) == ""


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["reproduced", "reproduced"], "Reproduced (2 of 2 findings in full)."),
        (["reproduced", "not"], "Partly reproduced (1 of 2 findings in full)."),
        (["reproduced", "nothing lost"], "Partly reproduced (1 of 2 findings in full)."),
        (["partly", "not"], "Partly reproduced (0 of 2 findings in full)."),
        (["not"], "Not reproduced (0 of 1 findings in full)."),
        (["nothing lost"], "Not tested."),
        ([], "Not tested."),
    ],
)
def test_a_conclusion(verdicts, said):
    assert (
        conclusion("C3", "AUC holds", iter(["a", "b"]), iter(verdicts))
        == f"C3. The paper: AUC holds. Here: a; b. {said}"
    )
    assert "Here: no finding. " in conclusion("C3", "AUC holds", [], verdicts)
