import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from drsrobust.metrics.auc import auc_interval
from drsrobust.models import build_model, padded_batches, score
from drsrobust.training import Settings, load_model
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.pages.plots.style import new_panels
from drsrobust_study import trained as training
from drsrobust_study.clean_models import clean_table, largest_id_parameters, largest_ids, published_table
from drsrobust_study.figures.clean_models import clean_auc, clean_auc_data
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
    half = t.ppf(0.975, 2) * 0.01 / np.sqrt(3)
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


@pytest.fixture
def table():
    row = {"dataset": "d", "logloss": 0.5, "ne": 0.8, "parameters": 7, "seconds": 3.2, "auc_low": 0.6, "auc_high": 0.9}
    aucs = {"worse": (0.70, 0.79), "better": (0.78, 0.80)}
    return pd.DataFrame(
        [row | {"model": m, "train_seed": k, "auc": a} for m, values in aucs.items() for k, a in enumerate(values)]
    )


def test_the_best_mean_is_on_top(table):
    data = clean_auc_data(table)
    assert data["model"].tolist() == ["better"] * 2 + ["worse"] * 2 and "seconds" not in data
    ax = clean_auc(data, published=0.75)
    lines = [line.get_xydata().tolist() for line in ax.lines]
    assert lines[0] == [[0.78, 1], [0.80, 1]] and lines[1] == [[pytest.approx(0.79), 1]]
    assert lines[2] == [[0.70, 0], [0.79, 0]] and lines[4][0][0] == 0.75


def test_data_sets_are_drawn_on_one_scale(table):
    both = pd.concat([table, table.assign(dataset="narrow", auc=table["auc"] / 100)])
    axes = new_panels(2, sharey=False)
    for ax, name in zip(axes, ("d", "narrow"), strict=True):
        clean_auc(both, ax, dataset=name)
    spans = [high - low for low, high in (ax.get_xlim() for ax in axes)]
    assert spans[0] == pytest.approx(spans[1]) and spans[0] >= 0.1
    clean_auc(table.iloc[:0])


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
