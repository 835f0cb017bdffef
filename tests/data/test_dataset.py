import numpy as np
import pytest

from drsrobust._hashing import file_digest
from drsrobust.data.dataset import Ids
from drsrobust_extras.data import raw_cache as cache
from drsrobust_extras.data.id_encoding import encode_ids, split_order
from drsrobust_extras.data.load import load_dataset


def test_ids_take_rows_of_different_lengths():
    ids = Ids(np.array([1, 2, 2, 3, 3, 3], np.int32), np.array([1, 2, 0, 3], np.int32))
    taken = ids.take(np.array([3, 0, 2, 3]))
    assert taken.values.tolist() == [3, 3, 3, 1, 3, 3, 3] and taken.lengths.tolist() == [3, 1, 0, 3]
    assert ids.take(slice(1, 3)).values.tolist() == [2, 2]


def test_vocabulary_is_made_of_training_values_alone():
    values = np.array([7, 7, 3, 9, 9, 9, 5, 3])
    ids, cardinality = encode_ids(values, n_train=6)
    assert cardinality == 4 and ids.tolist() == [2, 2, 1, 3, 3, 3, 0, 1]
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
    with pytest.raises(ValueError, match="batch size must be at least 1, got 0"):
        next(data.test.batches(0))


def test_take_and_fingerprint(data):
    head = data.test.head(50)
    assert len(head) == 50 and head.prior == data.train.prior and head.part == "test"
    assert head.fingerprint == data.test.take(np.arange(50)).fingerprint != data.test.fingerprint
    mask = np.zeros(len(data.test), bool)
    mask[:50] = True
    assert data.test.take(mask).fingerprint == head.fingerprint
    assert len(data.test.head(10**9)) == len(data.test) == head.whole
    with pytest.raises(ValueError, match="the number of rows must be at least 1, got -5"):
        data.test.head(-5)
    with pytest.raises(ValueError, match=r"take\(\[5\]\) takes one row"):
        data.test.take(5)
    assert data.train.prior == pytest.approx(data.train.labels.mean(dtype=float))


def test_unknown_names_are_told():
    with pytest.raises(
        ValueError, match=r"unknown data set 'movielens-1M'; did you mean 'movielens-1m'\? known: .*synthetic-criteo"
    ):
        load_dataset("movielens-1M")
    with pytest.raises(ValueError, match=r"unknown schema of movielens-1m 'dlrm'; known: ids, full"):
        load_dataset("movielens-1m", schema="dlrm")
    with pytest.raises(ValueError, match="names the schema 'full', but schema is 'ids'"):
        load_dataset("movielens-1m/full", schema="ids")
    with pytest.raises(ValueError, match=r"rows=5 is for synthetic sets"):
        load_dataset("movielens-1m", rows=5)
    with pytest.raises(
        ValueError, match=r"min_count=5 is for sets of categories \(Criteo, Avazu\); synthetic-movielens keeps"
    ):
        load_dataset("synthetic-movielens", min_count=5)
    with pytest.raises(ValueError, match=r"path='x' does not apply: synthetic-criteo is generated"):
        load_dataset("synthetic-criteo", path="x")
    with pytest.raises(ValueError, match=r"pass either root or path, not both: root='a', path='b'"):
        load_dataset("criteo-sample", "a", path="b")
    with pytest.raises(ValueError, match="min_count must be at least 1, got 0"):
        load_dataset("synthetic-criteo", min_count=0)
    with pytest.raises(ValueError, match="rows must be at least 10, got 9"):
        load_dataset("synthetic-criteo", rows=9)


def test_numbers_of_numpy_will_do():
    data = load_dataset("synthetic-movielens", rows=np.int64(500), seed=np.int64(1))
    assert data.fingerprint == load_dataset("synthetic-movielens", rows=500, seed=1).fingerprint
    assert repr(data).startswith(
        "<Dataset synthetic-movielens/ids: train 400, valid 50, test 50 rows; 0 dense; ids: user "
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: (f / "labels.npy").write_bytes((f / "labels.npy").read_bytes()[:-40]),
        lambda f: (f / "labels.npy").write_bytes((f / "labels.npy").read_bytes()[:-1] + b"x"),
        lambda f: (f / "rows.npy").unlink(),
        lambda f: (f / "manifest.json").write_text("{"),
        lambda f: (f / "manifest.json").write_text(
            (f / "manifest.json").read_text().replace('"prior": 0.', '"prior": 0.1')
        ),
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


def test_large_arrays_are_read_once_per_process(empty_cache, monkeypatch):
    monkeypatch.setattr(cache, "_HASHED_ONCE_FROM", 0)
    load_dataset("synthetic-movielens", rows=500)
    read = []
    monkeypatch.setattr(cache, "file_digest", lambda path: (read.append(path.name), file_digest(path))[1])
    load_dataset("synthetic-movielens", rows=500)
    names = [path.name for path in empty_cache.glob("data/*/*.npy")]
    assert sorted(read) == sorted(names)
    load_dataset("synthetic-movielens", rows=500)
    assert len(read) == len(names)


def test_missing_files_are_told(tmp_path, monkeypatch):
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"pass root=, or set DRSROBUST_DATA .*GroupLens"):
        load_dataset("movielens-1m")
    with pytest.raises(
        FileNotFoundError,
        match=r"there is no .*ml-1m/ratings.dat \(nor .gz\)\. Get .*GroupLens.* and put ratings.dat there",
    ):
        load_dataset("movielens-1m", tmp_path)
    monkeypatch.setenv("DRSROBUST_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="criteo_sample.txt"):
        load_dataset("criteo-sample")


def test_the_cache_is_used_and_survives_a_killed_writer(empty_cache, monkeypatch):
    from drsrobust_extras.data import synthetic

    first = load_dataset("synthetic-movielens", rows=500)
    folder = next(path for path in (empty_cache / "data").iterdir() if path.is_dir())
    (folder / "manifest.json").unlink()  # as if it had not been finished
    stale = folder.with_name(f".{folder.name}.part")
    stale.mkdir()
    again = load_dataset("synthetic-movielens", rows=500)
    assert again.fingerprint == first.fingerprint and not stale.exists()
    monkeypatch.setattr(synthetic, "movielens_columns", lambda *_: pytest.fail("made again"))
    assert load_dataset("synthetic-movielens", rows=500).fingerprint == first.fingerprint
