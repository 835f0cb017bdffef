"""Clean models, their trainings, and effects over them: means with their intervals, exact shares, numbers in words."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from drsrobust.metrics.auc import auc_interval
from drsrobust.models import build_model, padded_batches, score
from drsrobust.training import Settings, load_model
from drsrobust_extras.data.load import load_dataset
from drsrobust_study import effects
from drsrobust_study import trained as training
from drsrobust_study.clean_models import clean_table, largest_id_parameters, largest_ids, published_table
from drsrobust_study.figures.clean_models import clean_auc, clean_auc_data
from drsrobust_study.findings import exact_share, interval, number, ratio
from drsrobust_study.trained import Trained


def test_a_row_per_training(data, trained):
    other = load_model("fm", data, settings=Settings(epochs=2, batch_size=512, seed=3), progress=False)
    table = clean_table([Trained("dlrm", data, 0, trained), Trained("fm", data, 3, other)])
    assert table["model"].tolist() == ["dlrm", "fm"] and table["train_seed"].tolist() == [0, 3]
    scores = score(other, padded_batches(data.test), len(data.test))
    row = table.iloc[1]
    assert (row["auc"], row["auc_low"], row["auc_high"]) == auc_interval(data.test.labels, scores)
    assert row["auc"] == other.manifest["test_auc"] and row["logloss"] == other.manifest["test_log_loss"]
    assert row["parameters"] == sum(p.numel() for p in other.parameters())
    assert 0 < row["cpu_seconds"] < 3 * row["seconds"] and table["parameters_largest_id"].isna().all()
    assert table[["rows", "train_rows", "epochs"]].to_numpy().tolist() == [[600, len(data.train), 2]] * 2


def test_a_row_per_model_over_its_trainings():
    aucs = {"dlrm": [0.7], "fm": [0.80, 0.82, 0.81]}
    rows = [{"model": m, "train_seed": k, "auc": a} for m, values in aucs.items() for k, a in enumerate(values)]
    same = {"dataset": "movielens-1m/ids", "parameters": 5, "parameters_largest_id": 7}
    found = published_table(pd.DataFrame(rows).assign(**same, logloss=0.5, cpu_seconds=None))
    fm, dlrm = found.to_dict("records")  # the study's models are first
    half = stats.t.ppf(0.975, 2) * 0.01 / np.sqrt(3)
    assert [fm["auc"], fm["auc_low"], fm["auc_high"]] == pytest.approx([0.81, 0.81 - half, 0.81 + half])
    assert (fm["n"], fm["auc_deviation"], fm["auc_least"], fm["auc_greatest"]) == (3, pytest.approx(0.01), 0.80, 0.82)
    assert (fm["published_auc"], dlrm["published_auc"], dlrm["of_study"]) == ("0.813", "", False)
    assert np.isnan(dlrm["auc_low"]) and dlrm["n"] == 1


def test_parameters_up_to_the_largest_id_are_those_of_torchfm(real_data):
    """n ids: n embeddings of 16, n first-order weights, and biases; Wide & Deep and DeepFM have an MLP 32-16-16-1 with batch
    normalization, too."""
    data = load_dataset("movielens-1m/ids")
    ids = largest_ids(data.name)
    mlp = (32 * 16 + 16) + (16 * 16 + 16) + (16 + 1) + 2 * 2 * 16
    assert ids == 6040 + 3952 and (17 * ids + 1, 17 * ids + 1 + mlp) == (169_865, 170_746)
    models = {name: build_model(name, data.schema) for name in ("fm", "wide_deep", "deepfm")}
    counts = [largest_id_parameters(Trained(name, data, 0, model), ids) for name, model in models.items()]
    assert counts == [169_865, 170_746, 170_746]


def test_the_best_mean_is_on_top():
    row = {"dataset": "d", "logloss": 0.5, "ne": 0.8, "parameters": 7, "seconds": 3.2, "auc_low": 0.6, "auc_high": 0.9}
    aucs = {"worse": (0.70, 0.79), "better": (0.78, 0.80)}
    rows = [row | {"model": m, "train_seed": k, "auc": a} for m, values in aucs.items() for k, a in enumerate(values)]
    data = clean_auc_data(pd.DataFrame(rows))
    assert data["model"].tolist() == ["better"] * 2 + ["worse"] * 2 and "seconds" not in data
    ax = clean_auc(data, published=0.75)
    lines = [line.get_xydata().tolist() for line in ax.lines]
    assert lines[0] == [[0.78, 1], [0.80, 1]] and lines[1] == [[pytest.approx(0.79), 1]]
    assert lines[2] == [[0.70, 0], [0.79, 0]] and lines[4][0][0] == 0.75


@pytest.fixture
def requests(monkeypatch, data):
    """What is trained, without training it; `data` is each data set."""
    asked = []
    monkeypatch.setattr(training, "load_dataset", lambda name: data)
    monkeypatch.setattr(training, "load_models", lambda found: asked.extend(found) or [None] * len(found))
    return asked


def test_large_sets_are_capped(requests, data, monkeypatch):
    monkeypatch.setattr(training, "MOST_ROWS", {"afm": 300})
    found, whole = training.train(["afm", "fm"], [data.name], [3, 4]), len(data.train)
    assert [(one.name, one.seed) for one in found] == [("afm", 3), ("afm", 4), ("fm", 3), ("fm", 4)]
    rows = [one.data.train.rows for one in found]
    assert [len(own) for own in rows] == [300, 300, whole, whole] and (rows[0] == data.train.rows[:300]).all()
    assert [len(request["data"].train) for request in requests] == [300, 300, whole, whole]


def test_afn_of_the_studys_size_is_trained_once(requests, data):
    seeds = [0, 1, 2]
    assert [one.seed for one in training.train(["afn", "fm"], [data.name], seeds, afn_neurons=1500)] == [0, *seeds]
    assert [one.seed for one in training.train(["afn"], [data.name], seeds)] == seeds
    assert requests[0]["sizes"] == {"neurons": 1500} and requests[1]["sizes"] is None


VALUES = [0.41, 0.47, 0.34, 0.50, 0.48]


def test_the_mean_over_trainings_has_students_interval():
    row = effects.over_trainings("key", "words", VALUES)
    low, high = stats.t.interval(0.95, 4, np.mean(VALUES), stats.sem(VALUES))
    assert [row["value"], row["low"], row["high"]] == pytest.approx([np.mean(VALUES), low, high])
    assert (row["least"], row["most"], row["n"], row["interval"], row["why"]) == (0.34, 0.5, 5, "trainings", "")
    assert row["sd_trainings"] == pytest.approx(np.std(VALUES, ddof=1)) and np.isnan(row["sd_maps"])


def test_ratios_are_averaged_as_logarithms():
    ratios = pd.DataFrame({"value": [1.0, 10.0, 100.0], "low": [0.5, 5.0, 50.0], "high": [2.0, 20.0, 200.0]})
    row = effects.of_table("key", "words", ratios, log=True)
    assert row["value"] == pytest.approx(10) and row["low"] * row["high"] == pytest.approx(100)
    assert row["sd_trainings"] == pytest.approx(1.0) and row["sd_maps"] == pytest.approx(np.log10(2) / 1.959964)


def test_maps_that_scatter_more_than_trainings_widen_the_interval():
    wide = pd.DataFrame({"value": VALUES, "low": np.array(VALUES) - 0.5, "high": np.array(VALUES) + 0.5})
    row, error = effects.of_table("key", "words", wide), 0.5 / 1.959964
    assert row["sd_maps"] == pytest.approx(error)
    assert row["high"] - row["value"] == pytest.approx(stats.t.ppf(0.975, 4) * error / np.sqrt(5))


WHY = [([0.3], None, ("", "one training")), ([0.3], ([0.2], [0.5]), ("maps", ""))]
WHY += [([1.0] * 5, None, ("", "the same in all trainings")), ([np.nan] * 2, None, ("", "too few maps to say"))]
WHY += [([0.1, np.nan, 0.2, 0.3], None, ("trainings", "without 1 of 4 trainings: no finite value"))]


@pytest.mark.parametrize(("values", "ends", "expected"), WHY)
def test_why_there_is_no_interval_and_what_a_training_lacks_is_left_out(values, ends, expected):
    row, there = effects.spread(values, *(ends or ())), [value for value in values if value == value]
    assert (row["interval"], row["why"]) == expected
    assert row["n"] == len(there) and (not there or row["value"] == pytest.approx(np.mean(there)))
    if ends:
        assert [row["low"], row["high"]] == [0.2, 0.5]


def test_tables_of_trainings_as_one():
    tables = {}
    for seed in range(4):
        ends = {"x_low": [seed - 1.0, 2.0], "x_high": [seed + 1.0, 2.0]}
        tables[seed] = pd.DataFrame({"name": ["a", "b"], "n": 9, "x": [seed, 2.0]} | ends)
    found = effects.pooled(tables, ["name"], ["x"]).set_index("name")
    assert found["n"].tolist() == [36, 36] and found["trainings"].tolist() == [4, 4]
    assert found.loc["a", ["x", "x_least", "x_most"]].tolist() == [1.5, 0.0, 3.0]
    assert found.loc["a", "x_high"] == pytest.approx(stats.t.interval(0.95, 3, 1.5, stats.sem(range(4)))[1])
    assert found.loc["b", "x"] == 2 and np.isnan(found.loc["b", "x_low"])


def test_no_two_trainings_have_maps_of_one_seed():
    firsts = {effects.campaign_seed(seed, training) for seed in range(9) for training in range(5)}
    seeds = {first + trial for first in firsts for trial in (0, 999)}
    assert len(seeds) == len({effects.campaign_seed(0, training) for training in range(5)}) * 18


def test_a_ratio_has_the_extremes_of_both_intervals():
    found = ratio((30, 27, 33), (3, 2.7, 3))
    assert (found["value"], found["low"], found["high"]) == pytest.approx((10, 27 / 3, 33 / 2.7))
    for bottom in ((3, -1, 7), (0, 0, 0)):  # what may be 0 divides nothing
        assert math.isnan(ratio((30, 27, 33), bottom)["low"])


def test_numbers_are_short():
    values = [100.0, 1e-5, 0.123456, 12345.6, 3e37, 30, math.nan, math.inf]
    assert [number(one) for one in values] == ["100", "1e-5", "0.123", "12,346", "3e37", "30", "none", "infinite"]
    assert interval(0.3, 0.2, 0.4) == "0.3 [0.2, 0.4]" and interval(0.3, 0.3, 0.3) == interval(0.3, math.nan, math.nan)
    assert interval(math.nan, 0.1, 0.2) == ""


def test_an_exact_share_covers_every_share():
    """Whatever the share, at most 2.5 % of counts lie on either side of the interval."""
    n = 20
    found = [exact_share(count, n) for count in range(n + 1)]
    assert found[0]["low"] == 0 and found[0]["high"] == pytest.approx(1 - 0.025 ** (1 / n))
    assert found[n]["high"] == 1 and found[5]["value"] == 0.25
    for share in np.linspace(0.01, 0.99, 50):
        chances = stats.binom.pmf(range(n + 1), n, share)
        assert sum(chances[[one["low"] > share for one in found]]) <= 0.025
        assert sum(chances[[one["high"] < share for one in found]]) <= 0.025
    assert all(math.isnan(end) for end in exact_share(0, 0).values())
