"""Estimates from stratified trials against the same ones from plain trials of one population."""

import numpy as np
import pandas as pd
import pytest

from drsrobust.campaign.sampling import allocate
from drsrobust.statistics.intervals import bounded_interval, mean_interval, stringer_interval, wilson
from drsrobust.statistics.pvf import pvf
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.strata import Strata
from drsrobust.statistics.summary import summarise

GOLDEN = 0.8
WEIGHTS = {"0": 0.9, "1+": 0.1}  # probabilities of the strata
BASE = {
    **{
        "model": "m",
        "dataset": "synthetic-x",
        "protocol": "corrected",
        "error_model": "BitFlip",
        "rate": 1e-5,
        "ber": 1e-5,
    },
    **{"target": "all", "mitigation": "none", "auc_golden": GOLDEN, "logloss": 0.5, "ne": 0.9, "outcome": "ok"},
    **{
        "checkpoint": "c",
        "data": "d",
        "nan_rows": 0,
        "inf_rows": 0,
        "n_sites": 10**6,
        "n_events": 10,
    },
}


def losses_of(random, critical):
    """With critical flips 40 % of maps lose up to 0.3, without all lose a little."""
    little = np.abs(random.normal(0, 2e-4, len(critical)))
    return little + critical * (random.random(len(critical)) < 0.4) * random.uniform(0.05, 0.3, len(critical))


TRUTH = np.sqrt(2 / np.pi) * 2e-4 + 0.1 * 0.4 * 0.175


def table_of(losses, strata=None, **more):
    frame = pd.DataFrame([BASE | more] * len(losses)).assign(trial=range(len(losses)), seed=range(len(losses)))
    if strata is not None:
        counts = pd.Series(strata).value_counts()
        weights = [WEIGHTS[name] / counts[name] for name in strata]
        frame = frame.assign(stratum=strata, weight=weights, loss_is_bounded=[name == "0" for name in strata])
    return frame.assign(auc=GOLDEN - losses, auc_drop=losses)


def stratified(random, n0=40, n1=80, **more):
    strata = np.array(["0"] * n0 + ["1+"] * n1)
    return table_of(losses_of(random, strata == "1+"), strata, **more)


def plain(random, n, **more):
    return table_of(losses_of(random, random.random(n) < WEIGHTS["1+"]), **more)


def test_means_shares_and_quantiles_are_those_of_plain_maps():
    """40,000 plain maps against 20,000 stratified ones of the same population."""
    random = np.random.default_rng(0)
    many, few = plain(random, 40_000), stratified(random, 10_000, 10_000)
    one, other = (summarise(table).iloc[0] for table in (many, few))
    for name, error in (
        ("auc_drop", 6e-4),
        ("auc", 6e-4),
        ("trials_harmed", 4e-3),
        ("auc_q10", 2e-3),
        ("auc_q90", 1e-5),
    ):
        assert one[name] == pytest.approx(other[name], abs=error), name
    assert other["auc_drop"] == pytest.approx(TRUTH, abs=3e-4) and few["auc_drop"].mean() > 4 * TRUTH
    assert other["auc_drop_high"] - other["auc_drop_low"] < 0.6 * (one["auc_drop_high"] - one["auc_drop_low"])
    assert other["share_ok"] == 1 and other["n"] == 20_000 and not other["few_harmful"]
    marked = few.assign(decision_changed=few["auc_drop"], list_changed=None, score_changed=0.0)
    everything = many.assign(decision_changed=many["auc_drop"], list_changed=None, score_changed=0.0)
    shares, expected = (
        pvf(table.assign(decision_changed=table["auc_drop"] > 0.01)).iloc[0] for table in (marked, everything)
    )
    assert shares["pvf"] == pytest.approx(0.04, abs=3e-3) == pytest.approx(expected["pvf"], abs=4e-3)
    assert shares["incorrect_low"] < 0.04 < shares["incorrect_high"]


@pytest.mark.long
def test_intervals_hold_the_mean():
    random = np.random.default_rng(1)
    hits = {"stratified": 0, "plain": 0, "bound": 0}
    for _ in range(150):
        row, other = (summarise(t, ("auc_drop",)).iloc[0] for t in (stratified(random), plain(random, 120)))
        hits["stratified"] += row["auc_drop_low"] <= TRUTH <= row["auc_drop_high"]
        hits["plain"] += other["auc_drop_low"] <= TRUTH <= other["auc_drop_high"]
        hits["bound"] += min(row["auc_drop_bound"], other["auc_drop_bound"]) >= TRUTH
    assert 0.9 * 150 <= hits["stratified"] <= 0.99 * 150 and hits["plain"] >= 0.9 * 150 and hits["bound"] == 150


@pytest.mark.long
def test_recovery_of_stratified_pairs():
    """Half of each loss comes back, give or take."""
    random = np.random.default_rng(2)
    hits = 0
    for _ in range(100):
        faulty = stratified(random)
        losses = faulty["auc_drop"] * random.uniform(0, 1, len(faulty))
        guarded = faulty.assign(mitigation="a", auc=GOLDEN - losses, auc_drop=losses)
        row = recovery(pd.concat([faulty, guarded])).iloc[0]
        hits += row["recovery_low"] <= 0.5 <= row["recovery_high"]
        assert row["lost"] == pytest.approx(summarise(faulty).iloc[0]["auc_drop"])
    assert hits >= 92


def test_a_plain_table_is_one_stratum():
    values = np.random.default_rng(3).uniform(0.1, 0.3, 50)
    strata = Strata.of(table_of(values))
    assert not strata.stratified and strata.mean(values) == pytest.approx(values.mean())
    assert strata.mean_interval(values, (-0.2, 0.8)) == pytest.approx(mean_interval(values))
    assert strata.share(values > 0.2) == wilson(int((values > 0.2).sum()), 50)
    assert strata.quantile(values, 0.1) == np.quantile(values, 0.1)
    assert strata.upper_bound(values, (-0.2, 0.8)) == bounded_interval(values, (-0.2, 0.8), 0.9)[2]


def test_few_harmful_trials_get_stringers_bound():
    """One trial of 100 loses 0.3: Student's t would end at 0.009, where rarer losses may be missing."""
    losses = np.append(np.full(99, 1e-5), 0.3)
    row = summarise(table_of(losses)).iloc[0]
    assert row["few_harmful"] and row["auc_drop_high"] == pytest.approx(stringer_interval(losses, (-0.2, 0.8))[2])
    assert row["auc_drop_high"] > 0.03 and np.isnan(summarise(table_of(losses).assign(ne=losses)).iloc[0]["ne_high"])
    assert not summarise(table_of(np.full(12, 0.3) + np.arange(12) / 1000)).iloc[0]["few_harmful"]


def test_equal_losses_without_critical_flips_are_known_and_others_are_not():
    losses = np.append(np.zeros(20), np.full(30, 0.2))
    row = summarise(table_of(losses, ["0"] * 20 + ["1+"] * 30)).iloc[0]
    assert row["auc_drop"] == pytest.approx(0.02)
    assert row["auc_drop_low"] < 0.02 < row["auc_drop_high"] < 0.03


def test_a_stratum_whose_losses_are_not_bounded_by_those_seen_has_a_wider_interval():
    losses = np.append(np.linspace(-1e-5, 1e-5, 20), np.full(30, 0.2))
    table = table_of(losses, ["0"] * 20 + ["1+"] * 30)
    widths = [
        row["auc_drop_high"] - row["auc_drop_low"]
        for row in (summarise(one).iloc[0] for one in (table, table.assign(loss_is_bounded=False)))
    ]
    assert widths[0] < 0.05 and widths[1] > 0.1


def test_trials_without_a_value_keep_their_weight():
    """In half of the maps with critical flips the model raises: it survives in 0.95 of all."""
    losses = np.append(np.zeros(10), np.tile([0.2, np.nan], 20))
    table = table_of(losses, ["0"] * 10 + ["1+"] * 40).assign(outcome=["ok"] * 10 + ["ok", "raised"] * 20)
    row = summarise(table).iloc[0]
    assert row["share_raised"] == pytest.approx(0.05) and row["auc_drop"] == pytest.approx(0.05 * 0.2 / 0.95)
    assert row["auc_drop_high"] > 0.05 * (0.2 + GOLDEN)  # a raised trial loses all


def test_weights_of_several_conditions_are_refused():
    table = stratified(np.random.default_rng(4))
    with pytest.raises(
        ValueError, match=r"BitFlip at 1e-05 in all of m .*: the weights of 80 trials sum to 0.1, not to 1"
    ):
        summarise(table[table["stratum"] == "1+"])
    with pytest.raises(ValueError, match="sum to 2, not to 1: they are of several conditions"):
        pvf(
            pd.concat([table, table.assign(rate=1e-6)]).assign(
                decision_changed=0.0, list_changed=0.0, score_changed=0.0
            ),
        )


def test_allocation_follows_need_and_only_grows():
    assert allocate(np.array([0.95, 0.05]), np.array([1e-3, 0.15]), 100).tolist() == [20, 80]
    assert allocate(np.array([0.999, 1e-3]), np.array([0.1, 0.1]), 100).tolist() == [90, 10]
    before = np.zeros(3, np.int64)
    for n in range(6, 200):
        now = allocate(np.array([0.5, 0.3, 0.2]), np.array([0.01, 0.1, 0.2]), n, 2)
        assert now.sum() == n and (now >= before).all()
        before = now


def test_the_column_interval_names_the_method():
    """It said Student's t of 684 published rows that have Stringer's bound."""
    random = np.random.default_rng(0)
    few, many = np.append(np.zeros(99), 0.3), random.normal(0.1, 0.01, 100)
    expected = {
        "Stringer's bound": (table_of(few), stringer_interval(few, (-0.2, 0.8))),
        "Student's t": (table_of(many), mean_interval(many)),
        "rule of three": (table_of(np.zeros(50)), mean_interval(np.zeros(50), bounds=(-0.2, 0.8))),
        "exact": (table_of(np.zeros(50), ber=0.0), (0.0, 0.0, 0.0)),
    }
    for name, (table, ends) in expected.items():
        row = summarise(table, ["auc", "auc_drop"]).iloc[0]
        assert row["interval"] == name
        assert tuple(row[["auc_drop", "auc_drop_low", "auc_drop_high"]]) == pytest.approx(ends, abs=1e-12), name
    both = np.append(random.normal(0, 1e-5, 20), np.append(np.zeros(29), 0.2))
    assert (
        summarise(table_of(both, ["0"] * 20 + ["1+"] * 30), ["auc"]).iloc[0]["interval"]
        == "Stringer's bound, Student's t"
    )
    several = summarise(table_of(many).assign(own=few), ["auc_drop", "own"], bounds={"own": (0, 1)}).iloc[0]["interval"]
    assert several == "Student's t (auc_drop); Stringer's bound (own)"
    assert summarise(table_of(few).assign(own=few), ["own"]).iloc[0]["interval"] == ""  # unknown bounds: blank
