"""Checksums: single errors, counts by bit, false alarms, errors beyond rounding, alarms of passes, and the figures of them."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, resolve
from drsrobust.models import padded_batches
from drsrobust.statistics import summarise
from drsrobust_extras.protection.abft.embedding import ABFTEmbeddingBag
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_study import figures
from drsrobust_study.abft import COLUMNS, beyond_rounding, by_bit, effects, false_alarms, single_errors
from drsrobust_study.abft_alarms import PASSES, STAYS, alarm_points, alarm_trials, reexecution, statement_values
from drsrobust_study.rounding import thresholds_over_rounding


@pytest.fixture
def found():
    rows = [
        ("ABFT Linear (provable)", "dlrm", "over_mlp", 30, 2000, 2000, 2000, 2000, 0, 100_000),
        ("ABFT Linear (provable)", "dlrm", "over_mlp", 0, 10, 0, 0, 0, 0, 100_000),
        ("ABFT EmbeddingBag", "dlrm", "embedding", 31, 3000, 2000, 1998, 1998, 1, 100_000),
        ("ABFT EmbeddingBag", "dlrm", "embedding", 1, 100, 50, 0, 0, 1, 100_000),
        ("ABFT EmbeddingBag", "other", "", -1, 0, 0, 0, 0, 0, 5000),
    ]
    columns = ["mitigation", "model", "component", "bit", "injections", "significant", "significant_detected"]
    return pd.DataFrame(rows, columns=[*columns, "detected", "false_alarms", "clean_rows"])


@pytest.fixture
def runs():
    rows = []
    for mitigation, model, operator in (("ABFT Linear (provable)", 5.0, 10.0), ("ABFT EmbeddingBag", 2.0, 40.0)):
        for scope, percent in (("model", model), ("operator", operator)):
            for off in (-1.0, 0.0, 4.0):
                rows.append((mitigation, "dlrm", scope, 2048, 1.0, 1 + percent / 100, percent + off))
    columns = ["mitigation", "model", "scope", "batch", "plain_ms", "protected_ms", "overhead_percent"]
    return pd.DataFrame(rows, columns=columns)


def test_detection(found):
    found = pd.concat([found, found.head(1).assign(component="dense_mlp", significant_detected=1999)])
    data = figures.abft_detection_data(found)
    data = data[data["bit"] >= 0]
    assert len(data) == 4 and data["mitigation"].iloc[0] == "ABFT Linear (provable)"
    top = data[data["bit"] == 30].iloc[0]  # over both components
    assert top[["injections", "significant", "significant_detected"]].tolist() == [4000, 4000, 3999]
    ax = figures.abft_detection(data, mitigations=["ABFT EmbeddingBag", "ABFT Linear (provable)"], published=0.95)
    heights = {bars.get_label(): [bar.get_height() for bar in bars.patches] for bars in ax.containers}
    assert heights["ABFT EmbeddingBag: detected"] == pytest.approx([0.0, 1998 / 3000])
    assert heights["ABFT EmbeddingBag: missed"] == pytest.approx([0.5, 2 / 3000])
    assert heights["ABFT Linear (provable): missed"] == pytest.approx([0.0, 1 / 4000])
    assert ax.get_title(loc="left") == "dlrm" and ax.get_xlim()[0] > ax.get_xlim()[1]


def test_overhead(runs):
    data = figures.abft_overhead_data(runs)
    assert data["overhead_percent"].tolist() == [5, 10, 2, 40]
    assert data["lowest"].tolist() == [4, 9, 1, 39] and data["highest"].tolist() == [9, 14, 6, 44]
    for scope, values in (("model", [5, 2]), ("operator", [10, 40])):
        ax = figures.abft_overhead(data, scope=scope, published={"ABFT Linear": 20})
        assert [x for line in ax.lines if line.get_marker() == "o" for x in line.get_xdata()] == values


@pytest.fixture(scope="module")
def sweep(trained, data):
    repair = ABFTLinear.fit(trained, action="restore")
    errors = [BitFlip(1e-5), BitFlip(1e-3)]
    return Campaign(Evaluator(trained, data.test), errors=errors, mitigations=[repair], trials=4).run(progress=False)


@pytest.mark.long
def test_effects(found, runs, sweep):
    table = effects(found, runs, sweep, batch=2048).set_index(["part", "reading"])
    layers, bags = table.loc[("layers", "noticed")], table.loc[("tables", "noticed")]
    assert layers["value"] == 1 and layers["low"] > 0.95
    assert (bags["n"], bags["value"]) == (2000, 0.999)  # sign and exponent alone
    none, one = table.loc[("layers", "alarms")], table.loc[("tables", "alarms")]
    assert (none["value"], none["low"], none["n"]) == (0, 0, 49)
    assert none["high"] == pytest.approx(1 - 0.025 ** (1 / 49)) and one["value"] == 1 / 49
    assert table.loc[("tables", "time"), ["value", "low", "high", "n"]].tolist() == [40.0, 39.0, 44.0, 3]
    worst = summarise(sweep).set_index("ber").loc[1e-3]
    lost = table.loc[("repair", "loss")]
    assert (lost["value"], lost["high"], lost["n"]) == (worst["auc_drop"], worst["auc_drop_high"], 4)
    assert lost["value"] > 0 and lost["mitigation"] == sweep["mitigation"].iloc[0]


@pytest.mark.long
def test_effects_of_what_was_not_measured(found, runs, sweep):
    few = found.assign(significant=0, significant_detected=0)
    table = effects(few, runs[runs["scope"] == "model"], sweep, batch=2048).set_index("reading")
    assert table.loc[["time", "noticed"], "value"].isna().all() and set(table.loc[["time", "noticed"], "n"]) == {0}


def test_thresholds_over_rounding(trained, data):
    """The ratio is that of the provable threshold and the largest difference, row by row."""
    found = thresholds_over_rounding(trained, data.test).iloc[0]
    check = ABFTLinear.fit(trained, data.test, mode="calibrated", margin=2.0).checks
    shares = [2.0 / one.rule.share for one in check.values()]
    assert (found["low"], found["high"], found["n"]) == pytest.approx((min(shares), max(shares), len(shares)))
    assert found["low"] > 1  # else there would be false alarms


BERS = [1e-8, 1e-6, 1e-4]


@pytest.fixture(scope="module")
def trials(trained, data):
    one_pass = Evaluator(trained, data.test.head(128))
    return alarm_trials(one_pass, BERS, trials=4, train_seed=3, seed=1, progress=False)


@pytest.fixture(scope="module")
def points(trials):
    return alarm_points(trials)


def test_the_exact_curve_counts_bits(trained, points):
    """Against the product over all bits in logarithms, and parts that add up to the whole."""
    stored = points[points["error"] == STAYS].set_index(["part", "ber"])
    bits = 32 * sum(parameter.numel() for parameter in trained.parameters())
    assert (
        stored.loc[("all", 1e-6), "bits"] == bits == stored.loc["mlp", "bits"][1e-6] + stored.loc["table", "bits"][1e-6]
    )
    assert stored.loc[("all", 1e-6), "exact"] == pytest.approx(1 - (1 - 1e-6) ** bits, rel=1e-9)
    assert stored["exact"].between(0, 1).all() and (stored.loc["all", "exact"] >= stored.loc["mlp", "exact"]).all()


def test_alarms_are_those_of_a_pass_by_hand(trained, data, trials):
    """The check on a pass of the model with the same map, without a campaign."""
    rows = trials[(trials["part"] == "mlp") & (trials["error"] == STAYS)].set_index(["ber", "trial"])["detected"]
    assert set(rows[1e-4]) == {True} and not rows[1e-8].any()
    check, (batch,) = ABFTLinear.fit(trained), list(data.test.head(128).batches(128))
    space, alarms = resolve(trained, "mlp"), []
    for seed in range(40):
        with BitFlip(1e-4).sample(space, seed=seed).applied(trained), check.attach(trained) as seen, torch.no_grad():
            trained(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
        alarms.append(seen.detected)
    assert np.mean(alarms) > 0.9


def test_reexecution_ends_alarms_of_errors_that_pass_and_no_others(points):
    table = reexecution(points).reset_index().set_index("error")
    assert table.loc[STAYS, ["passes", "alarms", "ended"]].tolist() == [4, 4, 0]
    passing = table.loc[PASSES]
    assert passing["alarms"] == passing["ended"] > passing["passes"] / 2
    counts = points[(points["error"] == PASSES)]["trials"].sum()
    assert passing["passes"] == counts > 4  # the tables and each linear layer


def test_values(points):
    values = statement_values(points)
    assert values["what"].tolist() == ["alarms at 1e-08", "alarms at 1e-06", "alarms at 0.0001"]
    last = values.iloc[-1]
    assert (last["statement"], last["unit"], last["value"]) == ("S18", 3, 1.0)
    assert last["error"] == pytest.approx((5 / 6 * (1 / 6) / 6) ** 0.5)  # 4 of 4 alarms: 5 of 6


def test_the_figure_draws_measured_and_exact(points):
    ax = figures.abft_alarms(points[points["error"] == STAYS], dataset=points["dataset"].iloc[0], part="mlp")
    line, markers, limit = ax.lines
    mlp = points[(points["part"] == "mlp")].set_index("ber")
    assert markers.get_ydata().tolist() == mlp["alarms"].tolist() and markers.get_xdata().tolist() == BERS
    assert line.get_ydata()[[0, -1]] == pytest.approx(mlp["exact"][[1e-8, 1e-4]].to_numpy())
    assert set(limit.get_xdata()) == {1e-4}
    assert not figures.abft_alarms(pd.DataFrame(columns=points.columns), dataset="d", part="all").lines[:-1]


@pytest.fixture(scope="module")
def both(data, trained):
    return [ABFTLinear.fit(trained), ABFTLinear.fit(trained, data.train, mode="calibrated")]


@pytest.mark.long
def test_linear_layers(data, trained, both):
    found = single_errors(trained, data.test, both, 320, seed=1, progress=False)
    assert len(found) == 640 and found["mitigation"].nunique() == 2
    for (_, group), threshold in zip(found.groupby("mitigation", sort=False), (1e-2, 1e-3), strict=True):
        significant = group[group["moved"] > threshold]
        assert len(significant) > 25 and significant["detected"].all()
        assert group["tensor"].nunique() == 10 and set(group["bit"]) == set(range(32))
        assert (group["moved_left"] == group["moved"]).all()  # nothing was done about them
    assert (found["rows_reached"][found["moved"] > 0] == len(data.test)).all()


@pytest.mark.long
def test_the_table(data, trained, both):
    errors = single_errors(trained, data.test, both[:1], 320, targets=["over_mlp"], progress=False)
    found = by_bit(errors, errors["moved"] > 1e-2, false_alarms(trained, both[:1], padded_batches(data.test)))
    assert tuple(found.columns) == COLUMNS and set(found["bit"]) == set(range(32))
    assert found["injections"].sum() == 320
    assert set(found["component"]) == {"over_mlp"}
    assert (found["significant_detected"] <= found[["significant", "detected"]].min(axis=1)).all()
    assert (found["significant_detected"] == found["significant"]).all()
    assert (found["false_alarms"] == 0).all() and (found["clean_rows"] >= len(data.test)).all()
    again = single_errors(trained, data.test, both[:1], 32, targets=["over_mlp"], progress=False)
    pd.testing.assert_frame_equal(errors[:32], again)


@pytest.mark.long
def test_rows_of_tables(data, trained):
    found = single_errors(
        trained, data.test, [ABFTEmbeddingBag.fit(trained)], 400, targets=["embedding"], progress=False
    )
    read = found[(found["rows_reached"] > 0) & (found["bit"] >= 23) & (found["change"] > 0)]
    assert len(read) > 30 and read["detected"].all()
    assert not found[found["rows_reached"] == 0]["detected"].any()


@pytest.mark.long
def test_alarms_are_counted(data, trained, both):
    batches = padded_batches(data.test)
    rows = sum(len(batch.labels) for batch in batches)
    assert false_alarms(trained, both, batches) == {one.name: (0, rows) for one in both}
    wrong = copy.deepcopy(trained)
    wrong.over_arch.model[1].bias.data += 1.0
    assert false_alarms(wrong, both[:1], iter(batches)) == {both[0].name: (len(batches), rows)}


@pytest.mark.long
def test_beyond_rounding_by_hand(data, trained):
    """What float64 pooling of the rows says: an error of half the bound is none, one of twice the bound is."""
    check = ABFTEmbeddingBag.fit(trained)
    errors = single_errors(trained, data.test, [check], 64, targets=["embedding"], progress=False)
    tables = {name: p.detach().double() for name, p in trained.named_parameters() if "embedding_bags" in name}
    for name in errors["tensor"].unique():
        table, ids = tables[name], data.test.sparse[name.split(".")[-2].removeprefix("t_")]
        lengths = np.ones(len(ids.values), int) if ids.lengths is None else ids.lengths
        bag = np.repeat(np.arange(len(lengths)), lengths)
        pooled = np.bincount(bag, table.abs().sum(1).numpy()[ids.values], len(lengths))
        terms = table.shape[1] + 3 * (lengths + 2) + 3
        row = int(ids.values[0])
        least = (terms * 2.0**-24 * pooled)[bag][ids.values == row].min()
        pair = errors[errors["tensor"] == name].iloc[[0, 0]]
        pair = pair.assign(word=row * table.shape[1], change=[least / 2, 2 * least])
        assert beyond_rounding(trained, data.test, pair).tolist() == [False, True]
        unread = np.setdiff1d(np.arange(len(table)), ids.values)
        if len(unread):
            pair = pair.assign(word=int(unread[0]) * table.shape[1], change=1e30)
            assert not beyond_rounding(trained, data.test, pair).any()
