"""Locks of files and folders: one holder at a time, also where somebody deletes the file of the lock."""

import fcntl
import subprocess
import sys
import threading

import pytest

from drsrobust._files import exclusive

TRY = """
import sys
from pathlib import Path
from drsrobust._files import exclusive
try:
    with exclusive(Path(sys.argv[1]), wait=False):
        print("in")
except BlockingIOError:
    print("out")
"""


def another_process(path):
    """Whether another process gets the lock."""
    return subprocess.run([sys.executable, "-c", TRY, path], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("delete", [False, True])
def test_one_holder_at_a_time(tmp_path, delete):
    path, lock = tmp_path / "set", tmp_path / "set.lock"
    with exclusive(path):
        if delete:
            lock.unlink()
        assert another_process(path) == "out"
        with pytest.raises(BlockingIOError), exclusive(path, wait=False):
            pass
        with exclusive(tmp_path / "other", wait=False):  # other paths are free
            pass
    assert another_process(path) == "in"


@pytest.mark.parametrize("delete", [False, True])
def test_who_waits_comes_in_afterwards(tmp_path, delete):
    """And holds the file that has the path then, not one that was deleted meanwhile."""
    path, lock = tmp_path / "set", tmp_path / "set.lock"
    held, done = [], threading.Event()

    def wait():
        with exclusive(path):
            held.append("second")
            with open(lock) as handle, pytest.raises(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done.set()

    with exclusive(path):
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(0.3)  # until it waits
        if delete:
            lock.unlink()
        held.append("first")
    assert done.wait(30) and held == ["first", "second"]


def test_an_error_frees_the_lock(tmp_path):
    with pytest.raises(KeyError), exclusive(tmp_path / "set"):
        raise KeyError
    with exclusive(tmp_path / "set", wait=False):
        pass
