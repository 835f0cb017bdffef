"""One run at a time in a folder, and none that outlives its make."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reproduce.__main__ import main
from reproduce.runner import locked

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from pathlib import Path
from reproduce.runner import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(300)
"""
# In place of the environment's python: the same process, with results elsewhere.
PYTHON = """#!/bin/sh
exec {python} "$@" 00_quickstart --out {out}
"""


@pytest.mark.parametrize("arguments", [[], ["--report"], ["--publish"]])
def test_a_second_run_is_refused_and_changes_nothing(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    monkeypatch.setattr("reproduce.runner.run_notebook", lambda *_: pytest.fail("a notebook was run"))
    record = tmp_path / "laptop" / "run.json"
    record.parent.mkdir()
    record.write_text("{}")
    with locked(tmp_path / "laptop"):
        assert main(["--profile", "laptop", "--out", str(tmp_path), *arguments]) == 2
    assert f"another run is writing to {record.parent} (process {os.getpid()})" in capsys.readouterr().err
    assert record.read_text() == "{}"


def test_a_killed_process_leaves_no_lock(tmp_path, start):
    holder = start([sys.executable, "-c", HOLD, str(tmp_path / "smoke")], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BlockingIOError, match=f"process {holder.pid}\\)"), locked(tmp_path / "smoke"):
        pytest.fail("two hold one lock")
    holder.kill()
    holder.wait()
    with locked(tmp_path / "smoke"):
        assert (tmp_path / "smoke.lock").read_text() == f"{os.getpid()}\n"


def pid_in(lock):
    return int(lock.read_text()) if lock.exists() and lock.read_text().endswith("\n") else None


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_a_killed_make_takes_its_run_along(tmp_path, start):
    stamp = tmp_path / "installed"
    stamp.touch()
    (tmp_path / "python").write_text(PYTHON.format(python=sys.executable, out=tmp_path / "build"))
    (tmp_path / "python").chmod(0o755)
    command = ["make", f"BIN={tmp_path}", f"STAMP={stamp}", "-o", str(stamp), "PROFILE=smoke", "reproduce"]
    make = start(command, cwd=ROOT, env=os.environ | {"DRSROBUST_CACHE": str(tmp_path / "cache"), "DATA": ""})
    lock, until = tmp_path / "build" / "smoke-part.lock", time.monotonic() + 60
    while (runner := pid_in(lock)) is None and time.monotonic() < until:
        time.sleep(0.05)
    assert alive(runner) and make.poll() is None
    make.send_signal(signal.SIGKILL)
    make.wait()
    while alive(runner) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(runner)


def test_a_run_whose_make_ended_before_it_does_not_start(tmp_path):
    """No process has the pid 0."""
    command = [sys.executable, "-m", "reproduce", "--list"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"DRSROBUST_MAKE": "0"}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "" and "make that started this has ended" in done.stderr
