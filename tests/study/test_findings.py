"""Verdicts by intervals, findings on thirds of the trials, and numbers in words."""

import math

import numpy as np
import pandas as pd
import pytest

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip
from drsrobust.statistics import summarise
from drsrobust_study.findings import (
    RULES,
    conclusion,
    interval,
    number,
    ratio,
    rule_options,
    seed_dependent,
    verdict,
    verdicts,
)
from drsrobust_study.thirds import by_thirds

OPTIONS = {"bound": 0.3, "least": 0.2, "greatest": 0.4}
# Of each rule: an interval that shows the claim, one that contradicts it (none can of `differs`), and a wide one.
INTERVALS = {
    "above": ((0.31, 0.4), (0.1, 0.3), (0.1, 0.9)),
    "below": ((0.1, 0.3), (0.31, 0.4), (0.1, 0.9)),
    "within": ((0.2, 0.4), (0.41, 0.6), (0.1, 0.9)),
    "differs": ((0.1, 0.2), None, (0.1, 0.9)),
    "up_to": ((0.01, 0.3), (0.1, 0.29), (-0.1, 0.9)),
    "all": ((1.0, 1.0), (0.0, 0.0), (0.2, 0.9)),
}


def options(kind):
    return {name: OPTIONS[name] for name in rule_options(kind)}


def test_every_rule_has_intervals_here():
    assert set(INTERVALS) == set(RULES)


@pytest.mark.parametrize("kind", RULES)
def test_narrow_wide_and_no_intervals(kind):
    shown, wrong, wide = INTERVALS[kind]
    assert verdict(*shown, kind, **options(kind)) == "reproduced"
    assert wrong is None or verdict(*wrong, kind, **options(kind)) == "contradicted"
    assert verdict(*wide, kind, **options(kind)) == "in part"
    for ends in ((math.nan, math.nan), (math.nan, 0.4), (0.1, math.nan)):
        assert verdict(*ends, kind, **options(kind)) == "not testable here"


@pytest.mark.parametrize("kind", RULES)
def test_a_reason_outweighs_a_number(kind):
    shown = INTERVALS[kind][0]
    table = pd.DataFrame({"low": [shown[0]] * 3, "high": [shown[1]] * 3, "reason": ["", None, "all trials raised"]})
    assert verdicts(table, kind, **options(kind)) == ["reproduced", "reproduced", "not testable here"]
    assert verdicts(table.drop(columns="reason"), kind, **options(kind)) == ["reproduced"] * 3
    assert verdicts(table[:0], kind, **options(kind)) == []


def test_up_to_needs_a_recovery_that_reaches_the_bound():
    """The released clipping on MovieLens gave 0.204 [0.108, 0.291]: less than the 30 % of the claim, if barely."""
    ends = {
        (0.108, 0.291): "contradicted",
        (0.25, 0.6): "reproduced",
        (0.97, 0.99): "reproduced",
        (-0.1, 0.5): "in part",
    }
    assert {pair: verdict(*pair, "up_to", bound=0.3) for pair in ends} == ends


@pytest.fixture(scope="module")
def tables(trained, data):
    evaluator, errors = Evaluator(trained, data.test), [BitFlip(1e-5), BitFlip(1e-4)]
    run = {name: Campaign(evaluator, errors=errors, trials=60, sampling=name) for name in ("plain", "stratified")}
    return {name: campaign.run(progress=False) for name, campaign in run.items()}


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


def test_thirds_that_contradict_each_other():
    assert seed_dependent(["reproduced", "contradicted", "in part"])
    assert not seed_dependent(["reproduced", "in part", "in part"])  # one is merely wider
    assert not seed_dependent([]) and not seed_dependent(["contradicted"] * 3)


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


def test_a_conclusion_counts_verdicts():
    text = conclusion("C3", "AUC holds", iter(["a", "b"]), iter(["contradicted", "reproduced", "reproduced"]))
    assert text == "C3. Claim: AUC holds. Here: a; b. Findings: 2 reproduced, 1 contradicted."
    assert conclusion("C3", "AUC holds", [], []).endswith("Here: no finding. Findings: none.")
