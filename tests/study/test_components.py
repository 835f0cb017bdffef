"""One-error campaigns split by layer and class of bits, against what plain draws over everything give."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import FixedCount, resolve
from drsrobust.statistics import pvf
from drsrobust_extras.pages import plots
from drsrobust_study import components, figures

METRICS = ["decision_changed", "list_changed", "score_changed"]


def test_parts_are_a_partition(trained):
    partition = components.layer_partition(trained)
    assert partition["eligible"].sum() == resolve(trained).bits and abs(partition["weight"].sum() - 1) < 1e-12
    names = set(components.layer_names(trained).values())
    assert {"embedding user", "embedding movie", "over_mlp 1", "over_mlp 3", "dense_mlp 1"} <= names
    assert partition.groupby("layer")["bit_class"].nunique().eq(5).all()
    for row in partition.sample(6, random_state=0).itertuples():
        assert FixedCount(1, bits=row.bits).eligible(resolve(trained, row.target)).bits == row.eligible


@pytest.fixture(scope="module")
def evaluator(trained, data):
    return Evaluator(trained, data.test)


@pytest.fixture(scope="module")
def campaigns(evaluator, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("campaigns")
    partition = components.layer_partition(evaluator.model)
    conditions = components.single_errors(partition)
    options = {"metrics": METRICS, "sampling": "plain"}
    stratified = Campaign(evaluator, conditions=conditions, trials=12, store=tmp_path / "s", **options)
    plain = Campaign(evaluator, errors=[FixedCount(1)], trials=600, store=tmp_path / "p", **options)
    return partition, stratified.run(progress=False), plain.run(progress=False)


@pytest.mark.long
def test_weighted_means_agree_with_plain_draws(evaluator, campaigns):
    """The stratified estimate of what one error anywhere does lies in the interval of 600 errors drawn anywhere, and the
    other way round; and it is a weighted mean of its parts."""
    partition, table, drawn = campaigns
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
    partition, table, _ = campaigns
    quiet = {"decision_changed": 0.0, "list_changed": 0.0, "score_changed": 0.0, "auc_drop": 0.0, "rows_reached": 0}
    quiet |= {"outcome": "ok"}
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


def test_each_training_and_all(evaluator, campaigns):
    """Three trainings with the same trials: each gives the estimate of one, and the mean is that too; the shares of the whole
    loss are those of the weighted means."""
    partition, table, _ = campaigns
    trainings = pd.concat([table.assign(train_seed=seed) for seed in (0, 1, 2)])
    one = components.stratified_loss(table, partition, evaluator.rows)
    each = components.by_training(components.stratified_loss, trainings, partition, evaluator.rows)
    assert [each[each["train_seed"] == seed]["auc_drop"].tolist() for seed in (0, 2)] == [one["auc_drop"].tolist()] * 2
    mean = components.over_trainings(each)
    assert mean["auc_drop"].tolist() == pytest.approx(one["auc_drop"].tolist()) and set(mean["train_seeds"]) == {3}
    parts = components.part_losses(trainings, partition, evaluator.rows)
    assert set(parts["part"]) == {"mlp", "table"}
    assert parts.groupby("train_seed")["loss_share"].sum().tolist() == pytest.approx([1.0] * 3)
    sums = (one["share"] * one["auc_drop"]).groupby(one["component"] == "embedding").sum()
    share = parts[parts["part"] == "table"]["loss_share"].iloc[0]
    assert share == pytest.approx(sums[True] / sums.sum())


def test_the_error_of_a_weighted_mean(evaluator, campaigns):
    """By hand: squares of weights times the variance of each part's mean."""
    partition, table, _ = campaigns
    groups = table.groupby(["error_model", "target"])["auc_drop"]
    keys = [(str(error), str(target)) for error, target in components.single_errors(partition)]
    squares = partition["weight"] ** 2 * [groups.get_group(key).var() / 12 for key in keys]
    (found,) = components.stratified_loss(table, partition, evaluator.rows, by=[])["auc_drop_error"]
    assert found == pytest.approx(squares.sum() ** 0.5) and found > 0


def losses(ratios, model="dlrm", dataset="d/full"):
    """Losses per flip of a table, 1e-4 times (1 + seed), and of an MLP, which is these ratios higher; a bit in ten is the
    MLP's."""
    rows = []
    for seed, ratio in enumerate(ratios):
        for part, share, loss in (("mlp", 0.1, ratio), ("table", 0.9, 1)):
            row = {"model": model, "dataset": dataset, "train_seed": seed, "part": part, "component": part}
            row |= {"layer": part}
            loss = 1e-4 * (1 + seed) * loss
            rows.append(
                row | {"share": share, "bits": round(1000 * share), "auc_drop": loss, "auc_drop_error": 0.1 * loss}
            )
    table = pd.DataFrame(rows)
    total = table["share"] * table["auc_drop"]
    return table.assign(loss_share=total / total.groupby(table["train_seed"]).transform("sum"))


def test_what_s20_is_judged_by():
    given = pd.concat(
        [losses([100, 400]), losses([3, 5], dataset="d/ids"), losses([7], "afm"), losses([9], "dcn", "e/ids")]
    )
    found = components.statement_values(given)
    expected = [["d", "dlrm", 0], ["d", "dlrm", 1], ["e", "dcn", 0]]
    assert found[["dataset", "item", "unit"]].to_numpy().tolist() == expected
    assert found["value"].tolist() == pytest.approx([100, 400, 9]) and set(found["statement"]) == {"S20"}
    assert found["error"].tolist() == pytest.approx([np.hypot(0.1, 0.1) / np.log(10)] * 3)
    harmless = losses([2]).assign(auc_drop=[1e-3, 0.0])
    assert np.isnan(components.statement_values(harmless)["value"]).all()


def test_effects_over_trainings():
    ratios = [100.0, 200.0, 400.0]
    names = {"mlp": "over_mlp", "table": "embedding"}
    parts = losses(ratios)
    layers = parts.replace({"component": names})
    layers.loc[layers["component"] == "embedding", "layer"] = "embedding user"
    small = layers[layers["component"] == "embedding"].assign(layer="embedding age", bits=9, share=0.009)
    small["auc_drop"] *= 50  # half of the other table's total, at a hundredth of its bits
    layers = pd.concat([layers, small])
    shares = layers.assign(incorrect=layers["auc_drop"], definition="decision_changed").drop(columns="auc_drop")
    shares = shares[shares["layer"] != "embedding age"]
    found = components.effects(parts, shares, layers).set_index(["effect", "what"])
    ratio = found.loc[("MLPs over tables", "AUC lost per flip")]
    half = t.ppf(0.975, 2) * np.log10(2) / np.sqrt(3)
    assert np.log10(ratio[["value", "low", "high"]].astype(float)).tolist() == pytest.approx(
        [np.log10(200), np.log10(200) - half, np.log10(200) + half]
    )
    share = found.loc[("share of the whole loss", "mlp")]
    assert share["value"] == pytest.approx(np.mean([0.1 * r / (0.1 * r + 0.9) for r in ratios])) and share["n"] == 3
    assert found.loc[("top MLP over the next component", "decision_changed"), "value"] == pytest.approx(200)
    changed = found.loc[("outputs changed by a flip in the top MLP", "decision_changed"), "value"]
    assert changed == pytest.approx(1e-4 * (100 + 2 * 200 + 3 * 400) / 3)
    assert found.loc[("total loss of a table", "embedding age, 9 bits"), "value"] == pytest.approx(2 * 0.009 * 50e-4)
    assert found.loc[("total loss, largest table over smallest", "100 times the bits"), "value"] == pytest.approx(2)


def test_bad_tables(evaluator, campaigns):
    partition, table, _ = campaigns
    two = pd.concat([table, table.assign(model="other")])
    for wrong, says in ((table[table["target"] != table["target"].iloc[0]], "FixedCount"), (two, "one model, got 2")):
        with pytest.raises(ValueError, match=says):
            components.stratified_loss(wrong, partition, evaluator.rows)


def ends(value, name):
    return {name: value, f"{name}_low": value / 2, f"{name}_high": 2 * value}


def test_mlps_against_tables_by_training():
    rows = []
    for seed, part, loss in itertools.product((0, 1), ("mlp", "table", "cross"), (1e-4,)):
        loss *= {"mlp": 100, "table": 1, "cross": 0}[part] * (1 + seed)
        share = {"mlp": 0.7, "table": 0.2, "cross": 0.1}[part]
        row = {"model": "dcn", "dataset": "d", "part": part, "train_seed": seed, "bits": 9, "share": 0.5, "n": 60}
        rows.append(row | ends(loss, "auc_drop") | {"auc_drop_error": loss / 9, "loss_share": share})
    data = figures.part_losses_data(pd.DataFrame(rows))
    axes = plots.new_panels(2)
    figures.part_losses(data, axes[0])
    figures.part_losses(data, axes[1], quantity="loss_share")
    drawn = [line.get_xdata().tolist() for line in axes[0].lines]
    assert drawn == [pytest.approx(x) for x in ([1e-2, 2e-2], [1.5e-2], [1e-4, 2e-4], [1.5e-4])]
    assert [patch.get_width() for patch in axes[1].patches] == pytest.approx([0.7, 0.2, 0.1])
    assert [patch.get_x() for patch in axes[1].patches] == pytest.approx([0, 0.7, 0.9])


def test_layers_per_error_and_in_total():
    names = ["component", "layer", "bits", "share"]
    rows = [("embedding", "embedding user", 900, 0.9), ("over_mlp", "over_mlp 1", 100, 0.1)]
    frame = pd.DataFrame(rows, columns=names).assign(model="dlrm", dataset="d", n=300, **ends(1e-5, "auc_drop"))
    frame.loc[1, ["auc_drop", "auc_drop_low", "auc_drop_high"]] = [1e-3, 5e-4, 2e-3]
    frame.loc[2] = frame.loc[0]
    frame.loc[2, ["layer", "auc_drop", "auc_drop_low", "auc_drop_high"]] = ["embedding zip", 0.0, -1e-5, 8e-6]
    data = figures.layer_loss_data(frame)
    assert data["layer"].tolist() == ["over_mlp 1", "embedding user", "embedding zip"]
    assert data["total"].tolist() == pytest.approx([1e-4, 9e-6, 0.0])
    axes = plots.new_panels(2)
    figures.layer_loss(data, axes[0])
    figures.layer_loss(data, axes[1], quantity="total")
    arrows = [line for line in axes[0].lines if line.get_marker() == "<" and len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in arrows] == [[8e-6]]  # what is not above 0 shows its upper end


def test_rows_read_often_and_seldom():
    rows = []
    for table, kind, k in itertools.product(("movie", "user"), ("hot 0.01", "cold 0.99"), (1, 100)):
        target = f"Rows({table}, {kind} of 0123abcd4567)"
        rows.append({"model": "dlrm", "dataset": "d", "error_model": f"FixedCount(k={k})", "target": target})
        rows[-1] |= {"error_kind": "FixedCount", "error_count": k, "target_table": table}
        rows[-1] |= {"target_rows": kind.split()[0], "target_share": float(kind.split()[1])}
        rows[-1] |= {"ber": k / 1e5, "n": 20} | ends(1e-5 * k, "auc_drop")
    rows.append(rows[0] | {"target": "embedding", "target_table": None})
    data = figures.row_loss_data(pd.DataFrame(rows))
    assert data["rows"].unique().tolist() == ["1 % most read", "99 % least read"] and len(data) == 8
    assert data["errors"].tolist() == [1, 100] * 4
