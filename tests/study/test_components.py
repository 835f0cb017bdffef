"""One-error campaigns split by layer and class of bits, against what plain draws over everything give."""

import numpy as np
import pandas as pd
import pytest

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import FixedCount, resolve
from drsrobust.statistics.pvf import pvf
from drsrobust_study import components

pytestmark = pytest.mark.long

METRICS = ["decision_changed", "list_changed", "score_changed"]


def test_parts_are_a_partition(trained):
    partition = components.layer_partition(trained)
    assert partition["eligible"].sum() == resolve(trained).bits and abs(partition["weight"].sum() - 1) < 1e-12
    names = set(components.layer_names(trained).values())
    assert {"embedding user", "embedding movie", "over_mlp 1", "over_mlp 3", "dense_mlp 1"} <= names
    assert partition.groupby("layer")["bit_class"].nunique().eq(5).all()
    for row in partition.sample(6, random_state=0).itertuples():
        assert FixedCount(1, bits=row.bits).eligible(resolve(trained, row.target)).bits == row.eligible
    with pytest.raises(ValueError, match="takes some rows of a tensor; layer_partition needs whole tensors"):
        from drsrobust.injection import Rows

        components.layer_partition(trained, Rows("user", [1, 2]))


@pytest.fixture(scope="module")
def evaluator(trained, data):
    return Evaluator(trained, data.test)


@pytest.fixture(scope="module")
def campaigns(evaluator, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("campaigns")
    partition = components.layer_partition(evaluator.model)
    conditions = components.single_errors(partition)
    stratified = Campaign(evaluator, conditions=conditions, trials=12, metrics=METRICS, store=tmp_path / "s")
    plain = Campaign(evaluator, errors=[FixedCount(1)], trials=600, metrics=METRICS, store=tmp_path / "p")
    return partition, stratified.run(progress=False), plain, plain.run(progress=False)


@pytest.mark.long
def test_weighted_means_agree_with_plain_draws(evaluator, campaigns):
    """The stratified estimate of what one error anywhere does lies in the interval of 600 errors drawn anywhere, and the
    other way round; and it is a weighted mean of its parts."""
    partition, table, _, drawn = campaigns
    anywhere = components.stratified_pvf(table, partition, evaluator.rows, by=[]).set_index("definition")
    plain = pvf(drawn, by=["model"]).set_index("definition")
    for definition in METRICS:
        one, other = anywhere.loc[definition], plain.loc[definition]
        assert one["pvf_low"] <= other["pvf_high"] and other["pvf_low"] <= one["pvf_high"], definition
        assert one["pvf_low"] <= one["pvf"] <= one["pvf_high"]
    loss = components.stratified_loss(table, partition, evaluator.rows, by=[]).iloc[0]
    means = table.groupby(["error_model", "target"], sort=False)["auc_drop"].mean()
    keys = [(str(error), str(target)) for error, target in components.single_errors(partition)]
    assert loss["auc_drop"] == pytest.approx(float(np.sum(partition["weight"] * [means[key] for key in keys])))
    parts = components.stratified_loss(table, partition, evaluator.rows)
    assert (parts["share"] @ parts["auc_drop"]) == pytest.approx(loss["auc_drop"])
    assert parts["bits"].sum() == resolve(evaluator.model).bits


def test_what_no_trial_reached_or_what_raised_is_not_certain(evaluator, campaigns):
    partition, table, _, _ = campaigns
    quiet = {
        "decision_changed": 0.0,
        "list_changed": 0.0,
        "score_changed": 0.0,
        "auc_drop": 0.0,
        "rows_reached": 0,
        "outcome": "ok",
    }
    found = components.stratified_pvf(table.assign(**quiet), partition, evaluator.rows, by=["layer"])
    assert (found["incorrect"] == 0).all() and (found["incorrect_high"] > 0).all()
    losses = components.stratified_loss(table.assign(**quiet), partition, evaluator.rows, by=["layer"])
    assert (losses["auc_drop_low"] < 0).all() and (losses["auc_drop_high"] > 0).all()
    first = table["target"] == table["target"].iloc[0]
    drops = table["auc_drop"].mask(first & (table["trial"] == 0))
    outcomes = table["outcome"].mask(first & (table["trial"] == 0), "raised")
    raised = table.assign(auc_drop=drops, outcome=outcomes)
    before, after = (
        components.stratified_loss(one, partition, evaluator.rows, by=[]).iloc[0] for one in (table, raised)
    )
    assert after["auc_drop_high"] > before["auc_drop_high"] and after["n"] < before["n"]


def test_errors_are_placed(evaluator, campaigns):
    _, _, plain, drawn = campaigns
    found = components.placed(plain)
    assert len(found) == len(drawn) and found["component"].notna().all()
    names = components.layer_names(evaluator.model)
    assert (found["layer"] == found["tensor"].map(names)).all()
    assert (found["bit_class"] == "exponent_top").sum() == (found["bit"] == 30).sum() > 10
    assert set(found.loc[found["bit"] < 23, "bit_class"]) == {"mantissa"}
    shares = found["component"].value_counts(normalize=True)
    assert abs(shares["embedding"] - resolve(evaluator.model, "embedding").bits / resolve(evaluator.model).bits) < 0.03


def test_several_errors_have_no_place(evaluator, tmp_path):
    runner = Campaign(evaluator, errors=[FixedCount(2)], trials=2, store=tmp_path / "s")
    runner.run(progress=False)
    with pytest.raises(ValueError, match=r"must flip one bit, got 2 in trial 0 of FixedCount\(k=2\)"):
        components.placed(runner)


def test_bad_tables(evaluator, campaigns):
    partition, table, *_ = campaigns
    with pytest.raises(ValueError, match=r"table has no trial of FixedCount.* run single_errors\(partition\)"):
        components.stratified_pvf(table[table["target"] != table["target"].iloc[0]], partition, evaluator.rows)
    two = pd.concat([table, table.assign(model="other")])
    with pytest.raises(ValueError, match="must hold trials of one model, got 2"):
        components.stratified_loss(two, partition, evaluator.rows)
