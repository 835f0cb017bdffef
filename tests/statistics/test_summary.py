import pandas as pd
import pytest

from drsrobust.statistics.columns import CONDITION
from drsrobust.statistics.summary import summarise


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


def test_columns(table):
    columns = list(summarise(table, metrics=("auc",)))
    ends = ("", "_low", "_high")
    first = [
        "auc_golden",
        "n",
        "stopping",
        "interval",
        "confidence",
        "few_harmful",
        "share_ok",
        "share_nonfinite",
        "share_raised",
        "nan_rows",
        "inf_rows",
    ]
    first += ["auc", "auc_low", "auc_high", "auc_q10", "auc_q90", "realised", "realised_low", "realised_high"]
    assert columns[len(CONDITION) :] == [*first, *(f"trials_harmed{end}" for end in ends)]


def test_further_metrics(table):
    summary = summarise(
        table.assign(ndcg=[0.2, 0.4, None, 0.5, 0.5], decision_changed=0.5), metrics=("auc", "ndcg", "decision_changed")
    )
    assert summary.loc[0, "ndcg"] == pytest.approx(0.3) and summary.loc[0, "decision_changed_high"] > 0.5
    assert summary.loc[0, "ndcg_low"] < 0.3 < summary.loc[0, "ndcg_high"] and "logloss" not in summary
    nothing = summarise(table.assign(ndcg=None), metrics=("ndcg",))
    assert nothing[["ndcg", "ndcg_low", "ndcg_q10"]].isna().all(axis=None)
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
