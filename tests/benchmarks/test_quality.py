"""The quality benchmark in a tiny form, on generated rows of the same form."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.__main__ import main
from benchmarks.quality import (
    COLUMNS,
    DIFFERENCES,
    LINEAR,
    against_linear,
    against_torchfm,
    describe,
    fitted,
    hashed,
    installed,
    linear_verdicts,
    quality,
    read_raw,
    torchfm_verdicts,
)
from drsrobust.data import load_dataset
from drsrobust.data.click_logs import MISSING, buckets
from drsrobust.metrics import auc
from drsrobust.training import Settings

QUICK = Settings(epochs=1, batch_size=256)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """3,000 lines of Criteo's form; the label hangs on I1 and C1."""
    rng, lines = np.random.default_rng(0), []
    for _ in range(3000):
        counts, ids = rng.integers(-1, 50, 13).tolist(), rng.integers(0, 20, 26).tolist()
        click = rng.random() < 1 / (1 + np.exp(4.0 - 0.1 * counts[0] - 0.5 * (ids[0] % 7)))
        counts = ["" if rng.random() < 0.1 else str(count) for count in counts]
        lines.append("\t".join([str(int(click)), *counts, *("" if i == 3 else f"{i:08x}" for i in ids)]))
    path = tmp_path_factory.mktemp("criteo") / "criteo_sample.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_raw_columns_are_those_of_the_file(file):
    raw = read_raw(file)
    first = file.read_text().splitlines()[0].split("\t")
    assert raw["label"][0] == int(first[0]) and len(raw["label"]) == 3000 and len(raw) == 40
    for name, text in zip(list(raw)[1:14], first[1:14], strict=True):
        assert raw[name][0] == buckets(np.array([int(text) if text else MISSING]))[0]
    assert [raw[f"C{i + 1}"][0] for i in range(26)] == [int(text, 16) if text else -1 for text in first[14:]]


def test_hashed_features(file):
    raw = read_raw(file)
    features = hashed(raw, 2**16)
    assert features.shape == (3000, 2**16) and features.sum() == 3000 * 39
    assert (hashed(raw, 2**16) != features).nnz == 0
    # Values and columns correspond one to one, but for the few that collide.
    pairs = sum(len(np.unique(raw[f"I{i}"])) for i in range(1, 14))
    pairs += sum(len(np.unique(raw[f"C{i}"])) for i in range(1, 27))
    assert 0.98 * pairs < len(np.unique(features.indices)) <= pairs
    # The same category in two fields is two features.
    twice = {name: np.zeros(1, np.int64) for name in raw}
    assert hashed(twice, 2**16).nnz > 35


def test_the_penalty_is_chosen_on_validation_rows(file):
    raw = read_raw(file)
    features, labels, rows = hashed(raw, 2**12), raw["label"], np.arange(3000)
    model, best, found = fitted(features, labels, rows[:2000], rows[2000:2500], [1e-3, 0.05])
    assert set(found) == {1e-3, 0.05} and found[best] == max(found.values())
    assert best == model.C and auc(labels[2500:], model.decision_function(features[2500:])) > 0.6


def test_against_logistic_regression(file):
    def load(name, split):
        return load_dataset(name, path=file, seed=split, min_count=1)

    rows = against_linear(models=["fm"], splits=[0, 1], load=load, path=file, settings=QUICK, progress=False)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    assert table["model"].tolist() == [LINEAR, "fm"] * 2 and table["split"].tolist() == [0, 0, 1, 1]
    linear = table[table["model"] == LINEAR]
    assert (linear["auc"] > 0.6).all() and table["auc"].between(0.3, 0.9).all() and (table["logloss"] < 1).all()
    found = linear_verdicts(table)
    leads = table.loc[[1, 3], "auc"].to_numpy() - table.loc[[0, 2], "auc"].to_numpy()
    assert found.loc["fm", "difference"] == pytest.approx(leads.mean())
    assert found.loc["fm", "error"] == pytest.approx(abs(leads[0] - leads[1]) / 2)
    assert found.loc["fm", "good"] == (leads.mean() >= -0.005)
    assert found.loc[LINEAR, ["difference", "error"]].tolist() == [0, 0]
    assert "The best, fm, is" in describe(table, pd.DataFrame(columns=list(DIFFERENCES)), [])


def test_rows_of_another_file_are_refused(file, tmp_path):
    lines = file.read_text().splitlines()
    (tmp_path / "criteo_sample.txt").write_text("\n".join(lines[::-1]) + "\n")

    def load(name, split):
        return load_dataset("criteo-sample/dlrm", path=tmp_path / "criteo_sample.txt", seed=split)

    with pytest.raises(ValueError, match="are not numbered as the lines of"):
        against_linear(models=[], splits=[0], load=load, path=file, progress=False)


def test_against_torchfm():
    rows, differences, remarks = against_torchfm("synthetic-movielens/ids", ["fm"], [0, 1], QUICK, progress=False)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    ours = table[table["method"] == "drsrobust"]
    assert ours["seed"].tolist() == [0, 1] and (ours["auc"] > 0.5).all() and (ours["seconds"] > 0).all()
    if not installed():
        assert len(table) == 2 and not differences and "pip install" in remarks[0]
        assert not len(torchfm_verdicts(table, pd.DataFrame(differences, columns=list(DIFFERENCES))))
        return
    assert table["method"].tolist() == ["drsrobust", "torchfm"] * 2 and (table["auc"] > 0.5).all()
    for difference, seed in zip(differences, (0, 1), strict=True):
        pair = table[table["seed"] == seed]["auc"].to_numpy()
        assert difference["difference"] == pytest.approx(pair[0] - pair[1])
        assert difference["low"] < difference["difference"] < difference["high"]


def test_verdicts_on_torchfm():
    lines = [
        (method, model, "d", 0, 0, 0.0, auc, 0.5, 1.0)
        for model, values in {"fm": (0.7971, 0.8), "afm": (0.796, 0.8)}.items()
        for method, auc in zip(("drsrobust", "torchfm"), values, strict=True)
    ]
    differences = [("fm", "d", 0, -0.0029, -0.004, -0.002, 0.01), ("afm", "d", 0, -0.004, -0.005, -0.003, 0.01)]
    table = pd.DataFrame(lines, columns=list(COLUMNS)).round({"auc": 6})
    differences = pd.DataFrame(differences, columns=list(DIFFERENCES))
    found = torchfm_verdicts(table, differences).droplevel("dataset")
    assert found["good"].to_dict() == {"fm": True, "afm": False} and found.loc["fm", "low"] == -0.004
    assert "Test AUC, drsrobust and torchfm" in describe(table, differences, ["a remark"])


def test_the_command(file, tmp_path, capsys, monkeypatch):
    linear = {"dataset": "criteo-sample/dlrm", "models": ["fm"], "splits": [0], "path": file, "settings": QUICK}
    torchfm = {"dataset": "synthetic-movielens/ids", "models": ["fm"], "settings": QUICK}
    made = quality(torchfm, linear, progress=False)
    monkeypatch.setattr("benchmarks.quality.quality", lambda: made)
    assert main(["quality", "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "quality.csv")
    assert table.columns.tolist() == (
        ["method", "model", "dataset", "split", "seed", "auc_valid", "auc", "logloss", "seconds"]
    )
    assert pd.read_csv(tmp_path / "quality_delong.csv").columns.tolist() == list(DIFFERENCES)
    assert "logistic regression" in capsys.readouterr().out


def test_data_that_are_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    assert main(["quality", "--out", str(tmp_path)]) == 2
    assert "DRSROBUST_DATA" in capsys.readouterr().err
