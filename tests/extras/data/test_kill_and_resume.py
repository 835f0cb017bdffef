"""A call after a killed one redoes no finished array and gives the same bytes."""

import os
import signal

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
    ("name", "what", "n", "damaged"),
    [
        ("criteo-sample/dlrm", "click_logs.pa.table", 8, False),  # while parsing, before the 8th block
        ("criteo-sample/fields", "click_logs.save_array", 12, False),  # while encoding, before the 12th array
        ("criteo-sample/dlrm", "click_logs.np.lib.format.write_array_header_1_0", 1, False),  # before the dense matrix
        ("criteo-sample/fields", "cache._publish", 1, False),  # when all is written, before it is renamed
        ("criteo-sample/fields", "cache._publish", 1, True),
    ],
)
def test_kill_and_resume(file, tmp_path, monkeypatch, warm_python, name, what, n, damaged):
    """Also where an array was damaged before it was renamed: it is made again."""
    once, again = tmp_path / "once", tmp_path / "again"
    monkeypatch.setenv("DRSROBUST_CACHE", str(once))
    options = {"path": file, "bad_lines": "skip", "min_count": 2}
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298"):
        whole = load_dataset(name, **options)

    code = KILLED.format(what=what, n=n, name=name, path=str(file), bad_lines="skip")
    killed = warm_python.run("-c", code, env=os.environ | {"DRSROBUST_CACHE": str(again)})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    part = next((again / "data").glob(".*.part"))
    done = {path for path in part.rglob("*") if path.is_file() and path.suffix != ".part"}
    assert (part / click_logs.RAW in done) == (what != "click_logs.pa.table")
    if damaged:
        labels, done = part / "labels.npy", set()
        labels.write_bytes(labels.read_bytes()[:-1] + b"x")
    saved, real_save = [], click_logs.save_array
    monkeypatch.setattr(click_logs, "save_array", lambda path, array: (saved.append(path), real_save(path, array)))
    if part / click_logs.RAW in done:
        monkeypatch.setattr(click_logs, "read_columns", None)  # not read again
    monkeypatch.setenv("DRSROBUST_CACHE", str(again))
    with pytest.warns(UserWarning, match="skipped: 2, rows kept: 298; the first: lines.txt, line 3: 1 fields"):
        resumed = load_dataset(name, **options)
    assert not set(saved) & done
    assert contents(finished(again)) == contents(finished(once))
    assert resumed.fingerprint == whole.fingerprint and resumed.skipped == whole.skipped
    assert [number for _, number, _ in resumed.skipped] == [3, 251]
    kept = {path.name for path in (again / "data").iterdir() if path.suffix != ".lock"}
    assert kept == {finished(again).name}


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
            for options in ({"min_count": 2}, {"hash_size": 50}):
                prints.append(load_dataset("criteo-sample", path=file, bad_lines="skip", **options).fingerprint)
    assert prints[:2] == prints[2:] and len(set(prints)) == 2
