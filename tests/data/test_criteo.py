import gzip

import numpy as np
import pytest

from drsrobust.data import DataError, load_dataset
from drsrobust.data.criteo import log_counts


def line(label, integers, categories):
    return "\t".join([str(label), *(str(i) for i in integers), *categories]) + "\n"


@pytest.fixture
def file(tmp_path):
    """60 lines: C1 takes a frequent and some rare values, C2 is always empty, I2 is negative."""
    rng = np.random.default_rng(1)
    rows = []
    for i in range(60):
        integers = ["" if i % 3 == 0 else i, -2, *rng.integers(0, 9, 11)]
        rare = f"{i:08x}" if i % 4 == 0 else "deadbeef"
        rows.append(line(i % 2, integers, [rare, "", *["0000000a"] * 24]))
    path = tmp_path / "criteo" / "criteo_sample.txt"
    path.parent.mkdir()
    path.write_text("".join(rows))
    return path


def test_encoding(file):
    data = load_dataset("criteo-sample", file.parent.parent, min_count=2)
    assert data.name == "criteo-sample/dlrm" and len(data.schema.dense) == 13 and len(data.schema.features) == 26
    assert [f.cardinality for f in data.schema.features][:3] == [2, 2, 2]  # one value kept, and id 0
    for split in (data.train, data.valid, data.test):
        assert split.users is None
        assert split.sparse["C1"].values.tolist() == [0 if row % 4 == 0 else 1 for row in split.rows]
        assert split.sparse["C2"].values.tolist() == [1] * len(split)  # empty is a value like any other
        assert split.labels.tolist() == [row % 2 for row in split.rows]
        expected = [0.0 if row % 3 == 0 else np.log1p(row) for row in split.rows]
        np.testing.assert_allclose(split.dense[:, 0], expected, rtol=1e-6)
        assert (split.dense[:, 1] == 0).all()


def test_gzip_and_path_give_the_same_contents(file, tmp_path):
    plain = load_dataset("criteo-sample", file.parent.parent)
    packed = tmp_path / "elsewhere.txt.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert load_dataset("criteo-sample", path=packed).fingerprint == plain.fingerprint
    kaggle = tmp_path / "criteo" / "train.txt"
    kaggle.write_bytes(file.read_bytes())
    assert len(load_dataset("criteo-kaggle", tmp_path).train) == len(plain.train)


def test_bad_lines_leave_no_cache(file, empty_cache):
    file.write_text(file.read_text() + line(3, [1] * 13, [""] * 26))
    with pytest.raises(DataError, match=r"criteo_sample.txt, line 61, field 1 \(label\): '3' is not a label"):
        load_dataset("criteo-sample", file.parent.parent)
    assert not [path for path in (empty_cache / "data").iterdir() if path.suffix != ".lock"]


def test_log_counts():
    values = np.array([-(2**63), -2, 0, 1, 10])
    np.testing.assert_allclose(log_counts(values), np.log([1, 1, 1, 2, 11]), rtol=1e-6)


def test_real_rows(real_data):
    data = load_dataset("criteo-sample", real_data)
    labels = np.concatenate([split.labels for split in (data.train, data.valid, data.test)])
    assert len(labels) == 109_711 and labels.mean(dtype=float) == pytest.approx(0.256720, abs=1e-6)
    assert np.isfinite(data.train.dense).all()
