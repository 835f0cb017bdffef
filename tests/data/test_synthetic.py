import numpy as np
import pytest

from drsrobust.data import load_dataset, synthetic
from drsrobust.data.synthetic import log_uniform, planted


@pytest.mark.parametrize(
    ("name", "click_rate", "best_auc"),
    [("synthetic-movielens", 0.53, 0.86), ("synthetic-movielens/full", 0.53, 0.86), ("synthetic-criteo", 0.23, 0.84)],
)
def test_stated_click_rate_and_best_auc(name, click_rate, best_auc):
    """As the module's docstring states; the labels follow the teacher."""
    data = load_dataset(name)
    assert data.facts["click_rate"] == pytest.approx(click_rate, abs=0.005)
    assert data.facts["best_auc"] == pytest.approx(best_auc, abs=0.005)
    assert f"{click_rate}" in synthetic.__doc__ and f"AUC {best_auc}" in synthetic.__doc__
    n = sum(len(split) for split in (data.train, data.valid, data.test))
    assert n == synthetic.ROWS[name.split("/")[0]]
    labels = np.concatenate([split.labels for split in (data.train, data.valid, data.test)])
    assert labels.mean(dtype=float) == pytest.approx(data.facts["click_rate"], abs=5 * 0.5 / np.sqrt(n))


def test_a_seed_decides_everything(empty_cache):
    one = load_dataset("synthetic-criteo", rows=500, seed=1).fingerprint
    for path in (empty_cache / "data").glob("*/*"):
        path.unlink()
    assert load_dataset("synthetic-criteo", rows=500, seed=1).fingerprint == one
    assert load_dataset("synthetic-criteo", rows=500, seed=2).fingerprint != one


def test_ids_have_a_long_tail():
    data = load_dataset("synthetic-movielens")
    counts = np.sort(np.bincount(data.train.sparse["movie"].values))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.3 * counts.sum()


@pytest.mark.parametrize("name", ["synthetic-movielens", "synthetic-criteo"])
def test_one_test_row_has_no_best_auc(name):
    data = load_dataset(name, rows=10)
    assert len(data.test) == 1 and data.facts["best_auc"] is None and 0 < data.facts["click_rate"] < 1


def test_planted_rows():
    schema, train, valid, best = planted(1003, 5000, 1000, seed=4)
    assert sum(feature.cardinality for feature in schema.features) == 1003 and len(schema.features) == 26
    assert len(train) == 5000 and len(valid) == 1000 and 0.75 < best < 0.95
    for feature in schema.features:
        assert train.sparse[feature.name].values.max() < feature.cardinality
        assert valid.sparse[feature.name].values.min() >= 0
    again = planted(1003, 5000, 1000, seed=4)
    assert np.array_equal(again[1].labels, train.labels) and again[3] == best
    ids = log_uniform(np.random.default_rng(0), 999, 20_000)
    assert ids.min() == 0 and ids.max() <= 998
    assert (ids == 0).mean() == pytest.approx(np.log(2) / np.log(1000), abs=0.01)
