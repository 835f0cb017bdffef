import numpy as np
import pytest

from drsrobust_extras.data import synthetic
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.synthetic import log_uniform, planted


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


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_input_of_the_dummy_model(density):
    data = load_dataset(f"synthetic-dummy/{density}", rows=2000)
    (feature,) = data.schema.features
    assert (feature.name, feature.cardinality, feature.multi_hot, len(data.schema.dense)) == ("id", 8192, True, 128)
    splits = (data.train, data.valid, data.test)
    lengths = np.concatenate([split.sparse["id"].lengths for split in splits])
    ids = np.concatenate([split.sparse["id"].values for split in splits])
    dense = np.concatenate([split.dense for split in splits])
    labels = np.concatenate([split.labels for split in splits])
    assert [len(split) for split in splits] == [1600, 200, 200] and data.synthetic
    assert len(ids) == lengths.sum() and ids.min() >= 0 and ids.max() <= 8191
    # Five deviations of each statistic, under independent draws.
    assert lengths.mean() == pytest.approx(8192 * density, abs=5 * np.sqrt(8192 * density * (1 - density) / 2000))
    variance = 8192 * density * (1 - density)
    assert lengths.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / 2000) + 5 / np.sqrt(2000 * variance))
    counts = np.bincount(ids, minlength=8192)
    expected = 2000 * density
    chi2 = ((counts - expected) ** 2 / (expected * (1 - density))).sum()
    assert chi2 == pytest.approx(8192, abs=5 * np.sqrt(8192 * (2 + 1 / expected)))
    rows = np.repeat(np.arange(2000), lengths)
    assert len(np.unique(rows * 8192 + ids)) == len(ids)  # no id twice in a row
    assert dense.mean() == pytest.approx(0, abs=5 / np.sqrt(dense.size))
    assert dense.std() == pytest.approx(1, abs=5 / np.sqrt(2 * dense.size))
    assert labels.mean() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(2000)) and set(labels) == {0, 1}


def test_defaults_of_the_dummy_data():
    data = load_dataset("synthetic-dummy")
    assert (
        data.name == "synthetic-dummy/0.01"
        and len(data.train) + len(data.valid) + len(data.test) == synthetic.ROWS["synthetic-dummy"]
    )
    assert data.facts == {"click_rate": 0.5, "best_auc": 0.5, "density": 0.01}
    assert data.fingerprint != load_dataset("synthetic-dummy", seed=1).fingerprint
    with pytest.raises(ValueError, match="unknown schema of synthetic-dummy '0.5'; .* known: 0.01, 0.001, 0.1"):
        load_dataset("synthetic-dummy/0.5")


def test_empty_bags_are_rows_too():
    data = load_dataset("synthetic-dummy/0.001", rows=20_000)
    empty = np.mean(np.concatenate([split.sparse["id"].lengths for split in (data.train, data.valid, data.test)]) == 0)
    assert empty == pytest.approx(0.999**8192, rel=0.5)
    batch = data.test.batch(slice(256))
    assert batch.sparse_features["id"].lengths().tolist() == data.test.sparse["id"].lengths[:256].tolist()


@pytest.mark.parametrize("probability", [0.03, 0.5, 0.999])
def test_successes_are_bernoulli_trials(probability):
    rng = np.random.default_rng(0)
    places = synthetic._successes(rng, 200_000, probability)
    assert (np.diff(places) > 0).all() and places[0] >= 0 and places[-1] < 200_000
    deviation = np.sqrt(200_000 * probability * (1 - probability))
    assert len(places) == pytest.approx(200_000 * probability, abs=5 * deviation)
    assert sum(len(synthetic._successes(rng, 1, probability)) for _ in range(20_000)) == pytest.approx(
        20_000 * probability, abs=5 * np.sqrt(20_000 * probability * (1 - probability))
    )
