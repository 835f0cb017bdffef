import numpy as np
import pytest

from drsrobust.metrics.auc import auc_interval
from drsrobust.models import padded_batches, score
from drsrobust.training import Settings, load_model
from drsrobust_study.clean_models import clean_table


def test_a_row_per_model_and_its_learning_curve(data, trained):
    settings = Settings(epochs=2, batch_size=512)
    other = load_model("fm", data, settings=settings, progress=False)
    table, curves = clean_table([(trained, data), (other, data)])
    assert table["model"].tolist() == ["dlrm", "fm"] and set(table["dataset"]) == {"synthetic-movielens/full"}
    scores = score(other, padded_batches(data.test), len(data.test))
    row = table.iloc[1]
    assert (row["auc"], row["auc_low"], row["auc_high"]) == auc_interval(data.test.labels, scores)
    assert row["auc"] == other.manifest["test_auc"] and row["logloss"] == other.manifest["test_log_loss"]
    assert row["parameters"] == sum(p.numel() for p in other.parameters()) and row["seconds"] > 0
    assert table["rows"].tolist() == [600, 600] and table["epochs"].tolist() == [2, 2]
    best, least = table["auc"].idxmax(), table["auc"].idxmin()
    assert np.isnan(table.loc[best, "below_best"])
    assert table.loc[least, "below_best"] == pytest.approx(table["auc"].max() - table["auc"].min())
    assert table.loc[least, "below_best_low"] < table.loc[least, "below_best"] < table.loc[least, "below_best_high"]
    assert curves.groupby("model")["epoch"].apply(list).tolist() == [[1, 2], [1, 2]]
    assert curves["valid_auc"].iloc[-1] == other.manifest["curve"][-1]["valid_auc"]
