"""Rate at loss: known curves, raised trials, coverage of intervals; findings on C3."""

import numpy as np
import pandas as pd
import pytest

from drsrobust.statistics.intervals import mean_interval
from drsrobust_study.ber_sweep import LOSSES, _most_different, crossing, knee_claims, rate_at_loss

KEYS = ["model", "dataset", "protocol", "target", "error_model", "mitigation"]
RATES = [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]


def sweep(losses, model="dlrm", dataset="movielens-1m/ids", rates=RATES, n_sites=10**6, **more):
    """A table of trials from losses [trials, rates] (NaN: raised)."""
    rows = [
        {"trial": t, "rate": ber, "ber": ber, "auc_drop": loss, "auc_golden": 0.8, "auc": 0.8 - loss}
        for t, trial in enumerate(losses)
        for ber, loss in zip(rates, trial, strict=True)
    ]
    same = {"model": model, "dataset": dataset, "protocol": "corrected", "target": "all", "error_model": "BitFlip"}
    return pd.DataFrame(rows).assign(**(same | {"mitigation": "none", "n_bits": n_sites} | more))


def summary_of(table):
    """The columns of a summary that are read, with Student's intervals whatever the losses."""
    rows = []
    for _, group in table.groupby([*KEYS, "ber"], sort=False):
        golden, row = (
            group["auc_golden"].iloc[0],
            group.iloc[0][[*KEYS, "rate", "ber", "auc_golden", "n_bits"]].to_dict(),
        )
        mean, low, _ = mean_interval(group["auc_drop"].dropna().to_numpy(float), bounds=(golden - 1, golden))
        *_, high = mean_interval(group["auc_drop"].fillna(golden).to_numpy(float), bounds=(golden - 1, golden))
        row |= {"n": len(group), "share_raised": group["auc"].isna().mean()}
        rows.append(row | {"auc_drop": mean, "auc_drop_low": low, "auc_drop_high": high})
    return pd.DataFrame(rows)


def knees(table, losses=LOSSES):
    return rate_at_loss(summary_of(table), losses)


def test_a_power_of_the_rate_is_met_exactly():
    """Between two decades a line was up to 21 % too high on curves that bend down."""
    rates = np.array(RATES)
    for power in (0.4, 1.0, 1.3):
        assert crossing((5 * rates**power)[None], rates, 0.01)[0] == pytest.approx((0.01 / 5) ** (1 / power))


def test_the_knee_of_a_known_curve():
    """A loss of 200 times the rate, up to 0.3: exact while it is proportional; half of 0.3 lies between two rates."""
    loss = np.minimum(200 * np.array(RATES), 0.3)
    found = knees(sweep([loss] * 3)).set_index("loss")
    assert found.loc["0.001", "knee"] == pytest.approx(5e-6) and found.loc["0.01", "knee"] == pytest.approx(5e-5)
    assert found.loc["half", "auc_drop"] == pytest.approx(0.15)
    assert found.loc["half", "knee"] == pytest.approx(0.15 / 200)  # the line has 7.5e-4 there too
    # All trials agree. A share of 0.63 of error maps may lose all the 0.8, or raise AUC to 1.
    u = 1 - 0.05 ** (1 / 3)
    rates = np.array(RATES)
    for limit, name in ((0.001, "0.001"), (0.01, "0.01"), (0.15, "half")):
        ends = [crossing((loss + u * (worst - loss))[None], rates, limit)[0] for worst in (0.8, -0.2)]
        assert found.loc[name, ["knee_low", "knee_high"]].tolist() == pytest.approx(ends)
    assert (found["knee_low"] < found["knee"]).all() and (found["knee"] < found["knee_high"]).all()
    assert found.loc["0.001", "errors"] == pytest.approx(5) and (found["n"] == 3).all()


def test_ends_of_the_range():
    rates = np.array([1e-3, 1e-2])
    assert crossing(np.array([[0.0, 0.005]]), rates, 0.01).tolist() == [np.inf]
    assert np.allclose(crossing(np.array([[0.02, 0.3]]), rates, 0.01), 5e-4)  # below the lowest rate: from 0
    assert np.allclose(crossing(np.array([[0.02, 0.005], [0.0, 0.01]]), rates, 0.01), [5e-4, 1e-2])  # the first time


def test_trials_that_raised_are_in_no_mean_but_in_the_interval():
    whole = [[1e-6, 2e-6, 0.002, 0.02, 0.2, 0.3], [2e-6, 1e-6, 0.0025, 0.021, 0.2, 0.3]] * 20
    raised = [[1e-6, 1e-6, np.nan, 0.0205, 0.2, 0.3], *whole]
    one, other = (knees(sweep(losses)).set_index("loss").loc["0.001"] for losses in (raised, whole))
    assert one["knee"] == pytest.approx(other["knee"], rel=0.01) and one["knee_high"] == pytest.approx(
        other["knee_high"], rel=0.1
    )
    assert one["knee_low"] < other["knee_low"] / 1.5  # one map of 41 that loses all
    assert one["raised"] == pytest.approx(1 / 41 / 6) and other["raised"] == 0


def test_where_every_trial_raised_nothing_holds():
    nan = np.nan
    found = knees(sweep([[0.0, 0.0, 0.0, 0.0, nan, nan]] * 40)).set_index("loss")
    assert found.loc["half", "knee"] == pytest.approx(1e-4 + 0.15 / 0.8 * 9e-4) and found.loc["half", "raised"] == 1 / 3
    rows = claims(sweep([[nan] * 6] * 40, n_sites=10**8))
    assert rows.loc[["collapse", "hold"], ["low", "high"]].values.tolist() == [[1, 1], [0, 0]]


def test_mitigations_and_error_models_have_knees_of_their_own():
    parts = [sweep([STEEP, LATE] * 4, mitigation=name) for name in ("none", "ECC")]
    parts += [sweep([LATE, STEEP] * 4, error_model="BitFlip(bits=[30])")]
    found = knees(pd.concat(parts))
    keys = found[["error_model", "mitigation"]].drop_duplicates().values.tolist()
    assert keys == [["BitFlip", "none"], ["BitFlip", "ECC"], ["BitFlip(bits=[30])", "none"]] and len(found) == 9
    pd.testing.assert_frame_equal(knees(parts[0]), found[:3])
    differ = knee_claims(summary_of(pd.concat(parts))).set_index("reading")["reason"]
    assert differ["models"] == "one model only" and differ["data sets"] == "one data set only"


def test_a_model_is_not_compared_with_itself():
    """The knee of one lies within the other's interval: it has the least high end and the greatest low one."""
    ends = [("wide", 1e-5, 1e-6, 1e-4), ("narrow", 1e-5, 0.9e-5, 1.1e-5)]
    found = knees(pd.concat([sweep([STEEP, LATE] * 4, model) for model, *_ in ends]))
    for model, knee, low, high in ends:
        found.loc[found["model"] == model, ["knee", "knee_low", "knee_high"]] = knee, low, high
    row = _most_different(found[found["loss"] == "0.01"], "model", "dataset", "0.01")
    assert row["detail"].count("wide") == row["detail"].count("narrow") == 1
    assert row["low"] < 1 < row["high"]


def test_the_interval_covers():
    """Of 100 trials, one in ten loses 0.2 from a rate of its own on: the knee of the truth lies in most intervals."""
    rng = np.random.default_rng(0)

    def draw(trials):
        begins = 10 ** rng.uniform(-7, -3, trials)
        hit = rng.random(trials) < 0.5
        return 0.2 * ((np.array(RATES) >= begins[:, None]) & hit[:, None])

    truth = knees(sweep(draw(4_000))).set_index("loss")["knee"]["0.01"]
    inside = 0
    for _ in range(40):
        row = knees(sweep(draw(100))).set_index("loss").loc["0.01"]
        inside += row["knee_low"] <= truth <= row["knee_high"]
    assert inside >= 33  # 95 % of 40 are 38


def test_wrong_tables_are_refused():
    table = sweep([[0.0] * 6] * 2)
    with pytest.raises(ValueError, match="must hold BitFlip at a rate above 0"):
        knees(table.assign(error_model="FixedCount(k=1)", rate=None))
    with pytest.raises(
        ValueError, match="dlrm, movielens-1m/ids, corrected, all, BitFlip, none: a rate is there twice"
    ):
        rate_at_loss(pd.concat([summary_of(table), summary_of(table)]))
    for wrong in ([], [0.0, 0.1], [0.1, 0.01]):
        with pytest.raises(ValueError, match="losses must ascend from above 0"):
            knees(table, wrong)


STEEP, LATE = [0, 0, 0.002, 0.02, 0.2, 0.3], [0, 0, 0, 0.002, 0.1, 0.3]


def near(losses):
    """20 trials that nearly agree: losses [rates] give or take up to 5 %, and up to 2e-5 more."""
    spread = np.linspace(-1, 1, 20)[:, None]
    return np.array(losses) * (1 + 0.05 * spread) + 1e-5 * (1 + spread)


def claims(*parts):
    return knee_claims(summary_of(pd.concat(parts))).set_index("reading")


def test_claims():
    parts = [sweep(near(STEEP), n_sites=10**8), sweep(near(LATE), "fm", n_sites=10**8)]
    rows = claims(*parts)
    assert rows.loc["collapse", ["value", "low", "n"]].tolist() == [1, 1, 2]
    assert rows.loc["hold", ["value", "low", "n"]].tolist() == [1, 1, 2]
    detail = "half is lost by 0.01 in 2 of 2 curves, at most 100 times the rate that costs 0.01 in 2, clearly in 2"
    assert rows.loc["collapse", "detail"] == detail
    differ = rows.loc["models"]
    assert 1 < differ["low"] < differ["value"] < differ["high"] and differ["n"] == 40
    assert differ[["first", "last", "loss"]].tolist() == ["dlrm", "fm", "0.01"]
    assert "dlrm 5.0e-05" in differ["detail"] and "fm 2.6e-04" in differ["detail"]
    assert rows.loc["data sets", "reason"] == "one data set only" and np.isnan(rows.loc["data sets", "value"])
    parts += [sweep(near(LATE), dataset="criteo-kaggle/fields"), sweep(near(LATE), "fm", "criteo-kaggle/fields")]
    row = claims(*parts).loc["data sets"]
    assert row["low"] > 1 and row["dataset"] == "movielens-1m/ids, criteo-kaggle/fields"
    assert row[["first", "last"]].tolist() == ["movielens-1m/ids", "criteo-kaggle/fields"]
    assert row["detail"].startswith("dlrm, 0.01 AUC lost: movielens-1m/ids 5.0e-05")


def test_models_are_compared_where_they_were_trained_most_often():
    parts = [sweep(near(STEEP)), sweep(near(LATE), "fm"), sweep(near([0.1] * 6), "dcn")]
    seeds = {"dlrm": 3, "fm": 3, "dcn": 1}
    summary = summary_of(pd.concat(parts))
    row = knee_claims(summary.assign(train_seeds=summary["model"].map(seeds))).set_index("reading").loc["models"]
    assert "dlrm" in row["detail"] and "fm" in row["detail"] and "dcn" not in row["detail"]
    assert "dcn" in knee_claims(summary).set_index("reading").loc["models", "detail"]


def test_rates_that_hit_nothing_are_no_test():
    """2,000 flips at the rate where AUC still holds, and 20."""
    rows = [claims(sweep(near(STEEP), n_sites=n_sites)).loc["hold"] for n_sites in (10**8, 10**6)]
    assert [(row["low"], row["high"]) for row in rows] == [(1, 1), (0, 0)]
    alike = claims(sweep([STEEP] * 20, n_sites=10**8)).loc["hold"]
    assert (alike["low"], alike["high"]) == (0, 1)  # 20 trials that agree do not show that 1 in 100 loses nothing
    assert rows[1]["detail"] == "under 0.001 is lost at some rate in 0 of 1 curves, clearly in 0"


def test_a_knee_that_was_not_reached_counts_where_no_other_differs():
    never = [0, 0, 0, 0, 0.001, 0.005]
    row = claims(sweep(near(STEEP)), sweep(near(never), "fm")).loc["models"]
    assert row["low"] > 1 and np.isnan(row["value"]) and row["detail"].endswith("fm not up to the highest rate")
    row = claims(sweep(near(STEEP)), sweep(near(LATE), "dcn"), sweep(near(never), "fm")).loc["models"]
    assert row["low"] > 1 and "dcn 2.6e-04" in row["detail"]


def test_a_knee_that_no_trial_reached_may_be_reached():
    """20 trials that lose nothing at any rate: 1 in 7 may lose all, which is more than 0.01 on average."""
    row = knees(sweep([[0.0] * 6] * 20)).set_index("loss").loc["0.01"]
    assert row["knee"] == row["knee_high"] == np.inf and row["knee_low"] < 1e-7
    assert claims(sweep(near(STEEP)), sweep([[0.0] * 6] * 20, "fm")).loc["models", "low"] < 1


def test_models_that_do_not_surely_differ():
    rng = np.random.default_rng(0)
    both = [sweep(np.where(rng.random((8, 1)) < 0.5, STEEP, LATE), model) for model in ("dlrm", "fm")]
    row = claims(*both).loc["models"]
    assert row["low"] < 1 < row["high"]


@pytest.mark.parametrize(
    ("losses", "share"),
    [
        ([0, 0, 0, 0.01, 0.04, 0.3], 1),  # half of 0.3 is lost at 48 times the rate of 0.01
        ([0, 0, 0.01, 0.02, 0.08, 0.12], 0),  # never
        ([0, 0.01, 0.03, 0.05, 0.08, 0.3], 0),  # at 3,900 times that rate: a gradual loss
        ([0, 0, 0, 0, 0, 0.01], 0),
    ],
)
def test_a_curve_that_collapses_or_does_not(losses, share):
    rows = claims(sweep(near(losses)))
    assert rows.loc["collapse", ["low", "value", "high"]].tolist() == [share] * 3 and rows.loc["collapse", "n"] == 1
    assert rows.loc[["models", "data sets"], "value"].isna().all() and rows.loc[["models", "data sets"], "reason"].all()


def test_a_collapse_that_is_not_sure():
    """Few trials that differ widely: the rate at which half is lost is not known within a factor of 100."""
    row = claims(sweep([STEEP, LATE, [0, 0.01, 0.03, 0.05, 0.08, 0.3]])).loc["collapse"]
    assert (row["low"], row["high"]) == (0, 1) and row["interval"] == "counts: clearly, not clearly less"


def test_one_model_against_the_others():
    """Half is lost at 7.5e-4 by fm and nfm, at 3.25e-3 by dcn, and at 8.7e-5 by dlrm."""
    early, never = [0, 0, 0.002, 0.2, 0.3, 0.3], [0, 0, 0, 0, 0.001, 0.005]
    others = [sweep(near(losses), name) for name, losses in (("fm", STEEP), ("dcn", LATE), ("nfm", STEEP))]
    row = claims(sweep(near(early)), *others).loc["dlrm"]
    dlrm, steep = (knees(sweep(near(losses))).set_index("loss").loc["half"] for losses in (early, STEEP))
    assert row["value"] == pytest.approx(dlrm["knee"] / steep["knee"]) and row["n"] == 3  # of three the middle is STEEP
    ends = dlrm["knee_low"] / steep["knee_high"], dlrm["knee_high"] / steep["knee_low"]
    assert (row["low"], row["high"]) == pytest.approx(ends) and row["dataset"] == "movielens-1m/ids"
    assert row["detail"].startswith("DLRM is the least robust of 4: half is lost at 8.7e-05 [")
    last = claims(sweep(near(LATE)), sweep(near(early), "fm"), sweep(near(STEEP), "dcn")).loc["dlrm"]
    assert last["low"] > 1 and last["detail"].startswith("DLRM is the most robust of 3")
    unknown = claims(sweep(near(never)), sweep(near(early), "fm"), sweep(near(STEEP), "dcn")).loc["dlrm"]
    assert np.isnan(unknown["value"]) and unknown["reason"] == "half is not lost up to the highest rate"
    assert "dlrm" not in claims(sweep(near(early)), others[0]).index  # one other model is no median
    assert "dlrm" not in claims(*others).index
    renamed = knee_claims(summary_of(pd.concat([sweep(near(early)), *others])), model="fm").set_index("reading")
    assert renamed.loc["fm", "detail"].startswith("FM is number 2 from the least robust of 4")
