"""A call after a killed one redoes no finished work and gives the same bytes."""

import gzip
import signal

import numpy as np
import pytest

from drsrobust._hashing import file_digest
from drsrobust.data import DataError, large_files, load_dataset, text_files
from tests.data.criteo_lines import line, many, run

# Kills itself, as kill -9 does, when `what` of the module is called for the n-th time; before it does its work.
KILLED = """
import os, signal
from drsrobust.data import cache, large_files, load_dataset, text_files
text_files.BLOCK = 4000
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


@pytest.mark.parametrize(
    ("name", "what", "n"),
    [
        ("criteo-sample/dlrm", "large_files.save_file", 8),  # while parsing, before the 8th block
        ("criteo-sample/fields", "large_files.save", 12),  # while encoding, before the 12th array
        ("criteo-sample/dlrm", "large_files.np.lib.format.write_array_header_1_0", 1),  # before the dense matrix
        ("criteo-sample/fields", "cache._publish", 1),  # when all is written, before it is renamed
    ],
)
def test_kill_and_resume(file, tmp_path, monkeypatch, name, what, n):
    monkeypatch.setattr(text_files, "BLOCK", 4000)
    once, again = tmp_path / "once", tmp_path / "again"
    monkeypatch.setenv("DRSROBUST_CACHE", str(once))
    options = {"path": file, "bad_lines": "skip", "min_count": 2}
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
        whole = load_dataset(name, **options)

    code = KILLED.format(what=what, n=n, name=name, path=str(file), bad_lines="skip")
    _, status, errors = run(code, again)
    assert status == -signal.SIGKILL, errors
    part = next((again / "data").glob(".*.part"))
    done = {path: path.stat().st_mtime_ns for path in part.rglob("*") if path.is_file() and path.suffix != ".part"}
    blocks = [path for path in done if path.suffix == ".safetensors"]
    assert len(blocks) == 7 if what == "large_files.save_file" else len(blocks) > 7

    parsed, saved = [], []
    real_save, real_add = large_files.save, large_files.Raw.add
    monkeypatch.setattr(large_files, "save", lambda path, array: (saved.append(path), real_save(path, array)))
    monkeypatch.setattr(
        large_files.Raw, "add", lambda self, name, *rest: (parsed.append(name), real_add(self, name, *rest))
    )
    monkeypatch.setenv("DRSROBUST_CACHE", str(again))
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298; the first: lines.txt, line 3: 1 fields"):
        resumed = load_dataset(name, **options)
    assert not {part / "raw" / f"{name}.safetensors" for name in parsed} & set(done) and not set(saved) & set(done)
    assert len(parsed) + len(blocks) == len(list(text_files.blocks(file)))
    assert contents(finished(again)) == contents(finished(once))
    assert resumed.fingerprint == whole.fingerprint and resumed.skipped == whole.skipped
    assert [number for _, number, _ in resumed.skipped] == [3, 251]
    kept = {path.name for path in (again / "data").iterdir() if path.suffix != ".lock"}
    assert kept == {finished(again).name}
    for array in ("dense.npy", "labels.npy", "ids.C3.npy"):  # files that were there stayed the same files
        if part / array in done:
            assert (finished(again) / array).stat().st_mtime_ns == done[part / array]


@pytest.mark.parametrize("n", [0, 5])
def test_kill_and_resume_over_several_days(tmp_path, monkeypatch, n):
    """n blocks behind the end of the first day: at it, and in the second one (a .gz), which has a bad line."""
    monkeypatch.setattr(text_files, "BLOCK", 4000)
    folder = tmp_path / "days"
    folder.mkdir()
    (folder / "day_0").write_text("".join(many(110, 0)))
    (folder / "day_3.gz").write_bytes(gzip.compress("".join([*many(110, 3), "what\n"]).encode()))
    n += len(list(text_files.blocks(folder / "day_0")))
    code = KILLED.format(what="large_files.save_file", n=n, name="criteo-terabyte", path=str(folder), bad_lines="skip")
    _, status, errors = run(code, tmp_path / "again")
    assert status == -signal.SIGKILL, errors
    found = {}
    for cache in ("once", "again"):
        monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / cache))
        with pytest.warns(UserWarning, match="skipped: 1, rows kept: 220; the first: day_3.gz, l"):
            load_dataset("criteo-terabyte", path=folder, bad_lines="skip", min_count=2)
        found[cache] = contents(finished(tmp_path / cache))
    assert found["once"] == found["again"]


@pytest.mark.parametrize("damage", ["cut off", "cut otherwise"])
def test_blocks_that_cannot_be_used_are_parsed_again(file, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(text_files, "BLOCK", 4000 if damage == "cut off" else 5000)  # the killed call: 4000
    cache = tmp_path / "cache"
    monkeypatch.setenv("DRSROBUST_CACHE", str(cache))
    name, path = "criteo-sample/dlrm", str(file)
    run(KILLED.format(what="large_files.save_file", n=8, name=name, path=path, bad_lines="skip"), cache)
    block = sorted(cache.glob("data/.*.part/raw/*.safetensors"))[4]
    if damage == "cut off":
        block.write_bytes(block.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
        resumed = load_dataset(name, path=path, bad_lines="skip", min_count=2)
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
        assert resumed.fingerprint == load_dataset(name, path=path, bad_lines="skip", min_count=2).fingerprint


def test_a_finished_set_that_was_damaged_before_its_rename_is_made_again(file, tmp_path, monkeypatch):
    cache, name = tmp_path / "cache", "criteo-sample/dlrm"
    monkeypatch.setenv("DRSROBUST_CACHE", str(cache))
    run(KILLED.format(what="cache._publish", n=1, name=name, path=str(file), bad_lines="skip"), cache)
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
        monkeypatch.setattr(text_files, "BLOCK", size)
        monkeypatch.setattr(large_files, "STRIPE", size // 50)
        monkeypatch.setattr(large_files, "CHUNK", size // 70)
        monkeypatch.setattr(large_files, "HASH_CHUNK", size // 90)
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
    table = large_files.Raw(tmp_path)
    written = {name: [] for name in ("label", "dense", *ranges)}
    for number, rows in enumerate((50, 0, 7)):
        block = {name: rng.integers(low, high, rows) for name, (low, high) in ranges.items()}
        if rows:
            block["edge"][:2] = (-1, 2**32 - 2)
        block |= {"label": rng.integers(0, 2, rows), "dense": rng.normal(size=rows).astype(np.float32)}
        table.add(f"000-{number:06}", block, [])
        for name, values in block.items():
            written[name].append(values)
    for again in (table, large_files.Raw(tmp_path)):
        assert len(again) == 57
        for name, parts in written.items():
            values, low = again.column(name)
            expected = np.concatenate(parts)
            back = values if name == "dense" else values.astype(np.uint64) + np.uint64(low % 2**64)
            assert np.array_equal(back if name == "dense" else back.astype(np.int64), expected), name
    assert table.column("edge")[0].dtype == np.uint32 and table.column("small")[0].dtype == np.uint8
