import numpy as np
import pandas as pd
import pytest

from drsrobust.statistics.intervals import mean_interval, wilson
from drsrobust.statistics.pvf import pvf


@pytest.fixture
def table():
    """Two components: one harmed in some trials, once so that the model raised, and one never; there are no users."""
    over = [("over_mlp", "ok", 0.0, 0.0), ("over_mlp", "ok", 0.25, 0.5), ("over_mlp", "nonfinite", 0.0, 0.75)]
    over += [("over_mlp", "raised", None, None)]
    rows = over + [("embedding", "ok", 0.0, 0.0)] * 100
    frame = pd.DataFrame(rows, columns=["target", "outcome", "decision_changed", "score_changed"])
    return frame.assign(list_changed=None, rate=None, auc=0.8)


def test_by_hand(table):
    found = pvf(table)
    assert found["target"].tolist() == ["over_mlp"] * 3 + ["embedding"] * 3
    assert found["definition"].tolist() == ["decision_changed", "list_changed", "score_changed"] * 2
    flipped, moved = found.iloc[0], found.iloc[2]
    assert tuple(flipped[["pvf", "pvf_low", "pvf_high"]]) == wilson(2, 4) and flipped["n"] == 4
    shares = mean_interval(np.array([0, 0.25, 0, 1]), bounds=(0, 1))
    assert tuple(flipped[["incorrect", "incorrect_low", "incorrect_high"]]) == shares
    assert moved["pvf"] == 0.75 and moved["incorrect"] == 0.5625


def test_what_cannot_be_told_stays_null(table):
    found = pvf(table).set_index(["target", "definition"])
    assert found.xs("list_changed", level=1).drop(columns="n").isna().all(axis=None)
    assert found.xs("list_changed", level=1)["n"].tolist() == [0, 0]
    raised = table.assign(outcome=np.where(table["target"] == "over_mlp", "raised", table["outcome"]))
    raised = pvf(raised.assign(decision_changed=raised["decision_changed"].where(raised["outcome"] != "raised"))).iloc[
        :3
    ]
    assert raised["n"].tolist() == [4, 0, 4]  # users there are none, but decisions there were
    assert raised["pvf"].tolist()[::2] == [1, 1] and raised["incorrect_low"].tolist()[::2] == pytest.approx(
        [0.05**0.25] * 2
    )


def test_the_definitions_are_those_of_the_columns(table):
    """Rows without users have no lists, several tasks have decisions of each."""
    whole = pvf(table).set_index(["target", "definition"])
    found = pvf(table.drop(columns=["list_changed", "score_changed"])).set_index(["target", "definition"])
    pd.testing.assert_frame_equal(found, whole.loc[found.index], check_dtype=False)
    named = {
        "decision_changed": "decision_changed/buy",
        "score_changed": "score_changed/buy",
        "list_changed": "list_changed@3",
    }
    tasks = pvf(table.rename(columns=named))
    assert tasks["definition"].tolist() == ["decision_changed/buy", "list_changed@3", "score_changed/buy"] * 2
    assert tasks["pvf"].tolist()[0] == 0.5 and "threshold" in tasks.attrs["decision_changed/buy"]


def test_no_harm_seen_has_a_width(table):
    row = pvf(table).iloc[3]
    assert row["pvf"] == 0 and row["pvf_high"] == wilson(0, 100)[2]
    assert row["incorrect"] == row["incorrect_low"] == 0 and row["incorrect_high"] == pytest.approx(0.0295, abs=1e-4)


def test_groups(table):
    found = pvf(table.assign(rate=[1e-6, 1e-6, 1e-5, 1e-5] + [None] * 100), by=["target", "rate"])
    assert len(found) == 9 and found["n"].tolist() == [2, 0, 2] * 2 + [100, 0, 100]
    assert found["rate"].isna().tolist() == [False] * 6 + [True] * 3  # null is a group too
    assert list(found)[:3] == ["target", "rate", "definition"] and "Wilson" in found.attrs["pvf"]
    nulls = table.convert_dtypes()  # pandas' own nulls
    pd.testing.assert_frame_equal(pvf(nulls), pvf(table), check_dtype=False)


def test_two_mitigations_of_one_label(table):
    ids = [None] * 2 + ["a"] * 50 + ["b"] * 52
    several = table.assign(mitigation=["none"] * 2 + ["NaN guard"] * 102, mitigation_id=ids)
    for by in (["mitigation"], ["mitigation", "mitigation_id"]):
        found = pvf(several, by=by)
        assert found["n"].tolist() == [2, 0, 2, 50, 0, 50, 52, 0, 52]
        assert found["mitigation_id"].fillna("").tolist() == [""] * 3 + ["a"] * 3 + ["b"] * 3


@pytest.mark.parametrize(("harmful", "least"), [(0.3, 0.95 - 4 * np.sqrt(0.95 * 0.05 / 300)), (0.05, 0.97)])
def test_the_mean_share_covers(harmful, least):
    """A part of the injections makes a beta-distributed share of outputs incorrect: 95 % of 300 campaigns, for both numbers. Of
    rare ones Student's t covered in 85 to 91 %."""
    rng, n = np.random.default_rng(0), 80
    campaigns = np.repeat(np.arange(300), n)
    shares = rng.beta(1, 4, 300 * n) * (rng.random(300 * n) < harmful)
    columns = {"outcome": "ok", "decision_changed": shares, "score_changed": None, "list_changed": None}
    found = pvf(pd.DataFrame({"campaign": campaigns} | columns), by=["campaign"])
    found = found[found["definition"] == "decision_changed"]
    covered = {
        column: ((found[f"{column}_low"] <= truth) & (truth <= found[f"{column}_high"])).mean()
        for column, truth in (("pvf", harmful), ("incorrect", harmful / 5))
    }
    assert covered["pvf"] > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 300) and covered["incorrect"] > least
    few = shares.reshape(300, n)
    half = 1.99 * few.std(axis=1, ddof=1) / np.sqrt(n)  # Student's t alone
    assert np.mean(abs(few.mean(axis=1) - harmful / 5) <= half) < 0.92 or harmful == 0.3


def test_useless_tables(table):
    without = table.drop(columns=["decision_changed", "list_changed", "score_changed"])
    with pytest.raises(
        ValueError, match="one or more of the columns decision_changed, list_changed, score_changed, as of"
    ):
        pvf(without)
    with pytest.raises(ValueError, match="PVF needs columns outcome; there are: target, decision_changed"):
        pvf(table.drop(columns=["outcome"]))
    with pytest.raises(ValueError, match="PVF needs columns to group by"):
        pvf(table, by=[])
    with pytest.raises(ValueError, match="column 'score_changed' holds 0 to 3; shares lie between 0 and 1"):
        pvf(table.assign(score_changed=[0, 3, 0, None] + [0] * 100))
