"""Locks of files and folders: one holder at a time. Private folders; what is in the way of writing is named."""

import errno
import fcntl
import grp
import os
import pwd
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from drsrobust._files import cache_folder, new_file, new_folder, warn_of_writers
from drsrobust._locks import exclusive
from drsrobust._private import private_folder
from drsrobust_extras.data.other_files import other_file

TRY = """
import sys
from pathlib import Path
from drsrobust._locks import exclusive
try:
    with exclusive(Path(sys.argv[1]), wait=False):
        print("in")
except BlockingIOError:
    print("out")
"""


def another_process(path):
    """Whether another process gets the lock."""
    return subprocess.run([sys.executable, "-c", TRY, path], capture_output=True, text=True, check=True).stdout.strip()


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "set"
    with exclusive(path):
        assert another_process(path) == "out"
        with pytest.raises(BlockingIOError, match="set is locked by another process"), exclusive(path, wait=False):
            pass
        with exclusive(tmp_path / "other", wait=False):  # other paths are free
            pass
    assert another_process(path) == "in"


def test_an_error_frees_the_lock(tmp_path):
    with pytest.raises(KeyError), exclusive(tmp_path / "set"):
        raise KeyError
    with exclusive(tmp_path / "set", wait=False):
        pass


HOLD = """
import sys, time
from pathlib import Path
from drsrobust._private import private_folder
with private_folder(Path(sys.argv[1])) as folder:
    (folder / "content").write_text("content")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_only_what_a_killed_process_left_is_deleted(tmp_path, start):
    process = start([sys.executable, "-c", HOLD, tmp_path / "set"], stdout=subprocess.PIPE, text=True)
    left = Path(process.stdout.readline().strip())
    with private_folder(tmp_path / "set") as folder:
        assert folder != left and (left / "content").is_file()  # it is in use
    process.kill()
    process.wait()
    assert (left / "content").is_file()
    with private_folder(tmp_path / "set") as folder:
        assert not left.exists() and folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in tmp_path.iterdir()] == []


def warned_of(folder):
    """The warnings of two calls."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_writers(folder)
        warn_of_writers(folder)
    return caught


@pytest.mark.parametrize(
    ("mode", "parent", "warned"),
    [
        (0o755, 0o755, None),
        (0o777, 0o755, "store"),
        (0o1777, 0o755, "store"),
        (0o755, 0o777, "."),
        (0o755, 0o1777, None),
    ],
)
def test_folders_that_others_may_write_to_are_named_once(tmp_path, mode, parent, warned):
    folder = tmp_path / "parent" / "store"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    folder.parent.chmod(parent)
    caught = warned_of(folder)
    place = folder.parent / warned if warned else None
    said = [f"other users may write to {place} (mode", f"read from {folder}; chmod go-w {place}"] if warned else []
    assert len(caught) == bool(warned) and all(text in str(caught[0].message) for text in said)


def test_what_is_in_the_way_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "dangling"))
    hint = ", or set DRSROBUST_CACHE to another folder"
    for writing, said in (
        (new_file(tmp_path / "file" / "below" / "x"), "file is a file; it must be a folder$"),
        (new_file(tmp_path / "dangling" / "data" / "x"), f"dangling is a link to .*nowhere, .*{hint}"),
        (new_file(tmp_path / "folder"), "folder is a folder; a file"),
        (exclusive(cache_folder("data", "x")), f"dangling is a link to .*nowhere, .*{hint}"),
    ):
        with pytest.raises(OSError, match=said), writing:
            pass
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for folder, said in ((tmp_path / "loop", "a link to itself"), ("~no_such_user/cache", "has no home folder")):
        monkeypatch.setenv("DRSROBUST_CACHE", str(folder))
        with pytest.raises(ValueError, match=f"DRSROBUST_CACHE is '{folder}', .*{said}"):
            cache_folder()


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """NumPy's and safetensors' errors have no number and no path."""
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "cache"))
    folder = cache_folder("data")
    said = f"No space left on device .{folder}.; make room, or set DRSROBUST_CACHE to another folder"
    for error in (
        OSError("6000 requested and 992 written"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        OSError(errno.ENOSPC, "No space left on device"),
    ):
        for write in (new_file, new_folder):
            with pytest.raises(OSError, match=said) as caught, write(folder / "x"):
                raise error
            assert caught.value.errno == errno.ENOSPC and not list(folder.iterdir())
    with pytest.raises(ValueError, match="^No space left$"), new_file(folder / "x"):
        raise ValueError("No space left")  # another matter


@pytest.fixture
def read_only():
    """A folder that this process, no longer root, cannot write to."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        yield Path(folder)
        if root:
            os.seteuid(0)
        os.chmod(folder, 0o755)


def test_a_read_only_folder_is_named(read_only, monkeypatch):
    monkeypatch.setenv("DRSROBUST_CACHE", str(read_only))
    said = f"{read_only} is not writable .Permission denied.; make it so, or set DRSROBUST_CACHE to another folder"
    for write in (
        lambda: exclusive(cache_folder("data", "x")),
        lambda: exclusive(read_only / "x"),
        lambda: new_folder(read_only / "x"),
    ):
        with pytest.raises(PermissionError, match=said), write():
            pass
    with pytest.raises(PermissionError, match=said), new_file(read_only / "x") as part:
        part.write_text("")


@pytest.mark.parametrize(
    ("name", "members", "alone"),
    [("{user}", [], True), ("{user}", ["{user}"], True), ("{user}", ["{user}", "eve"], False), ("staff", [], False)],
)
def test_a_group_of_one_user_is_no_other(tmp_path, monkeypatch, name, members, alone):
    """Where each user has a group of the same name, folders are often writable by it."""
    tmp_path.chmod(0o775)
    user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(tmp_path.stat().st_gid)
    found = group.__class__((name.format(user=user), "x", group.gr_gid, [one.format(user=user) for one in members]))
    monkeypatch.setattr(grp, "getgrgid", lambda number: found)
    assert len(warned_of(tmp_path)) == (not alone)


@pytest.mark.parametrize("wait", [True, False])
def test_a_file_system_without_locks_is_not_a_lock_that_is_held(wait, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with (
        pytest.raises(OSError, match=r"s.lock cannot be locked \(No locks available\); use a folder on a file system"),
        exclusive(tmp_path / "s", wait=wait),
    ):
        pytest.fail("it was locked")


def test_new_files_and_folders(tmp_path):
    """Their temporary names cannot be guessed: others could make a link of this name. What a killed process left goes."""
    (tmp_path / "own").write_text("my own")
    guess, stale, foreign = (
        tmp_path / name for name in (f".x.{os.getpid()}.part", f".y.{'0' * 16}.part", ".y.draft.part")
    )
    guess.symlink_to(tmp_path / "own")
    for folder in (stale, foreign):
        folder.mkdir()
    names = set()
    for _ in range(2):
        with new_file(tmp_path / "x") as part:
            names.add(part)
            part.write_text("text")
        with exclusive(tmp_path / "y"), new_folder(tmp_path / "y") as part:
            names.add(part)
            (part / "a").write_text("a")
    assert len(names) == 4 and guess not in names and (tmp_path / "own").read_text() == "my own"
    assert set(tmp_path.glob(".*.part")) == {guess, foreign}
    assert (tmp_path / "x").read_text() == "text" and (tmp_path / "y" / "a").exists()


SAVED = {
    "pt": lambda path: torch.save({"w": torch.ones(500)}, path),
    "safetensors": lambda path: save_file({"w": torch.ones(500)}, path),
    "parquet": lambda path: pd.DataFrame({"a": range(500)}).to_parquet(path),
    "feather": lambda path: pd.DataFrame({"a": range(500)}).to_feather(path),
}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize("kind", SAVED)
def test_what_lies_in_place_of_a_file_is_said(tmp_path, kind):
    path = tmp_path / f"file.{kind}"
    SAVED[kind](path)
    whole = path.read_bytes()
    assert other_file(path) is None
    found = {whole[:end]: "the file is cut off" for end in (-1, len(whole) // 2, 100)}
    found |= {LFS: "Git LFS pointer; `git lfs pull`", b"": "empty", b"\n<!DOCTYPE HTML><p>": "a web page"}
    for content, said in found.items():
        path.write_bytes(content)
        assert said in other_file(path)
    path.write_bytes(b"1,2,3\n")
    assert other_file(path) is None
