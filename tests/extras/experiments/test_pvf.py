import numpy as np
import pandas as pd
import pytest

from drsrobust.statistics import pvf
from drsrobust.statistics.intervals import mean_interval, stringer_interval, wilson
from tests.refusals import refuses


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
    is_over = table["target"] == "over_mlp"
    raised = table.assign(outcome=np.where(is_over, "raised", "ok"))
    found = pvf(raised.assign(decision_changed=raised["decision_changed"].mask(is_over))).iloc[:3]
    assert found["n"].tolist() == [4, 0, 4]  # users there are none, but decisions there were
    assert found["pvf"].tolist()[::2] == [1, 1]
    assert found["incorrect_low"].tolist()[::2] == pytest.approx([0.05**0.25] * 2)


def test_the_definitions_are_those_of_the_columns(table):
    """Rows without users have no lists, several tasks have decisions of each."""
    whole = pvf(table).set_index(["target", "definition"])
    found = pvf(table.drop(columns=["list_changed", "score_changed"])).set_index(["target", "definition"])
    pd.testing.assert_frame_equal(found, whole.loc[found.index], check_dtype=False)
    named = {name: f"{name}/buy" for name in ("decision_changed", "score_changed")}
    tasks = pvf(table.rename(columns=named | {"list_changed": "list_changed@3"}))
    assert tasks["definition"].tolist() == ["decision_changed/buy", "list_changed@3", "score_changed/buy"] * 2
    assert tasks["pvf"].tolist()[0] == 0.5 and "threshold" in tasks.attrs["decision_changed/buy"]


def test_no_harm_seen_has_a_width(table):
    row = pvf(table).iloc[3]
    few = np.where(np.arange(100) < 4, 0.5, 0.0)
    rare = pvf(table.assign(decision_changed=np.append([0.0, 0.25, 0.0, np.nan], few))).iloc[3]
    expected = stringer_interval(few, (0, 1))
    assert tuple(rare[["incorrect", "incorrect_low", "incorrect_high"]]) == pytest.approx(expected)
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


def test_useless_tables(table):
    without = table.drop(columns=["decision_changed", "list_changed", "score_changed"])
    for useless, by, said in (
        (without, ["target"], ["decision_changed, list_changed, score_changed"]),
        (table.drop(columns=["outcome"]), ["target"], ["columns outcome;", "target, decision_changed"]),
        (table, [], ["group by"]),
        (table.assign(score_changed=[0, 3, 0, None] + [0] * 100), ["target"], ["'score_changed' holds 0 to 3"]),
    ):
        refuses(lambda useless=useless, by=by: pvf(useless, by=by), ValueError, *said)
