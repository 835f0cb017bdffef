"""Locks of files and folders: one holder at a time."""

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


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "set"
    with exclusive(path):
        assert another_process(path) == "out"
        with pytest.raises(BlockingIOError, match="set is locked by another process"), exclusive(path, wait=False):
            pass
        with exclusive(tmp_path / "other", wait=False):  # other paths are free
            pass
    assert another_process(path) == "in"


def test_a_waiting_thread_gets_the_lock_next(tmp_path):
    path, held, done = tmp_path / "set", [], threading.Event()

    def wait():
        with exclusive(path):
            held.append("second")
        done.set()

    with exclusive(path):
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(0.3)  # until it waits
        held.append("first")
    assert done.wait(30) and held == ["first", "second"]


def test_an_error_frees_the_lock(tmp_path):
    with pytest.raises(KeyError), exclusive(tmp_path / "set"):
        raise KeyError
    with exclusive(tmp_path / "set", wait=False):
        pass
