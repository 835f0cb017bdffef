"""Numbers of conditions, from their trials; means over trained models."""

import numpy as np
import pandas as pd
import pytest

import drsrobust as dr
from drsrobust.campaign import Campaign
from drsrobust.injection import BitFlip
from drsrobust.mitigation import NaNGuard
from drsrobust.statistics import across_models, pvf
from drsrobust.statistics.intervals import mean_interval, stringer_interval
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.summary import summarise
from drsrobust_extras.protection.field_errors import MultiBit, RandomWord
from tests.statistics.tables import GOLDEN, table_of


@pytest.fixture
def table():
    rates, outcomes = [1e-3, 1e-3, 1e-3, 1e-6], ["ok", "nonfinite", "raised", "ok", "ok"]
    errors = {"error_model": ["BitFlip"] * 4 + ["SingleBit(bit=3)"], "rate": [*rates, None], "ber": [*rates, 1e-9]}
    errors |= {"outcome": outcomes, "nan_rows": 2, "n_sites": 100_000, "n_events": 100}
    return table_of([0.7, 0.6, None, 0.7995, 0.8], **errors)


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


def test_further_metrics(table):
    further = table.assign(ndcg=[0.2, 0.4, None, 0.5, 0.5], decision_changed=0.5)
    summary = summarise(further, metrics=("auc", "ndcg", "decision_changed"))
    assert summary.loc[0, "ndcg"] == pytest.approx(0.3) and summary.loc[0, "decision_changed_high"] > 0.5
    assert summary.loc[0, "ndcg_low"] < 0.3 < summary.loc[0, "ndcg_high"] and "logloss" not in summary
    nothing = summarise(table.assign(ndcg=None), metrics=("ndcg",))
    assert nothing[["ndcg", "ndcg_low", "ndcg_q10"]].isna().all(axis=None)


def test_decisions_come_with_every_rule_for_nan(table):
    """What is wrong with NaN as wrong and as no click, and the share of NaN rows, whichever of these was asked for."""
    rules = table.assign(decision_changed=0.5, decision_changed_no_click=0.4, nan_share=0.3)
    for asked in ("decision_changed", "decision_changed_no_click", "nan_share"):
        summary = summarise(rules, metrics=("auc", asked))
        for name, value in {"decision_changed": 0.5, "decision_changed_no_click": 0.4, "nan_share": 0.3}.items():
            assert summary[name].tolist() == pytest.approx([value] * 3)
            assert (summary[f"{name}_low"] < value).all() and (summary[f"{name}_high"] > value).all()
    tasks = rules.add_suffix("/buy").filter(like="/buy")[["decision_changed/buy", "nan_share/buy"]]
    of_task = summarise(table.join(tasks), metrics=("decision_changed/buy",))  # a table of before has two of three
    assert of_task["nan_share/buy"].tolist() == pytest.approx([0.3] * 3)
    assert "nan_share" not in summarise(rules, metrics=("auc",))


def test_the_realised_rate_of_a_campaign_is_what_its_error_model_asks_for(evaluator, tmp_path):
    """A sum of error models has no rate of its own."""
    errors = [BitFlip(1e-4), MultiBit(1e-3, 3), BitFlip(1e-4) + RandomWord(1e-4)]
    table = Campaign(evaluator, errors=errors, trials=8, store=tmp_path / "s").run(progress=False)
    *summary, both = summarise(table).to_dict("records")
    for row in summary:
        assert row["realised_low"] < min(row["realised"], row["rate"])
        assert row["realised_high"] > max(row["realised"], row["rate"])
    assert both["rate"] is None or np.isnan(both["rate"])
    assert np.isnan(both["realised"]) and np.isnan(both["ber"]) and (table["bits_flipped"] > 0).all()


def test_models_and_rows_are_not_averaged_together(table):
    for column in ("checkpoint", "data"):
        with pytest.raises(ValueError, match=f"BitFlip at 0.001 in all of m on synthetic-x .* 2 .*'{column}'"):
            summarise(table.assign(**{column: ["a", "b", "a", "a", "a"]}))


def one_condition(**columns):
    """Trials of one condition: all lose AUC unless said otherwise."""
    n = len(next(iter(columns.values())))
    return table_of(columns.pop("auc", GOLDEN - 0.1 - 0.001 * np.arange(n)), **columns)


def interval(summary, name):
    return tuple(float(summary[f"{name}{end}"].iloc[0]) for end in ("", "_low", "_high"))


def test_bounds_of_own_metrics():
    values = np.random.default_rng(0).random(60)
    found = summarise(one_condition(mine=values), ["mine"], bounds={"mine": (0, 1)})
    assert interval(found, "mine") == pytest.approx(mean_interval(values, bounds=(0, 1)))
    assert not found["few_harmful"].any()
    alike = one_condition(mine=np.full(60, 0.25))
    low, high = interval(summarise(alike, ["mine"], bounds={"mine": (0, 1)}), "mine")[1:]
    assert 0.2 < low < 0.25 < high < 0.3 and np.isnan(interval(summarise(alike, ["mine"]), "mine")[1:]).all()


def test_few_far_values_of_a_bounded_metric_have_stringers_interval():
    values = np.where(np.arange(80) < 4, 0.1, 0.9) + 0.001 * np.arange(80)
    bounded = summarise(one_condition(mine=values), ["mine", "auc"], bounds={"mine": (0, 2)})
    assert bounded["few_harmful"].all()
    assert interval(bounded, "mine") == pytest.approx(stringer_interval(values, (0, 2)))
    auc = one_condition(mine=values)["auc"].to_numpy()
    assert interval(bounded, "auc") == pytest.approx(mean_interval(auc, bounds=(0, 1)))  # judged by its own loss
    unbounded = summarise(one_condition(mine=values), ["mine"])
    assert interval(unbounded, "mine") == pytest.approx(mean_interval(values)) and not unbounded["few_harmful"].any()
    harmless = one_condition(mine=values, auc=np.full(80, 0.8))  # few lose AUC
    assert np.isnan(interval(summarise(harmless, ["mine"]), "mine")[1:]).all()


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({"mind": (0, 1)}, "bounds 'mind'; did you mean 'mine'"),
        ({"auc": (0, 1)}, "bounds of 'auc'"),
        ({"auc_drop": (0, 1)}, "bounds of 'auc_drop'"),
        ({"mine": (1, 0)}, r"bounds of 'mine' .*\(1, 0\)"),
        ({"mine": (0.5, 1)}, "'mine': 3 of 3 values .* 0.5 and 1.0, as 0.2"),
    ],
)
def test_bounds_that_are_refused(bounds, says):
    with pytest.raises(ValueError, match=says):
        summarise(one_condition(mine=[0.2, 0.3, 0.4]), ["mine"], bounds=bounds)


@pytest.mark.parametrize("nothing", [None, np.nan], ids=str)
def test_rankings_have_no_auc(nothing):
    """The worse end counts no raised trial as an AUC of 0, and harm is judged by each metric."""
    spread, rare = np.random.default_rng(0).random(60), np.where(np.arange(60) < 4, 0.1, 0.9)
    outcome = ["raised"] * 2 + ["ok"] * 58
    spread[:2] = rare[:2] = np.nan
    empty = dict.fromkeys(("auc", "auc_golden", "logloss", "ne"), [nothing] * 60)
    table = one_condition(ndcg=spread, overlap=rare, median_change=rare, outcome=outcome, **empty).assign(
        auc_drop=[nothing] * 60
    )
    found = summarise(table, ["auc", "auc_drop", "logloss", "ne", "ndcg", "overlap", "median_change"])
    for name in ("auc", "auc_drop", "logloss", "ne", "trials_harmed"):
        assert np.isnan(interval(found, name)).all(), name
    assert found[["auc_golden", "auc_q10"]].isna().all(axis=None)
    assert found["share_raised"].iloc[0] == pytest.approx(2 / 60) and found["few_harmful"].all()
    assert interval(found, "ndcg") == pytest.approx(mean_interval(spread[2:], bounds=(0, 1)))
    assert interval(found, "overlap") == pytest.approx(stringer_interval(rare[2:], (0, 1)))
    assert np.isnan(interval(found, "median_change")[1:]).all()  # its greatest value is not known
    assert not summarise(table, ["auc", "ndcg"])["few_harmful"].any()


def test_repeated_trials_are_refused_and_trials_of_several_campaigns_are_not(evaluator, tmp_path):
    """`table + table` halved intervals without a word."""
    options = {"errors": [BitFlip(1e-4), BitFlip(1e-3)], "mitigations": [None, NaNGuard(0.5)], "trials": 3}
    options |= {"metrics": ["decision_changed", "list_changed", "score_changed"], "sampling": "plain"}
    table, other = (
        Campaign(evaluator, store=tmp_path / str(seed), seed=seed, **options).run(progress=False, workers=1)
        for seed in (0, 1)
    )
    said = "the table holds 3 trials twice.* first is trial 0, .*error_model BitFlip, rate 0.001, .*mitigation none"
    again = pd.concat([table, table[(table["rate"] == 1e-3) & (table["mitigation"] == "none")]])
    for statistic in (summarise, recovery, pvf):
        with pytest.raises(ValueError, match=said):
            statistic(again)
        assert statistic(pd.concat([table, other]))["n"].max() == 2 * statistic(table)["n"].max()
        models = table, table.assign(model="other", checkpoint="o"), table.assign(dataset="other", data="o")
        assert len(statistic(pd.concat(models))) in (len(statistic(table)), 3 * len(statistic(table)))


@pytest.mark.parametrize("sampling", ["plain", "stratified"])
def test_repeated_trials_of_a_fleet_are_refused(evaluator, tmp_path, sampling):
    errors, options = [dr.MemoryFault("bit")], {"metrics": ["decision_changed"], "sampling": sampling, "trials": 8}
    damage = Campaign(evaluator, errors=errors, store=tmp_path / "s", **options).run(progress=False, workers=1)
    about = {"hosts": 10, "memory": "8GiB", "recommendations": 100, "rates": dr.rates.EVENTS}
    assert len(dr.fleet(damage, evaluator.model, **about).table()) == 1
    with pytest.raises(ValueError, match=f"the table holds {len(damage)} trials twice"):
        dr.fleet(pd.concat([damage, damage]), evaluator.model, **about)


def of_model(value, half, **others):
    row = {"model": "fm", "dataset": "d", "rate": 1e-4, "target": "all", "mitigation": "none", "n": 50}
    row |= {"auc_drop": value, "auc_drop_low": value - half, "auc_drop_high": value + half, "auc_golden": 0.8}
    return pd.DataFrame([row | others])


@pytest.mark.parametrize(("other", "error"), [(0.3, np.sqrt(0.005)), (0.21, 0.05 / 1.959964)])
def test_the_interval_is_students_over_models(other, error):
    """By hand: the spread of the models, or of a model's own trials where this is more; t of one degree is 12.7062."""
    row = across_models([of_model(0.2, 0.05), of_model(other, 0.05)], ["auc_drop"]).iloc[0]
    half = 12.7062 * error / np.sqrt(2)
    mean = (0.2 + other) / 2
    assert row[["auc_drop_low", "auc_drop_high"]].tolist() == pytest.approx([mean - half, mean + half], rel=1e-5)


def test_one_model_is_as_it_was():
    found = across_models([of_model(0.2, 0.05), of_model(0.3, 0.05, model="dlrm")], ["auc_drop"])
    assert found["train_seeds"].tolist() == [1, 1]
    ends = found[["auc_drop", "auc_drop_low", "auc_drop_high"]].to_numpy()
    assert ends == pytest.approx(np.array([[0.2, 0.15, 0.25], [0.3, 0.25, 0.35]]))


def test_numbers_of_several_models_are_means():
    row = across_models([of_model(0.2, 0.05), of_model(0.3, 0.05, auc_golden=0.7)], ["auc_drop"]).iloc[0]
    assert (row["n"], row["auc_drop"], row["auc_golden"]) == pytest.approx((100, 0.25, 0.75))


def test_two_rows_of_one_condition_are_refused():
    twice = pd.concat([of_model(0.2, 0.05)] * 2)
    with pytest.raises(ValueError, match="two rows of .*'mitigation': 'none'.*names of their own"):
        across_models([twice])


def test_the_method_is_named():
    one, other = (of_model(value, 0.05, interval="Stringer's bound") for value in (0.2, 0.3))
    name = across_models([one, other], ["auc_drop"])["interval"].iloc[0]
    assert name == "Student's t over models; of each model: Stringer's bound"
    plain = [frame.assign(interval="Student's t") for frame in (one, other)]
    assert across_models(plain, ["auc_drop"])["interval"].tolist() == ["Student's t over models"]
    assert across_models([one], ["auc_drop"])["interval"].tolist() == ["Stringer's bound"]
