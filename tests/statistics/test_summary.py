from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from drsrobust.statistics.columns import CONDITION
from drsrobust.statistics.intervals import mean_interval, quantile_interval, wilson
from drsrobust.statistics.stopping import stopping_interval
from drsrobust.statistics.summary import summarise
from drsrobust.study.captions import caption


@pytest.fixture
def table():
    base = {"model": "m", "dataset": "synthetic-x", "protocol": "corrected", "error_model": "BitFlip", "target": "all"}
    base |= {"mitigation": "none", "auc_golden": 0.8, "logloss": 0.5, "ne": 0.9, "checkpoint": "c", "data": "d"}
    base["stopping"] = "fixed"
    base |= {"nan_rows": 2, "inf_rows": 0, "n_sites": 100_000, "n_events": 100}
    rows = [
        {"rate": 1e-3, "ber": 1e-3, "outcome": "ok", "auc": 0.7},
        {"rate": 1e-3, "ber": 1e-3, "outcome": "nonfinite", "auc": 0.6},
        {"rate": 1e-3, "ber": 1e-3, "outcome": "raised", "auc": None},
        {"rate": 1e-6, "ber": 1e-6, "outcome": "ok", "auc": 0.7995},
        {"rate": None, "ber": 1e-9, "outcome": "ok", "auc": 0.8, "error_model": "SingleBit(bit=3)"},
    ]
    frame = pd.DataFrame([base | row for row in rows])
    return frame.assign(auc_drop=frame["auc_golden"] - frame["auc"])


def test_one_row_per_condition(table):
    summary = summarise(table)
    assert summary["n"].tolist() == [3, 1, 1]
    first = summary.iloc[0]
    assert first["auc"] == pytest.approx(0.65)  # a trial that raised is counted apart, never averaged in
    assert first["auc_low"] < 0.65 < first["auc_high"] <= 1 and first["auc_q10"] == pytest.approx(0.61)
    assert [first[f"share_{outcome}"] for outcome in ("ok", "nonfinite", "raised")] == pytest.approx([1 / 3] * 3)
    assert first["nan_rows"] == 2 and first["inf_rows"] == 0
    assert first["trials_harmed"] == 1 and summary.loc[1, "trials_harmed"] == 0
    assert tuple(summary.loc[1, ["auc_low", "auc_high"]]) == pytest.approx((0.05 * 0.7995, 1 - 0.05 * 0.2005))
    assert "Student" in summary.attrs["interval"]
    assert first["realised"] == 1e-3 and first["realised_low"] < 1e-3 < first["realised_high"]
    assert summary.loc[1, "realised"] > summary.loc[1, "realised_high"]  # 100 events where 0.1 were asked for
    assert summary.loc[2, "realised_low"] != summary.loc[2, "realised_low"]  # one bit always: there is no range


def test_larger_losses_are_counted_too(table):
    summary = summarise(table.assign(auc_drop=[0.05, 0.2, None, 0.0005, 0.0]))
    assert summary["trials_harmed_0.01"].tolist() == [1, 0, 0]
    assert summary.loc[0, "trials_harmed_0.1"] == pytest.approx(2 / 3)  # lost 0.2, and raised
    assert summary.loc[0, "trials_harmed_0.1_low"] < 2 / 3 < summary.loc[0, "trials_harmed_0.1_high"] < 1
    assert summary.loc[1, "trials_harmed_0.1_high"] == pytest.approx(wilson(0, 1)[2])


def test_quantiles_have_intervals(table):
    many = pd.concat([table[3:4]] * 50, ignore_index=True)
    many["auc"] = [index / 100 for index in range(50)]
    row = summarise(many).iloc[0]
    for percent in (10, 50, 90):
        values = tuple(row[[f"auc_q{percent}", f"auc_q{percent}_low", f"auc_q{percent}_high"]])
        assert values == pytest.approx(quantile_interval(many["auc"].to_numpy(), percent / 100))
    few = summarise(table).iloc[0]
    assert (
        few["auc_q50"] == pytest.approx(0.65) and few["auc_q50_low"] != few["auc_q50_low"]
    )  # of two values there is none


def test_new_columns_stand_at_the_end(table):
    columns = list(summarise(table, metrics=("auc",)))
    ends = ("", "_low", "_high")
    first = ["auc_golden", "n", "stopping", "share_ok", "share_nonfinite", "share_raised", "nan_rows", "inf_rows"]
    first += ["auc", "auc_low", "auc_high", "auc_q10", "auc_q90", "realised", "realised_low", "realised_high"]
    first += [f"trials_harmed{drop}{end}" for drop in ("", "_0.01", "_0.1") for end in ends]
    first += ["auc_q10_low", "auc_q10_high", "auc_q50", "auc_q50_low", "auc_q50_high", "auc_q90_low"]
    assert columns[len(CONDITION) :] == [*first, "auc_q90_high"]


def test_further_metrics(table):
    summary = summarise(
        table.assign(ndcg=[0.2, 0.4, None, 0.5, 0.5], decision_changed=0.5), metrics=("auc", "ndcg", "decision_changed")
    )
    assert summary.loc[0, "ndcg"] == pytest.approx(0.3) and summary.loc[0, "decision_changed_high"] > 0.5
    assert summary.loc[0, "ndcg_low"] < 0.3 < summary.loc[0, "ndcg_high"] and "logloss" not in summary
    nothing = summarise(table.assign(ndcg=None), metrics=("ndcg",))
    assert nothing[["ndcg", "ndcg_low", "ndcg_q50"]].isna().all(axis=None)
    with pytest.raises(ValueError, match="unknown metric 'ndgc'; did you mean 'ndcg'"):
        summarise(table.assign(ndcg=0.1), metrics=("ndgc",))


def test_the_realised_rate_of_a_campaign_is_what_its_error_model_asks_for(evaluator, tmp_path):
    from drsrobust import BitFlip, Campaign, MultiBit

    errors = [BitFlip(1e-4), MultiBit(1e-3, 3)]
    summary = summarise(Campaign(evaluator, errors=errors, trials=8, store=tmp_path / "s").run(progress=False))
    assert ((summary["realised_low"] < summary["realised"]) & (summary["realised"] < summary["realised_high"])).all()
    assert ((summary["realised_low"] < summary["rate"]) & (summary["rate"] < summary["realised_high"])).all()


def test_a_sum_of_error_models_has_no_rate_of_its_own(evaluator, tmp_path):
    from drsrobust import BitFlip, Campaign, RandomWord

    both = Campaign(evaluator, errors=[BitFlip(1e-4) + RandomWord(1e-4)], trials=2, store=tmp_path / "s").run(
        progress=False
    )
    assert both["rate"].isna().all() and both["ber"].isna().all() and (both["bits_flipped"] > 0).all()
    assert summarise(both)["realised"].isna().all()


def test_models_and_rows_are_not_averaged_together(table):
    with pytest.raises(
        ValueError, match=r"BitFlip at 0.001 in all of m on synthetic-x holds trials of 2 trained models"
    ):
        summarise(table.assign(checkpoint=["a", "b", "a", "a", "a"]))
    with pytest.raises(ValueError, match=r"2 sets of rows \(column 'data'\)"):
        summarise(table.assign(data=["a", "b", "a", "a", "a"]))


def test_caption(table, data):
    text = caption(summarise(table), data.test.head(123))
    assert "synthetic-movielens/full (generated data, not real clicks), 123 of 600 test rows" in text
    assert "1 to 3 trials per point" in text and "m 0.8000" in text and "stress range" in text and "alike" not in text
    assert "Student" in caption(pd.concat([summarise(table)] * 2), data.valid)  # whatever became of attrs
    assert "600 valid rows" in caption(summarise(table), data.valid)
    alike = caption(summarise(pd.concat([table[3:4]] * 60)), data.test)
    assert "where all trials agree, what they may have missed" in alike and "stress" not in alike
    summaries = [summarise(table.assign(stopping=one)) for one in ("fixed", "precision")]
    for joined in (summarise(pd.concat([table, table.assign(model="w", stopping="precision")])), pd.concat(summaries)):
        text = caption(joined, data.test)
        assert "Student" in text and "betting" in text
    real = caption(summarise(table), replace(data.test, dataset="movielens-1m/full"))
    assert "generated" not in real
    drawn = caption(summarise(table), data.test, marks="Colours: means.")
    assert "rows are fixed. Colours: means. Rates of" in drawn and "bars" not in drawn


def test_a_metric_and_a_share_of_trials_are_two_columns(table):
    """`users_harmed` is a metric, `trials_harmed` what the summary counts; a name that would be both is refused."""
    table = table.assign(users_harmed=[0.01, 0.05, None, 0.02, 0.0], trials_harmed=0.5, auc_low=0.5)
    row = summarise(table, metrics=("auc", "users_harmed")).iloc[0]
    assert row["users_harmed"] == pytest.approx(0.03) and row["trials_harmed"] == 1
    for metrics in (("trials_harmed",), ("auc", "auc_low"), ("nan_rows",)):
        with pytest.raises(ValueError, match=f"gives the summary two columns '{metrics[-1]}'"):
            summarise(table, metrics=metrics)


def test_trials_that_agree_are_not_certain(table):
    many = pd.concat([table[4:5]] * 60, ignore_index=True).assign(spearman=1.0, own=3.0)
    row = summarise(many, metrics=("auc", "auc_drop", "logloss", "spearman", "own")).iloc[0]
    u = 1 - 0.05 ** (1 / 60)
    assert (row["auc_low"], row["auc_high"]) == pytest.approx((0.8 - 0.8 * u, 0.8 + 0.2 * u))
    assert (row["auc_drop_low"], row["auc_drop_high"]) == pytest.approx((-0.2 * u, 0.8 * u))
    assert (row["spearman_low"], row["spearman_high"]) == pytest.approx((1 - 2 * u, 1))
    assert row["logloss_low"] == pytest.approx(0.5 - 0.5 * u) and row["logloss_high"] == float("inf")
    assert row[["own_low", "own_high"]].isna().all()  # its bounds are not known
    without = summarise(many.assign(ber=0.0), metrics=("auc",)).iloc[0]
    assert without["auc_low"] == without["auc_high"] == 0.8  # no error map is drawn at a rate of 0


def test_intervals_stay_within_what_is_possible(table):
    """Two trials at either end: Student's t alone reaches far beyond."""
    few = pd.concat([table[:1]] * 2, ignore_index=True).assign(auc=[0.0, 1.0], logloss=[0.1, 9.0], ndcg=[0.0, 1.0])
    row = summarise(few.assign(auc_drop=0.8 - few["auc"]), metrics=("auc", "auc_drop", "logloss", "ndcg")).iloc[0]
    assert tuple(row[["auc_low", "auc_high", "ndcg_low", "ndcg_high", "logloss_low"]]) == (0, 1, 0, 1, 0)
    assert tuple(row[["auc_drop_low", "auc_drop_high"]]) == pytest.approx((-0.2, 0.8)) and row["logloss_high"] > 9
    gain = table[3:5].assign(rate=1e-6, ber=1e-6, error_model="BitFlip", auc=[0.8, 0.801], auc_drop=[0.0, -0.001])
    row = summarise(gain).iloc[0]
    assert row["auc_drop"] == -0.0005 and row["auc_drop_low"] < -0.001  # errors may raise AUC
    with pytest.raises(ValueError, match="column 'auc': 1 of 2 values are not between 0.0 and 1.0, as 1.5"):
        summarise(few.assign(auc=[0.5, 1.5]))


def test_what_raised_widens_the_end_that_is_worse(table):
    first = summarise(table).iloc[0]
    worst = mean_interval(np.array([0.7, 0.6, 0.0]), bounds=(0, 1))
    assert first["auc_low"] == worst[1] and first["auc_drop_high"] == pytest.approx(0.8 - worst[1])
    survivors = mean_interval(np.array([0.7, 0.6]), bounds=(0, 1))
    assert first["auc_high"] == survivors[2]
    none = summarise(pd.concat([table[2:3]] * 9)).iloc[0]
    assert np.isnan(none["auc"]) and none["auc_low"] == 0 and np.isnan(none["auc_high"])


def test_how_trials_were_stopped_is_in_the_table(table, evaluator, tmp_path):
    from drsrobust import BitFlip, Campaign
    from drsrobust.campaign.table import SCHEMA

    options = {"errors": [BitFlip(1e-4)], "metrics": ["decision_changed"], "store": tmp_path / "s"}
    fixed = Campaign(evaluator, trials=40, **options).run(workers=1, progress=False)
    campaign = Campaign(evaluator, trials=20, precision=0.2, max_trials=60, **options)
    looked = campaign.run(workers=1, progress=False)
    assert list(fixed)[len(SCHEMA.names) :] == list(looked)[len(SCHEMA.names) :] == ["stopping", "decision_changed"]
    assert set(fixed["stopping"]) == {"fixed"} and set(looked["stopping"]) == {"precision"}
    both = summarise(pd.concat([fixed, looked.assign(model="other")]))
    expected = [mean_interval(fixed["auc"].to_numpy(), bounds=(0, 1)), stopping_interval(looked["auc"].to_numpy())]
    assert both[["auc", "auc_low", "auc_high"]].to_numpy() == pytest.approx(np.array(expected))
    assert both["stopping"].tolist() == ["fixed", "precision"] and both.loc[1, ["ne_low", "ne_high"]].isna().all()
    pd.testing.assert_frame_equal(summarise(looked), campaign.summary())
    path = tmp_path / "table.csv"
    looked.to_csv(path, index=False)
    again = summarise(pd.read_csv(path))
    assert again.loc[0, "auc_low"] == pytest.approx(both.loc[1, "auc_low"])
    with pytest.raises(
        ValueError, match="the table has no column 'stopping', on which intervals depend; add it: 'fixed'"
    ):
        summarise(fixed.drop(columns="stopping"))
    for wrong in (["fixed"] + ["precision"] * 4, "seen", None):
        with pytest.raises(
            ValueError, match=r"BitFlip at 0.001 in all of m on synthetic-x: column 'stopping' holds \["
        ):
            summarise(table.assign(stopping=wrong))
