"""A call after a killed one redoes no finished array and gives the same bytes."""

import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drsrobust._hashing import file_digest
from drsrobust_extras.data import click_logs, id_encoding, text_lines
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.text_lines import DataError
from tests.extras.data.criteo_lines import line, many

# Kills itself, as kill -9 does, when `what` of the module is called for the n-th time; before it does its work.
KILLED = """
import os, signal
from drsrobust.data import load_dataset
from drsrobust_extras.data import click_logs, raw_cache as cache, text_lines
text_lines.BLOCK_BYTES = 4000
calls, real = [0], {what}
def killer(*arguments, **options):
    calls[0] += 1
    if calls[0] == {n}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)
{what} = killer
load_dataset({name!r}, path={path!r}, bad_lines={bad_lines!r}, min_count=2)
"""


@pytest.fixture
def file(tmp_path):
    """300 lines, of which lines 3 and 251 are bad: about twenty blocks of 4000 bytes."""
    lines = many(300)
    lines[2], lines[250] = "what\n", line(7, range(13), [""] * 26)
    path = tmp_path / "lines.txt"
    path.write_text("".join(lines))
    return path


def contents(folder):
    """Every file of a finished set, by its hash; the manifest as it is, since it names no machine and no time."""
    return {path.name: file_digest(path) for path in folder.iterdir()}


def finished(cache):
    return next(path for path in (cache / "data").iterdir() if (path / "manifest.json").exists())


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "what", "n"),
    [
        ("criteo-sample/dlrm", "click_logs.pa.table", 8),  # while parsing, before the 8th block
        ("criteo-sample/fields", "click_logs.save_array", 12),  # while encoding, before the 12th array
        ("criteo-sample/dlrm", "click_logs.np.lib.format.write_array_header_1_0", 1),  # before the dense matrix
        ("criteo-sample/fields", "cache._publish", 1),  # when all is written, before it is renamed
    ],
)
def test_kill_and_resume(file, tmp_path, monkeypatch, warm_python, name, what, n):
    once, again = tmp_path / "once", tmp_path / "again"
    monkeypatch.setenv("DRSROBUST_CACHE", str(once))
    options = {"path": file, "bad_lines": "skip", "min_count": 2}
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
        whole = load_dataset(name, **options)

    code = KILLED.format(what=what, n=n, name=name, path=str(file), bad_lines="skip")
    killed = warm_python.run("-c", code, env=os.environ | {"DRSROBUST_CACHE": str(again)})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    part = next((again / "data").glob(".*.part"))
    done = {path: path.stat().st_mtime_ns for path in part.rglob("*") if path.is_file() and path.suffix != ".part"}
    assert (part / click_logs.RAW in done) == (what != "click_logs.pa.table")
    saved, real_save = [], click_logs.save_array
    monkeypatch.setattr(click_logs, "save_array", lambda path, array: (saved.append(path), real_save(path, array)))
    if part / click_logs.RAW in done:
        monkeypatch.setattr(click_logs, "read_columns", None)  # not read again
    monkeypatch.setenv("DRSROBUST_CACHE", str(again))
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298; the first: lines.txt, line 3: 1 fields"):
        resumed = load_dataset(name, **options)
    assert not set(saved) & set(done)
    assert contents(finished(again)) == contents(finished(once))
    assert resumed.fingerprint == whole.fingerprint and resumed.skipped == whole.skipped
    assert [number for _, number, _ in resumed.skipped] == [3, 251]
    kept = {path.name for path in (again / "data").iterdir() if path.suffix != ".lock"}
    assert kept == {finished(again).name}
    for array in ("dense.npy", "labels.npy", "ids.C3.npy"):  # files that were there stayed the same files
        if part / array in done:
            assert (finished(again) / array).stat().st_mtime_ns == done[part / array]


@pytest.mark.long
def test_a_finished_set_that_was_damaged_before_its_rename_is_made_again(file, tmp_path, monkeypatch, warm_python):
    cache, name = tmp_path / "cache", "criteo-sample/dlrm"
    monkeypatch.setenv("DRSROBUST_CACHE", str(cache))
    code = KILLED.format(what="cache._publish", n=1, name=name, path=str(file), bad_lines="skip")
    warm_python.run("-c", code)
    labels = next(cache.glob("data/.*.part/labels.npy"))
    labels.write_bytes(labels.read_bytes()[:-1] + b"x")
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
        resumed = load_dataset(name, path=file, bad_lines="skip", min_count=2)
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
        assert resumed.fingerprint == load_dataset(name, path=file, bad_lines="skip", min_count=2).fingerprint


def test_a_bad_file_leaves_no_working_folder(file, empty_cache):
    with pytest.raises(DataError, match="lines.txt, line 3: 1 fields"):
        load_dataset("criteo-sample", path=file)
    assert not [path for path in (empty_cache / "data").iterdir() if path.suffix != ".lock"]


def test_block_size_changes_nothing(file, tmp_path, monkeypatch):
    """Sizes of blocks, stripes and look-up chunks do not change the contents."""
    prints = []
    for size in (3000, 1 << 20):
        monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / str(size)))
        monkeypatch.setattr(text_lines, "BLOCK_BYTES", size)
        monkeypatch.setattr(click_logs, "STRIPE", size // 50)
        monkeypatch.setattr(id_encoding, "CHUNK", size // 70)
        monkeypatch.setattr(id_encoding, "HASH_CHUNK", size // 90)
        with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
            prints.append(
                [
                    load_dataset("criteo-sample", path=file, bad_lines="skip", **options).fingerprint
                    for options in ({"min_count": 2}, {"hash_size": 50})
                ]
            )
    assert prints[0] == prints[1] and len(set(prints[0])) == 2


def test_columns_come_back_as_they_were(tmp_path):
    """Whatever the range of a block and of all blocks."""
    rng = np.random.default_rng(0)
    ranges = {"wide": (-(2**63), 2**63), "hex": (-1, 2**32), "small": (-3, 40), "one": (5, 6), "edge": (-1, 2**32 - 1)}
    blocks = [{name: rng.integers(low, high, rows) for name, (low, high) in ranges.items()} for rows in (50, 7)]
    with pq.ParquetWriter(tmp_path / "raw.parquet", pa.schema(dict.fromkeys(ranges, pa.int64()))) as writer:
        for block in blocks:
            block["edge"][:2] = (-1, 2**32 - 2)
            writer.write_table(pa.table(block))
    raw = pq.ParquetFile(tmp_path / "raw.parquet")
    for name in ranges:
        values, low = click_logs._column(raw, name)
        back = (values.astype(np.uint64) + np.uint64(low % 2**64)).astype(np.int64)
        assert np.array_equal(back, np.concatenate([block[name] for block in blocks])), name
    assert click_logs._column(raw, "edge")[0].dtype == np.uint32
    assert click_logs._column(raw, "small")[0].dtype == np.uint8
