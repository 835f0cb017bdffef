import errno
import os
import re
from pathlib import Path

import pytest

from reproduce.notebooks import read_notebook
from reproduce.runner import run_notebook
from tests.reproduce.test_parameters import write

DRAW = """
import os, pathlib
folder = pathlib.Path(os.environ["DRSROBUST_FIGURES"])
(folder / "data").mkdir(parents=True, exist_ok=True)
for name in ("10_test.svg", "10_test.png", "data/10_test.csv"):
    (folder / name).write_text(str(a))
"""
SMALL = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35)); "
# IPython fails to format the exception.
UNSAID = "get_ipython().showtraceback = lambda *_, **__: None; 1 / 0"


def run(tmp_path, *cells, **parameters):
    tmp_path.mkdir(exist_ok=True)
    return run_notebook(read_notebook(write(tmp_path, "a: int = 1", *cells)), parameters, tmp_path / "run")


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "run" / "notebooks").iterdir())


def test_a_good_run(tmp_path, capfd):
    outcome = run(tmp_path, DRAW, a=5)
    assert outcome.ok and outcome.figures == ["10_test"] and outcome.error == ""
    assert (tmp_path / "run" / "figures" / "10_test.svg").read_text() == "5"
    assert files(tmp_path) == ["10_test.ipynb"]
    assert "DRSROBUST_FIGURES" not in os.environ
    assert "TCP" not in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "Kernel died; memory may have run out"),
        (SMALL + "bytearray(2**40)", "MemoryError; memory ran out"),
        (SMALL + "import torch; torch.empty(2**38)", "can't allocate memory"),
        ("import sys; print('x\\nMemoryError', file=sys.stderr); " + UNSAID, "MemoryError; memory ran out"),
        ("import sys; sys.exit(0)", "ended without its figure"),
        ("pass", "ended without its figure"),
    ],
)
def test_failures_are_kept_apart_and_leave_no_old_result(tmp_path, cell, says):
    assert run(tmp_path, DRAW).ok
    outcome = run(tmp_path, cell)
    assert not outcome.ok and says in outcome.error and outcome.figures == []
    assert files(tmp_path) == ["10_test.failed.ipynb"]
    assert outcome.output == "notebooks/10_test.failed.ipynb"
    assert not (tmp_path / "run" / "figures" / "10_test.svg").exists()


def test_wrong_parameters_start_no_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduce.runner._execute", lambda *_: pytest.fail("a kernel was started"))
    with pytest.raises(ValueError, match="unknown parameter of 10_test 'b'"):
        run(tmp_path, b=1)
    with pytest.raises(TypeError, match="'a' is '5'"):
        run(tmp_path, a="5")
    assert not Path(tmp_path / "run").exists()


def test_a_full_disk_is_named_and_leaves_no_part_of_a_notebook(tmp_path, monkeypatch):
    import papermill

    tried = []

    def full(source, output, **_):
        tried.append(output)
        Path(output).write_text('{"cells": [')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(papermill, "execute_notebook", full)
    outcome = run(tmp_path, DRAW)
    assert not outcome.ok and len(tried) == 1 and files(tmp_path) == []
    said = r"OSError: \[Errno 28\] No space left on device; free space: [\d,.]+ MiB in (\S+), [\d,.]+ MiB in (\S+), "
    assert re.match(said, outcome.error).groups() == (str(tmp_path / "run"), os.environ["DRSROBUST_CACHE"])


@pytest.mark.long
def test_memory_and_cpu_time_are_those_of_the_kernel_and_what_it_starts(tmp_path):
    grow = "import subprocess, sys, time; block = bytearray(300 * 2**20); del block; time.sleep(1.2)"
    busy = "'import time\\nwhile time.process_time() < 3: pass\\ntime.sleep(1.2)'"
    grow += f"; subprocess.run([sys.executable, '-c', {busy}])"
    plain, grown = run(tmp_path / "plain", DRAW + "\nimport time; time.sleep(1.2)"), run(tmp_path / "grown", DRAW, grow)
    assert 30 < plain.peak_mib < 300 < grown.peak_mib - plain.peak_mib + 5 < 400
    assert 2 < grown.cpu_seconds - plain.cpu_seconds < 5 and plain.cpu_seconds > 0.1
