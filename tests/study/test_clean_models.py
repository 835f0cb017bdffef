import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from drsrobust.metrics.auc import auc_interval
from drsrobust.models import build_model, padded_batches, score
from drsrobust.training import Settings, load_model
from drsrobust_extras.data.load import load_dataset
from drsrobust_study.clean_models import clean_table, largest_id_parameters, largest_ids, published_table
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
    assert (
        table["rows"].tolist() == [600, 600]
        and table["train_rows"].tolist() == [len(data.train)] * 2
        and table["epochs"].tolist() == [2, 2]
    )


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
