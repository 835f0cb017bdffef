"""Effects over trained models: means with their intervals, spreads, and tables of several trainings as one."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from drsrobust_study import effects
from drsrobust_study.findings import exact_share, interval, number, ratio

VALUES = [0.41, 0.47, 0.34, 0.50, 0.48]


def test_the_mean_over_trainings_has_students_interval():
    row = effects.over_trainings("key", "words", VALUES)
    low, high = stats.t.interval(0.95, 4, np.mean(VALUES), stats.sem(VALUES))
    assert [row["value"], row["low"], row["high"]] == pytest.approx([np.mean(VALUES), low, high])
    assert (row["least"], row["most"], row["n"], row["interval"], row["why"]) == (0.34, 0.5, 5, "trainings", "")
    assert row["sd_trainings"] == pytest.approx(np.std(VALUES, ddof=1)) and np.isnan(row["sd_maps"])


def test_ratios_are_averaged_as_logarithms():
    ratios = pd.DataFrame({"value": [1.0, 10.0, 100.0], "low": [0.5, 5.0, 50.0], "high": [2.0, 20.0, 200.0]})
    row = effects.of_table("key", "words", ratios, log=True)
    assert row["value"] == pytest.approx(10) and row["low"] * row["high"] == pytest.approx(100)
    assert row["sd_trainings"] == pytest.approx(1.0) and row["sd_maps"] == pytest.approx(np.log10(2) / 1.959964)


def test_maps_that_scatter_more_than_trainings_widen_the_interval():
    wide = pd.DataFrame({"value": VALUES, "low": np.array(VALUES) - 0.5, "high": np.array(VALUES) + 0.5})
    row, error = effects.of_table("key", "words", wide), 0.5 / 1.959964
    assert row["sd_maps"] == pytest.approx(error)
    assert row["high"] - row["value"] == pytest.approx(stats.t.ppf(0.975, 4) * error / np.sqrt(5))


WHY = [([0.3], None, ("", "one training")), ([0.3], ([0.2], [0.5]), ("maps", ""))]
WHY += [([1.0] * 5, None, ("", "the same in all trainings")), ([np.nan] * 2, None, ("", "too few maps to say"))]


@pytest.mark.parametrize(("values", "ends", "expected"), WHY)
def test_why_there_is_no_interval(values, ends, expected):
    row = effects.spread(values, *(ends or ()))
    assert (row["interval"], row["why"]) == expected
    if ends:
        assert [row["low"], row["high"]] == [0.2, 0.5]


def test_values_that_a_training_lacks_are_left_out():
    row = effects.spread([0.1, np.nan, 0.2, 0.3])
    assert row["n"] == 3 and row["value"] == pytest.approx(0.2)


def test_tables_of_trainings_as_one():
    tables = {
        seed: pd.DataFrame(
            {"name": ["a", "b"], "n": 9, "x": [seed, 2.0], "x_low": [seed - 1.0, 2.0], "x_high": [seed + 1.0, 2.0]}
        )
        for seed in range(4)
    }
    found = effects.pooled(tables, ["name"], ["x"]).set_index("name")
    assert found["n"].tolist() == [36, 36] and found["trainings"].tolist() == [4, 4]
    assert found.loc["a", ["x", "x_least", "x_most"]].tolist() == [1.5, 0.0, 3.0]
    assert found.loc["a", "x_high"] == pytest.approx(stats.t.interval(0.95, 3, 1.5, stats.sem(range(4)))[1])
    assert found.loc["b", "x"] == 2 and np.isnan(found.loc["b", "x_low"])


def test_no_two_trainings_have_maps_of_one_seed():
    seeds = {
        effects.campaign_seed(seed, training) + trial
        for seed in range(9)
        for training in range(5)
        for trial in (0, 999)
    }
    assert len(seeds) == len({effects.campaign_seed(0, training) for training in range(5)}) * 18


def test_a_ratio_has_the_extremes_of_both_intervals():
    found = ratio((30, 27, 33), (3, 2.7, 3))
    assert (found["value"], found["low"], found["high"]) == pytest.approx((10, 27 / 3, 33 / 2.7))
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
