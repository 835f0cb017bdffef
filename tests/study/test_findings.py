"""Findings on thirds of the trials, exact shares, and numbers in words."""

import math

import numpy as np
import pandas as pd
import pytest

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip
from drsrobust.statistics import summarise
from drsrobust_study.findings import conclusion, exact_share, interval, number, ratio
from drsrobust_study.thirds import by_thirds


@pytest.fixture(scope="module")
def tables(trained, data):
    evaluator, errors = Evaluator(trained, data.test), [BitFlip(1e-5), BitFlip(1e-4)]
    run = {name: Campaign(evaluator, errors=errors, trials=60, sampling=name) for name in ("plain", "stratified")}
    return {name: campaign.run(progress=False) for name, campaign in run.items()}


@pytest.mark.long
@pytest.mark.parametrize("sampling", ["plain", "stratified"])
def test_thirds_are_independent_parts_with_the_same_weights(tables, sampling):
    table, parts = tables[sampling], []

    def find(trials):
        parts.append(trials)
        return summarise(trials)[["rate", "auc_drop", "auc_drop_low", "auc_drop_high", "n"]]

    found = by_thirds(find, table)
    assert found["third"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    whole, *thirds = (
        {*zip(part["rate"], part["stratum"], part["trial"], strict=True)}
        if "stratum" in part
        else {*zip(part["rate"], part["trial"], strict=True)}
        for part in parts
    )
    assert whole == thirds[0] | thirds[1] | thirds[2] and not thirds[0] & thirds[1] and not thirds[1] & thirds[2]
    if sampling == "stratified":
        for part in parts:
            weights = part.groupby(["rate", "stratum"])["weight"].sum()
            assert weights.to_numpy() == pytest.approx(table.groupby(["rate", "stratum"])["weight"].sum().to_numpy())
    by_rate = found.groupby("rate")
    assert (by_rate["n"].apply(lambda n: n.iloc[1:].sum()) == by_rate["n"].first()).all()


def test_few_trials_are_not_divided(tables):
    few = tables["plain"][lambda table: table["trial"] < 5]
    assert by_thirds(lambda trials: pd.DataFrame({"n": [len(trials)]}), few)["third"].tolist() == [0]


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


def test_a_conclusion_says_where_the_verdict_is():
    text = conclusion("C3", "AUC holds", iter(["a", "b"]))
    assert text == "C3. Claim: AUC holds. Here: a; b. Verdict: claims.csv of `python -m reproduce`."
    assert "Here: no finding." in conclusion("C3", "AUC holds", []) and "Here: a." in conclusion("C3", "AUC holds", "a")
