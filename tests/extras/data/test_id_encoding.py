"""Hashed ids, and what encoding column by column keeps in memory."""

import hashlib
import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.encoding import write_lines
from drsrobust._hashing import splitmix64
from drsrobust_extras.data import click_logs, text_lines
from drsrobust_extras.data.click_logs import RAW, TABLES
from drsrobust_extras.data.id_encoding import encode_ids, hash_ids
from drsrobust_extras.data.load import load_dataset


def test_splitmix64_is_the_published_generator():
    """Its first outputs for the seeds 0 and 1234567 (a stream adds the golden number at each step)."""
    golden = 0x9E3779B97F4A7C15
    states = [(seed + step * golden) % 2**64 for seed in (0, 1234567) for step in (0, 1)]
    found = splitmix64(np.array(states, np.uint64)).tolist()
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 6457827717110365317, 3203168211198807973]


def test_hashed_ids_follow_the_documented_rule():
    """In Python's own integers."""
    key, mask = int.from_bytes(hashlib.sha256(b"C1").digest()[:8], "little"), 2**64 - 1
    for value in (7, -2, 0xFFFFFFFF):
        mixed = (((value & mask) ^ key) + 0x9E3779B97F4A7C15) & mask
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        expected = 1 + ((mixed ^ (mixed >> 31)) & mask) % 1000
        assert hash_ids(np.array([value]), 1000, "C1").tolist() == [expected]


def test_hashed_ids():
    values = np.arange(-1, 50_000)
    ids = hash_ids(values, 100, "C1", missing=-1)
    assert ids.dtype == np.int32 and ids[0] == 0 and set(ids[1:].tolist()) == set(range(1, 101))
    counts = np.bincount(ids[1:], minlength=101)[1:]
    assert ((counts - 500) ** 2 / 500).sum() == pytest.approx(99, abs=5 * np.sqrt(2 * 99))
    other = hash_ids(values, 100, "C2", missing=-1)
    assert np.mean(ids[1:] == other[1:]) == pytest.approx(0.01, abs=5 * np.sqrt(0.01 / 50_000))
    assert np.array_equal(hash_ids((values + 1).astype(np.uint32), 100, "C1", missing=-1, low=-1), ids)
    assert hash_ids(values, 100, "C1")[0] > 0 and hash_ids(values, 2**31 - 2, "C1").min() >= 1
    assert hash_ids(values, 1, "C1", missing=-1).tolist() == [0] + [1] * 50_000


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.int64])
def test_ids_of_any_integer_type(dtype):
    values = np.array([200, 3, 3, 7, 200, 9], dtype)
    ids, cardinality = encode_ids(values, 4)
    assert ids.tolist() == [3, 1, 1, 2, 3, 0] and cardinality == 4 and ids.dtype == np.int32


@pytest.mark.long
def test_memory_is_that_of_one_column(tmp_path, monkeypatch):
    """Peak of everything NumPy allocates while 60,000 lines are encoded: a small part of the encoded set, and hardly more
    for 39 columns than for 4. (Arrow's own memory, one look-up's result, is not counted.)"""
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(text_lines, "PIECE", 1 << 18)
    monkeypatch.setattr(click_logs, "STRIPE", 2000)
    path, table = tmp_path / "lines.txt", TABLES["dlrm"]
    write_lines(path, 60_000)
    few = replace(table, dense=table.dense[:2], features={name: table.features[name] for name in ("C3", "C12")})
    peaks = {}
    for name, part in (("all", table), ("few", few)):
        click_logs.parse(tmp_path / name, part, [path], "strict")
        assert pq.ParquetFile(tmp_path / name / RAW).num_row_groups > 10
        tracemalloc.start()
        click_logs.encode_clicks(tmp_path / name, part, seed=0, min_count=10)
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    whole = sum(path.stat().st_size for path in (tmp_path / "all").glob("*.npy"))
    assert whole > 60_000 * 39 * 4 and peaks["all"] < 0.35 * whole
    assert peaks["all"] < 1.3 * peaks["few"]


def test_options_that_do_not_belong():
    with pytest.raises(
        ValueError, match=r"hash_size=5 is for sets of categories \(Criteo, Avazu\); movielens-1m keeps"
    ):
        load_dataset("movielens-1m", hash_size=5)
    with pytest.raises(ValueError, match="pass either hash_size or min_count, not both: min_count=5"):
        load_dataset("synthetic-criteo", hash_size=5, min_count=5)
    with pytest.raises(ValueError, match="hash_size must be at least 1, got 0"):
        load_dataset("synthetic-criteo", hash_size=0)
    with pytest.raises(ValueError, match="hash_size must be at most 2147483646, got 2147483647"):
        load_dataset("synthetic-criteo", hash_size=2**31 - 1)
    data = load_dataset("synthetic-criteo", rows=500, hash_size=20)
    assert all(f.cardinality == 21 for f in data.schema.features)
