"""Estimates from stratified trials against the same ones from plain trials of one population."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from drsrobust.campaign.sampling import allocate
from drsrobust.statistics import pvf
from drsrobust.statistics.intervals import bounded_interval, mean_interval, rule_of_three, stringer_interval, wilson
from drsrobust.statistics.strata import Strata
from drsrobust.statistics.summary import summarise
from tests.statistics import tables
from tests.statistics.tables import GOLDEN

WEIGHTS = {"0": 0.9, "1+": 0.1}  # probabilities of the strata


def losses_of(random, critical):
    """With critical flips 40 % of maps lose up to 0.3, without all lose a little."""
    little = np.abs(random.normal(0, 2e-4, len(critical)))
    return little + critical * (random.random(len(critical)) < 0.4) * random.uniform(0.05, 0.3, len(critical))


TRUTH = np.sqrt(2 / np.pi) * 2e-4 + 0.1 * 0.4 * 0.175


def table_of(losses, strata=None, **more):
    if strata is not None:
        counts = pd.Series(strata).value_counts()
        weights = [WEIGHTS[name] / counts[name] for name in strata]
        more |= {"stratum": strata, "weight": weights, "loss_is_bounded": [name == "0" for name in strata]}
    rates = {"rate": 1e-5, "ber": 1e-5, "n_sites": 10**6, "n_events": 10}
    return tables.table_of(GOLDEN - losses, **rates | more)


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
    errors = {"auc_drop": 6e-4, "auc": 6e-4, "trials_harmed": 4e-3, "auc_q10": 2e-3, "auc_q90": 1e-5}
    for name, error in errors.items():
        assert one[name] == pytest.approx(other[name], abs=error), name
    assert other["auc_drop"] == pytest.approx(TRUTH, abs=3e-4) and few["auc_drop"].mean() > 4 * TRUTH
    assert other["auc_drop_high"] - other["auc_drop_low"] < 0.6 * (one["auc_drop_high"] - one["auc_drop_low"])
    assert other["share_ok"] == 1 and other["n"] == 20_000 and not other["few_harmful"]
    shares, expected = (pvf(table.assign(decision_changed=table["auc_drop"] > 0.01)).iloc[0] for table in (few, many))
    assert shares["pvf"] == pytest.approx(0.04, abs=3e-3) == pytest.approx(expected["pvf"], abs=4e-3)
    assert shares["incorrect_low"] < 0.04 < shares["incorrect_high"]


def test_a_plain_table_is_one_stratum():
    values = np.random.default_rng(3).uniform(0.1, 0.3, 50)
    strata = Strata.of(table_of(values))
    assert not strata.stratified and strata.mean(values) == pytest.approx(values.mean())
    assert strata.mean_interval(values, (-0.2, 0.8)) == pytest.approx(mean_interval(values))
    assert strata.share(values > 0.2) == wilson(int((values > 0.2).sum()), 50)
    assert strata.quantile(values, 0.1) == np.quantile(values, 0.1)
    assert strata.upper_bound(values, (-0.2, 0.8)) == bounded_interval(values, (-0.2, 0.8), 0.9)[2]


def strata_of(weights, values):
    """The strata of values [strata][trials] as losses, and these values."""
    names = np.repeat(np.arange(len(values)), [len(own) for own in values]).astype(str)
    weight = np.concatenate([np.full(len(own), w / len(own)) for w, own in zip(weights, values, strict=True)])
    losses = np.concatenate(values)
    return Strata.of(pd.DataFrame({"stratum": names, "weight": weight, "auc_drop": losses, "outcome": "ok"})), losses


def interval(weights, values, bounds=(0.0, 1.0)):
    strata, losses = strata_of(weights, values)
    return strata.mean_interval(losses, bounds)


def test_a_stratum_whose_trials_are_alike_is_not_known():
    mean, low, high = interval([0.9, 0.1], [np.full(100, 0.2), np.full(50, 0.5)])
    u, v = rule_of_three(100), rule_of_three(50)
    assert mean == pytest.approx(0.23)
    assert mean - low == pytest.approx(np.hypot(0.9 * u * 0.2, 0.1 * v * 0.5))
    assert high - mean == pytest.approx(np.hypot(0.9 * u * 0.8, 0.1 * v * 0.5))


def test_each_stratum_has_its_bounds():
    """Equal trials, few harmful ones and many: the rule of three, Stringer's bound and Student's t, each within its bounds."""
    random = np.random.default_rng(1)
    values = np.zeros(60), np.append(np.zeros(59), 0.04), random.uniform(0.1, 0.3, 60)
    bounds = [(-0.01, 0.02), (0.0, 0.05), (0.0, 1.0)]
    mean, low, high = interval([0.5, 0.3, 0.2], values, tuple(np.transpose(bounds)))
    methods = (mean_interval, stringer_interval, mean_interval)
    each = np.array([method(own, bounds=ends) for method, own, ends in zip(methods, values, bounds, strict=True)])
    weights = np.array([0.5, 0.3, 0.2])
    assert mean == pytest.approx(weights @ each[:, 0])
    assert mean - low == pytest.approx(np.linalg.norm(weights * (each[:, 0] - each[:, 1])))
    assert high - mean == pytest.approx(np.linalg.norm(weights * (each[:, 2] - each[:, 0])))
    two = [np.array([0.0, 0.2]), np.array([0.5, 1.0])]
    _, low, high = interval([0.5, 0.5], two, (np.array([0.0, 0.5]), np.array([0.2, 1.0])))
    assert 0.25 <= low < 0.425 < high <= 0.6
    with pytest.raises(ValueError, match="0.3"):
        interval([0.5, 0.5], [values[1] * 7.5, np.full(60, 0.1)], (0.0, np.array([0.2, 1.0])))


def test_a_share_is_of_wilsons_intervals_and_a_bound_of_a_part_of_the_error_each():
    weights, counts, ns = np.array([0.5, 0.3, 0.2]), (1, 4, 9), (12, 13, 14)
    strata, flags = strata_of(weights, [np.repeat([1.0, 0.0], [c, n - c]) for c, n in zip(counts, ns, strict=True)])
    each = np.array([wilson(count, n) for count, n in zip(counts, ns, strict=True)])
    share = weights @ each[:, 0]
    low, high = (np.linalg.norm(weights * (each[:, 0] - each[:, end])) for end in (1, 2))
    assert strata.share(flags > 0) == pytest.approx((share, share - low, share + high))
    bounds = [bounded_interval(flags[member], (0.0, 1.0), 1 - 0.1 / 3)[2] for member in strata.members]
    assert strata.upper_bound(flags, (0.0, 1.0)) == pytest.approx(weights @ bounds)


@pytest.mark.parametrize("ns", [(40,), (15, 30)])
def test_a_ratio_has_fiellers_interval(ns):
    """At both ends r of it, numerator - r * denominator lies t standard errors from 0."""
    random, weights = np.random.default_rng(3), np.array([0.9, 0.1][: len(ns)]) / sum([0.9, 0.1][: len(ns)])
    lost = [random.exponential(0.1 + place, n) for place, n in enumerate(ns)]
    gained = [own * random.uniform(0, 1, len(own)) for own in lost]
    strata, bottom = strata_of(weights, lost)
    ratio, low, high = strata.ratio(np.concatenate(gained), bottom)

    def rest(r):
        """The mean of what remains, and its variances by stratum."""
        each = [x - r * y for x, y in zip(gained, lost, strict=True)]
        parts = [w**2 * own.var(ddof=1) / len(own) for w, own in zip(weights, each, strict=True)]
        return weights @ [own.mean() for own in each], np.array(parts)

    mean, parts = rest(ratio)
    freedom = parts.sum() ** 2 / (parts**2 / (np.array(ns) - 1)).sum()
    assert mean == pytest.approx(0, abs=1e-12) and low < ratio < high
    for end, sign in ((low, 1), (high, -1)):
        mean, parts = rest(end)
        assert mean == pytest.approx(sign * t.ppf(0.975, freedom) * np.sqrt(parts.sum()))


def test_few_harmful_trials_get_stringers_bound():
    """One trial of 100 loses 0.3: Student's t would end at 0.009, where rarer losses may be missing."""
    losses = np.append(np.full(99, 1e-5), 0.3)
    row = summarise(table_of(losses)).iloc[0]
    assert row["few_harmful"] and row["auc_drop_high"] == pytest.approx(stringer_interval(losses, (-0.2, 0.8))[2])
    assert row["auc_drop_high"] > 0.03 and np.isnan(summarise(table_of(losses).assign(ne=losses)).iloc[0]["ne_high"])


@pytest.mark.parametrize(("harmed", "n", "few"), [(12, 100, 0), (11, 100, 1), (11, 45, 1), (11, 44, 0), (12, 12, 0)])
def test_how_many_harmful_trials_are_few(harmed, n, few):
    """Under 12, and under a quarter of all; also of trials that lose over a quarter of the largest loss."""
    rest, large = np.linspace(1e-5, 1e-3, n - harmed), 0.3 + np.arange(harmed) / 1000
    for losses in (np.append(rest, large), np.append(rest + 0.01, large)):
        assert summarise(table_of(losses)).iloc[0]["few_harmful"] == few
    raised = table_of(np.full(n, 1e-4)).assign(outcome=["raised"] * harmed + ["ok"] * (n - harmed))
    assert Strata.of(raised).few_harmful.tolist() == [few]


def test_nothing_is_known_without_values():
    strata, missing = Strata.of(table_of(np.linspace(0.1, 0.3, 20))), np.full(20, np.nan)
    found = [*strata.mean_interval(missing, None), *strata.ratio(missing, missing), strata.mean(missing)]
    assert len(found) == 7 and np.isnan([*found, strata.quantile(missing, 0.5)]).all()
    assert strata.methods(missing, (0.0, 1.0)) == "" and strata.mean_interval(missing + 1, (0.0, 1.0))[0] != 0
    sign = np.tile([1.0, -0.9], 10)  # a denominator that may be 0, one that is, and a single trial
    ratio, *ends = strata.ratio(sign * 2, sign)
    assert ratio == pytest.approx(2) and np.isnan(ends).all()
    assert np.isnan(strata.ratio(sign, np.tile([1.0, -1.0], 10))).all()
    one, value = strata_of([1.0], [np.array([0.2])])
    assert one.ratio(value, value * 2)[0] == 0.5 and np.isnan(one.ratio(value, value * 2)[1:]).all()


def test_quantiles_of_strata_have_their_weight_at_or_below_them():
    strata, values = strata_of([0.6, 0.4], [np.array([0.1, 0.4, np.nan]), np.array([0.2, 0.3])])
    assert [strata.quantile(values, q) for q in (0.0, 0.25, 0.26, 0.5, 0.51, 0.75, 0.76, 1.0)] == [
        *(0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4)
    ]


def test_a_stratum_whose_losses_are_not_bounded_by_those_seen_has_a_wider_interval():
    """Equal losses without critical flips are known, others are not."""
    losses = np.append(np.zeros(20), np.full(30, 0.2))
    row = summarise(table_of(losses, ["0"] * 20 + ["1+"] * 30)).iloc[0]
    assert row["auc_drop"] == pytest.approx(0.02)
    assert row["auc_drop_low"] < 0.02 < row["auc_drop_high"] < 0.03
    losses = np.append(np.linspace(-1e-5, 1e-5, 20), np.full(30, 0.2))
    table = table_of(losses, ["0"] * 20 + ["1+"] * 30)
    found = pd.concat([summarise(one) for one in (table, table.assign(loss_is_bounded=False))])
    known, unknown = found["auc_drop_high"] - found["auc_drop_low"]
    assert known < 0.05 and unknown > 0.1


def test_trials_without_a_value_keep_their_weight():
    """In half of the maps with critical flips the model raises: it survives in 0.95 of all."""
    losses = np.append(np.zeros(10), np.tile([0.2, np.nan], 20))
    table = table_of(losses, ["0"] * 10 + ["1+"] * 40).assign(outcome=["ok"] * 10 + ["ok", "raised"] * 20)
    row = summarise(table).iloc[0]
    assert row["share_raised"] == pytest.approx(0.05) and row["auc_drop"] == pytest.approx(0.05 * 0.2 / 0.95)
    assert row["auc_drop_high"] > 0.05 * (0.2 + GOLDEN)  # a raised trial loses all


def test_weights_of_several_campaigns_are_shared_and_those_of_several_conditions_refused():
    table, other = (stratified(np.random.default_rng(seed)) for seed in (4, 5))
    ones = pd.concat([summarise(table), summarise(other)])
    both = summarise(pd.concat([table, other.assign(seed=other["seed"] + 10**6)])).iloc[0]
    assert both["auc_drop"] == pytest.approx(ones["auc_drop"].mean()) and both["n"] == ones["n"].sum()
    assert both["auc_drop_high"] - both["auc_drop_low"] < (ones["auc_drop_high"] - ones["auc_drop_low"]).max()
    with pytest.raises(ValueError, match="BitFlip at 1e-05 .*weights of 80 trials sum to 0.1"):
        summarise(table[table["stratum"] == "1+"])
    with pytest.raises(ValueError, match="weights .*sum to 2"):
        pvf(pd.concat([table, table.assign(rate=1e-6)]).assign(decision_changed=0.0))


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
    of_both = summarise(table_of(both, ["0"] * 20 + ["1+"] * 30), ["auc"]).iloc[0]["interval"]
    assert of_both == "Stringer's bound, Student's t"
    several = summarise(table_of(many).assign(own=few), ["auc_drop", "own"], bounds={"own": (0, 1)}).iloc[0]["interval"]
    assert several == "Student's t (auc_drop); Stringer's bound (own)"
    assert summarise(table_of(few).assign(own=few), ["own"]).iloc[0]["interval"] == ""  # unknown bounds: blank
