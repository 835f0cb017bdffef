import os

import numpy as np
import pytest

from drsrobust._hashing import file_digest
from drsrobust.data.dataset import Ids
from drsrobust_extras.data import raw_cache as cache
from drsrobust_extras.data import synthetic
from drsrobust_extras.data.id_encoding import encode_ids, split_order
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.synthetic import log_uniform, planted


def test_ids_take_rows_of_different_lengths():
    ids = Ids(np.array([1, 2, 2, 3, 3, 3], np.int32), np.array([1, 2, 0, 3], np.int32))
    taken = ids.take(np.array([3, 0, 2, 3]))
    assert taken.values.tolist() == [3, 3, 3, 1, 3, 3, 3] and taken.lengths.tolist() == [3, 1, 0, 3]
    assert ids.take(slice(1, 3)).values.tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.int64])
def test_vocabulary_is_made_of_training_values_alone(dtype):
    values = np.array([7, 7, 3, 200, 200, 200, 5, 3], dtype)
    ids, cardinality = encode_ids(values, n_train=6)
    assert cardinality == 4 and ids.tolist() == [2, 2, 1, 3, 3, 3, 0, 1] and ids.dtype == np.int32
    ids, cardinality = encode_ids(values, n_train=6, min_count=2)
    assert cardinality == 3 and ids.tolist() == [1, 1, 0, 2, 2, 2, 0, 0]
    ids, cardinality = encode_ids(values, n_train=6, min_count=9)
    assert cardinality == 1 and not ids.any()


def test_split_order():
    order, sizes = split_order(101, seed=3)
    assert sorted(order) == list(range(101)) and sizes == (80, 10, 11)
    assert np.array_equal(order, split_order(101, seed=3)[0])
    assert not np.array_equal(order, split_order(101, seed=4)[0])


def test_batches_hold_the_rows(data):
    batches = list(data.test.batches(256))
    assert sum(len(batch.labels) for batch in batches) == len(data.test) == 600
    assert batches[0].dense_features.shape == (256, 4)
    jagged = batches[1].sparse_features
    assert jagged.keys() == [feature.name for feature in data.schema.features]
    assert jagged["user"].values().tolist() == data.test.sparse["user"].values[256:512].tolist()
    genres = data.test.take(np.arange(256, 512)).sparse["genres"]
    assert jagged["genres"].values().tolist() == genres.values.tolist()
    assert jagged["genres"].lengths().tolist() == genres.lengths.tolist()
    reverse = next(data.test.batches(10, order=np.arange(600)[::-1]))
    assert reverse.labels.tolist() == data.test.labels[::-1][:10].tolist()


def test_take_and_fingerprint(data):
    head = data.test.head(50)
    assert len(head) == 50 and head.prior == data.train.prior and head.part == "test"
    assert head.fingerprint == data.test.take(np.arange(50)).fingerprint != data.test.fingerprint
    mask = np.zeros(len(data.test), bool)
    mask[:50] = True
    assert data.test.take(mask).fingerprint == head.fingerprint
    assert len(data.test.head(10**9)) == len(data.test) == head.whole
    with pytest.raises(ValueError, match=r"take\(\[5\]\)"):
        data.test.take(5)
    assert data.train.prior == pytest.approx(data.train.labels.mean(dtype=float))


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: os.truncate(f / "labels.npy", 200),
        lambda f: (f / "rows.npy").unlink(),
        lambda f: os.truncate(f / "manifest.json", 1),
        lambda f: (f / "manifest.json").write_text((f / "manifest.json").read_text().replace('": 0.', '": 0.1')),
    ],
)
def test_a_damaged_cache_is_made_again(empty_cache, damage):
    first = load_dataset("synthetic-movielens", rows=500).fingerprint
    damage(next(path for path in (empty_cache / "data").iterdir() if path.is_dir()))
    with pytest.warns(UserWarning, match="is damaged; the data set is encoded again"):
        assert load_dataset("synthetic-movielens", rows=500).fingerprint == first
    assert load_dataset("synthetic-movielens", rows=500).fingerprint == first


@pytest.mark.parametrize("large", [0, cache._HASHED_ONCE_FROM])
def test_any_flipped_bit_of_an_array_is_found(empty_cache, monkeypatch, large):
    """Also in arrays that are large: their size alone does not show it."""
    monkeypatch.setattr(cache, "_HASHED_ONCE_FROM", large)
    first = load_dataset("synthetic-movielens", rows=500).fingerprint
    folder = next(path for path in (empty_cache / "data").iterdir() if path.is_dir())
    rng = np.random.default_rng(0)
    for path in [*sorted(folder.glob("*.npy"))] * 3:
        content = bytearray(path.read_bytes())
        if len(content) > 128:  # else an array of no element
            content[rng.integers(128, len(content))] ^= 1 << rng.integers(8)
        else:
            content[-2] ^= 1
        path.write_bytes(content)
        with pytest.warns(UserWarning, match="is damaged; the data set is encoded again"):
            assert load_dataset("synthetic-movielens", rows=500).fingerprint == first


def test_the_cache_is_used_and_survives_a_killed_writer(empty_cache, monkeypatch):
    first = load_dataset("synthetic-movielens", rows=500)
    folder = next(path for path in (empty_cache / "data").iterdir() if path.is_dir())
    (folder / "manifest.json").unlink()  # as if it had not been finished
    stale = folder.with_name(f".{folder.name}.part")
    stale.mkdir()
    again = load_dataset("synthetic-movielens", rows=500)
    assert again.fingerprint == first.fingerprint and not stale.exists()
    monkeypatch.setattr(synthetic, "movielens_columns", lambda *_: pytest.fail("made again"))
    assert load_dataset("synthetic-movielens", rows=500).fingerprint == first.fingerprint


@pytest.fixture
def read(monkeypatch):
    """The files that were really read."""
    paths = []
    monkeypatch.setattr(cache, "_HASHED_ONCE_FROM", 10)
    monkeypatch.setattr(cache, "file_digest", lambda path: (paths.append(path), file_digest(path))[1])
    return paths


def write(path, text, time):
    path.write_text(text)
    os.utime(path, ns=(time, time))
    return file_digest(path)


def test_a_large_file_is_read_once(tmp_path, empty_cache, read):
    path = tmp_path / "large"
    first = write(path, "large enough", 10**18)
    assert cache.source_digest(path) == cache.source_digest(path) == first and len(read) == 1
    note = next((empty_cache / "digests").iterdir())
    note.write_text("")  # a broken note is not believed
    assert cache.source_digest(path) == first == note.read_text().strip() and len(read) == 2
    second = write(path, "LARGE ENOUGH", 10**18 + 1)  # same size, one nanosecond later
    assert cache.source_digest(path) == second != first and len(read) == 3
    third = write(path, "large enough and longer", 10**18 + 1)
    assert cache.source_digest(path) == third and len(read) == 4
    other = tmp_path / "other"
    fourth = write(other, "LARGE ENOUGH AND LONGER", 10**18 + 1)
    os.replace(other, path)  # another inode
    assert cache.source_digest(path) == fourth and len(read) == 5


def test_small_and_fresh_files_are_read_each_time(tmp_path, empty_cache, read):
    path = tmp_path / "small"
    write(path, "small", 10**18)
    assert cache.source_digest(path) == cache.source_digest(path) and len(read) == 2
    path.write_text("large, but written just now")
    assert cache.source_digest(path) == cache.source_digest(path) and len(read) == 4


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
    rows = len(data.train) + len(data.valid) + len(data.test)
    assert data.name == "synthetic-dummy/0.01" and rows == synthetic.ROWS["synthetic-dummy"]
    assert data.facts == {"click_rate": 0.5, "best_auc": 0.5, "density": 0.01}
    assert data.fingerprint != load_dataset("synthetic-dummy", seed=1).fingerprint
