import gzip

import numpy as np
import pytest

from drsrobust_extras.data.click_logs import CATEGORIES, COUNT_COLUMNS, MISSING_COUNT, buckets, log_counts
from drsrobust_extras.data.load import load_dataset
from tests.extras.data.criteo_lines import many


def test_gzip_and_path_give_the_same_contents(tmp_path):
    file = tmp_path / "criteo" / "criteo_sample.txt"
    file.parent.mkdir()
    file.write_text("".join(many(60)))
    plain = load_dataset("criteo-sample", tmp_path)
    packed = tmp_path / "elsewhere.txt.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert load_dataset("criteo-sample", path=packed).fingerprint == plain.fingerprint
    file.rename(file.with_name("train.txt"))
    assert len(load_dataset("criteo-kaggle", tmp_path).train) == len(plain.train)


def test_log_counts():
    values = np.array([-(2**63), -2, 0, 1, 10])
    np.testing.assert_allclose(log_counts(values), np.log([1, 1, 1, 2, 11]), rtol=1e-6)


def test_buckets():
    """By hand: ln(3)^2 = 1.2, ln(7)^2 = 3.8, ln(8)^2 = 4.3, ln(1000)^2 = 47.7, ln(2^63 - 1)^2 = 1906.9."""
    values = [MISSING_COUNT, -(2**63) + 1, -2, -1, 0, 1, 2, 3, 7, 8, 1000, 2**63 - 1]
    found = buckets(np.array(values)).tolist()
    assert found[2:] == [-4, -3, -2, -1, 0, 1, 3, 4, 47, 1906]
    assert len(set(found)) == len(found)  # all of them are different categories


@pytest.mark.parametrize("schema", ["dlrm", "fields"])
def test_against_a_plain_reading(tmp_path, schema):
    """Every cell, against Python's own split and dictionaries; vocabularies are made of training rows alone."""
    lines = many(400)
    path = tmp_path / "lines.txt"
    path.write_text("".join(lines))
    data = load_dataset("criteo-sample", path=path, schema=schema, min_count=3)
    cells = [text.rstrip("\n").split("\t") for text in lines]
    splits = (data.train, data.valid, data.test)
    for place, name in enumerate(["label", *COUNT_COLUMNS, *CATEGORIES]):
        column = [row[place] for row in cells]
        if name == "label":
            assert all(split.labels.tolist() == [float(column[row]) for row in split.rows] for split in splits)
            continue
        if name in COUNT_COLUMNS and schema == "dlrm":
            expected = [np.log1p(np.float64(max(int(text or 0), 0))) for text in column]
            for split in splits:
                np.testing.assert_allclose(split.dense[:, place - 1], [expected[row] for row in split.rows], rtol=1e-6)
            continue
        if name in COUNT_COLUMNS:
            keys = [2000 if text == "" else buckets(np.array([int(text)]))[0] for text in column]
        else:
            keys = [int(text or "-1", 16) for text in column]
        seen = [keys[row] for row in data.train.rows]
        known = sorted(key for key in set(seen) if seen.count(key) >= 3)
        assert {f.name: f.cardinality for f in data.schema.features}[name] == len(known) + 1
        for split in splits:
            ids = [known.index(keys[row]) + 1 if keys[row] in known else 0 for row in split.rows]
            assert split.sparse[name].values.tolist() == ids, name


@pytest.mark.parametrize("schema", ["dlrm", "fields"])
def test_hashing(tmp_path, schema):
    path = tmp_path / "lines.txt"
    path.write_text("".join(many(300)))
    data = load_dataset("criteo-sample", path=path, schema=schema, hash_size=7)
    whole = load_dataset("criteo-sample", path=path, schema=schema, min_count=1)
    assert all(f.cardinality == 8 for f in data.schema.features) and data.fingerprint != whole.fingerprint
    cells = [text.rstrip("\n").split("\t") for text in path.read_text().splitlines()]
    names = ["label", *COUNT_COLUMNS, *CATEGORIES]
    for feature in data.schema.features:
        place, of = names.index(feature.name), {}
        for split in (data.train, data.valid, data.test):
            for row, i in zip(split.rows, split.sparse[feature.name].values, strict=True):
                text = cells[row][place]
                key = buckets(np.array([int(text)]))[0] if text and feature.name in COUNT_COLUMNS else text
                assert (i == 0) == (text == "") and of.setdefault(key, i) == i
    first, second = (data.train.sparse[name].values for name in ("C1", "C2"))
    assert len(set(first.tolist())) == 8 and first.tolist() != second.tolist()


def test_days(tmp_path):
    folder = tmp_path / "criteo-terabyte"
    folder.mkdir()
    days = {0: many(30, 0), 2: many(40, 2), 10: many(50, 10)}
    for day, lines in days.items():
        (folder / f"day_{day}").write_text("".join(lines))
    (folder / "day_10").rename(folder / "day_10.txt")
    (folder / "day_10.gz").write_bytes(gzip.compress((folder / "day_10.txt").read_bytes()))

    def same_rows(data, numbers):
        """Whether the set is that of these days' lines, one after the other."""
        joined = tmp_path / "joined.txt"
        joined.write_text("".join(text for number in numbers for text in days[number]))
        plain = load_dataset("criteo-sample", path=joined, min_count=2)
        assert np.array_equal(data.train.rows, plain.train.rows)
        assert np.array_equal(data.train.dense, plain.train.dense)
        return all(np.array_equal(i.values, plain.test.sparse[name].values) for name, i in data.test.sparse.items())

    assert same_rows(load_dataset("criteo-terabyte", tmp_path, min_count=2), (0, 2, 10))
    assert same_rows(load_dataset("criteo-terabyte", tmp_path, days=(10, 0), min_count=2), (10, 0))
    assert same_rows(load_dataset("criteo-terabyte", path=folder, days=[2], min_count=2), (2,))
    assert same_rows(load_dataset("criteo-terabyte", path=folder / "day_2", min_count=2), (2,))
    with pytest.raises(FileNotFoundError, match=r"no .*day_1 \(nor .gz\)\. Get days of Criteo.* and put day_1 there"):
        load_dataset("criteo-terabyte", tmp_path, days=(0, 1))
    with pytest.raises(FileNotFoundError, match=r"no .*day_0 \(nor .gz\)"):
        load_dataset("criteo-terabyte", tmp_path / "elsewhere")
    for wrong in ((), (0, 0), (24,), (-1,)):
        with pytest.raises(ValueError, match="days must be "):
            load_dataset("criteo-terabyte", tmp_path, days=wrong)
    with pytest.raises(ValueError, match=r"days=\(0,\) is for criteo-terabyte"):
        load_dataset("criteo-sample", tmp_path, days=(0,))


def test_real_rows(real_data):
    data = load_dataset("criteo-sample", real_data)
    labels = np.concatenate([split.labels for split in (data.train, data.valid, data.test)])
    assert len(labels) == 109_711 and labels.mean(dtype=float) == pytest.approx(0.256720, abs=1e-6)
    assert np.isfinite(data.train.dense).all()
    # The contents that published figures were made of.
    assert data.fingerprint == "779e21f71fe99469f2c9633012e7f5f540549c9a818264c3052e5fbdd7b440e0"


def test_real_fields(real_data):
    dlrm, fields = load_dataset("criteo-sample", real_data), load_dataset("criteo-sample/fields", real_data)
    assert np.array_equal(dlrm.test.rows, fields.test.rows) and np.array_equal(dlrm.test.labels, fields.test.labels)
    for name in CATEGORIES:
        assert np.array_equal(dlrm.test.sparse[name].values, fields.test.sparse[name].values)
    sizes = [f.cardinality for f in fields.schema.features]
    assert len(sizes) == 39 and all(3 < size < 200 for size in sizes[:13])
    share = np.mean(fields.train.sparse["I12"].values == sizes[11] - 1)  # "missing" has the highest code
    assert share == pytest.approx(0.768, abs=0.003)
