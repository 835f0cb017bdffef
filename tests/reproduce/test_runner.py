"""Notebooks one by one and at the same time: in order, apart, portable, in shards, and gone with what started them."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from drsrobust_study.shards import end_of_shard, run_campaign
from reproduce.__main__ import _check_package, main
from reproduce.notebooks import ROOT, all_notebooks, read_notebook
from reproduce.portable import VARIABLES
from reproduce.runner import ALONE, MODELS, Run, locked, run_notebook, run_notebooks, side_by_side
from tests.reproduce.kernels import few_rows
from tests.reproduce.test_parameters import write

DRAW = """
import os, pathlib
folder = pathlib.Path(os.environ["DRSROBUST_FIGURES"])
(folder / "data").mkdir(parents=True, exist_ok=True)
for ending in ("svg", "png", "csv"):
    place = folder / "data" if ending == "csv" else folder
    (place / f"{name}.{ending}").write_text(str(globals().get("a", name)))
"""
SMALL = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35)); "
# IPython fails to format the exception.
UNSAID = "get_ipython().showtraceback = lambda *_, **__: None; 1 / 0"


def run(tmp_path, *cells, **parameters):
    tmp_path.mkdir(exist_ok=True)
    path = write(tmp_path, 'a: int = 1\nname: str = "10_test"', *cells)
    return run_notebook(read_notebook(path), parameters, tmp_path / "run")


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "run" / "notebooks").iterdir())


def test_a_good_run(tmp_path, capfd):
    outcome = run(tmp_path, DRAW, a=5)
    assert outcome.ok and outcome.figures == ["10_test"] and outcome.error == ""
    assert (tmp_path / "run" / "figures" / "10_test.svg").read_text() == "5"
    assert files(tmp_path) == ["10_test.ipynb"]
    assert "DRSROBUST_FIGURES" not in os.environ
    assert "TCP" not in capfd.readouterr().err


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A folder with a good run."""
    folder = tmp_path_factory.mktemp("drawn")
    assert run(folder, DRAW).ok
    return folder


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
def test_failures_are_kept_apart_and_leave_no_old_result(drawn, tmp_path, cell, says):
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    assert (tmp_path / "run" / "figures" / "10_test.svg").exists()
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


# Each says that it is there and waits for the other: alone none of them ends well.
MEET = """
import os, pathlib, time
place = pathlib.Path(meeting)
(place / name).write_text(" ".join(map(str, sorted(os.sched_getaffinity(0)))))
until = time.monotonic() + 60
while len(list(place.iterdir())) < 2:
    assert time.monotonic() < until, "nobody came"
    time.sleep(0.05)
"""
CALL = """
import signal
import sys
from pathlib import Path
from reproduce.notebooks import read_notebook
from reproduce.runner import run_notebooks
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits SIG_IGN
    folder = Path(sys.argv[1])
    found = {path.stem: read_notebook(path) for path in sorted(folder.glob("*.ipynb"))}
    list(run_notebooks({name: {"place": str(folder)} for name in found}, found, folder / "run", 2))
"""


@pytest.mark.long
def test_at_the_same_time_and_yielded_in_order(tmp_path):
    (tmp_path / "meeting").mkdir()
    names = ["10_one", "11_two", "12_wrong"]
    for name in names:
        cells = ["1 / 0"] if name == "12_wrong" else [MEET, DRAW]
        write(tmp_path, 'name: str = ""\nmeeting: str = ""', *cells, name=f"{name}.ipynb")
    found = {name: read_notebook(tmp_path / f"{name}.ipynb") for name in names}
    chosen = {name: {"name": name, "meeting": str(tmp_path / "meeting")} for name in names}
    outcomes = list(run_notebooks(chosen, found, tmp_path / "run", 2))
    assert [(outcome.notebook, outcome.ok) for outcome in outcomes] == list(
        zip(names, [True, True, False], strict=True)
    )
    assert "ZeroDivisionError" in outcomes[2].error and outcomes[0].figures == ["10_one"]
    assert (tmp_path / "run" / "figures" / "11_two.svg").read_text() == "11_two"
    one, two = ((tmp_path / "meeting" / name).read_text().split() for name in names[:2])
    assert one and (len(os.sched_getaffinity(0)) < 2 or not set(one) & set(two))  # each has its share of the cores


@pytest.mark.long
def test_a_process_that_is_killed_is_named_as_such(tmp_path):
    """The process of the first notebook is killed by its kernel; the other notebook ends well."""
    cells = {
        "10_one": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "11_two": 'name = "11_two"' + DRAW,
    }
    for name, cell in cells.items():
        write(tmp_path, 'own: str = ""', cell, name=f"{name}.ipynb")
    found = {name: read_notebook(tmp_path / f"{name}.ipynb") for name in cells}
    killed, good = run_notebooks(dict.fromkeys(found, {}), found, tmp_path / "run", 2)
    assert not killed.ok and "was killed by signal 9; memory may have run out" in killed.error and good.ok


def test_those_that_measure_run_alone(tmp_path, monkeypatch):
    """Notebooks that save measured times (`timed` in captions.toml) are in the list, and run one at a time; but for one that
    takes the CPU time of processes of its own."""
    captions = tomllib.loads((ROOT / "src" / "drsrobust_study" / "captions.toml").read_text())
    measured = [name for name, words in captions.items() if words.get("timed")]
    timed = {name for name in all_notebooks() if any(one.startswith(name) for one in measured)}
    assert timed - {"09_injection_speed"} == set(ALONE)
    ran = []

    def side_by_side(runs, jobs):
        ran.append((jobs, sorted(runs)))
        yield from dict.fromkeys(runs, None).items()

    monkeypatch.setattr("reproduce.runner.side_by_side", side_by_side)
    notebooks = {name: name for name in all_notebooks()}
    others = [name for name in notebooks if name not in (MODELS, *ALONE)]
    list(run_notebooks(dict.fromkeys(notebooks, {}), notebooks, tmp_path, 2))
    assert ran == [(2, [MODELS, *others]), (1, sorted(ALONE))]


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_end_leaves_no_kernel_behind(how, tmp_path, start):
    cell = 'import os, pathlib, time\n(pathlib.Path(place) / f"{os.getpid()}.pid").touch()\ntime.sleep(300)'
    for name in ("10_one", "11_two"):
        write(tmp_path, 'place: str = ""', cell, name=f"{name}.ipynb")
    (tmp_path / "call.py").write_text(CALL)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    process = start(
        [sys.executable, str(tmp_path / "call.py"), str(tmp_path)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while len(pids := [int(path.stem) for path in tmp_path.glob("*.pid")]) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(pids) == 2
    os.kill(process.pid, how) if how == signal.SIGKILL else os.killpg(process.pid, how)
    _, said = process.communicate(timeout=30)
    assert said.count("Traceback") == (how == signal.SIGINT), said
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


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


SMALL_RUN = {"models": ["fm"], "bers": [1e-2], "trials": 4, "plain_trials": 2, "test_rows": 500}
DRAWN = ["03_ber_sweep", "03_ber_sweep_rates", "03_ber_sweep_released"]


@pytest.mark.long
def test_a_notebook_in_shards_draws_the_figure_of_one_process(tmp_path, empty_cache, monkeypatch):
    def run(**parameters):
        runs = {
            name: Run(all_notebooks()["03_ber_sweep"], SMALL_RUN | own, tmp_path / name)
            for name, own in parameters.items()
        }
        for _, outcome in side_by_side(runs, 1):
            assert outcome.ok, outcome.error
            yield outcome.figures

    monkeypatch.setenv("IPYTHONDIR", few_rows(tmp_path))
    assert list(run(first={"shard": "0/2"}, second={"shard": "1/2"})) == [[], []]
    assert list(run(merged={"merge": [str(empty_cache / "campaigns")]})) == [DRAWN]
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "other"))
    assert list(run(alone={})) == [DRAWN]
    merged, alone = (
        pd.read_csv(tmp_path / name / "figures" / "data" / "03_ber_sweep.csv") for name in ("merged", "alone")
    )
    pd.testing.assert_frame_equal(merged, alone, check_exact=True)


def test_a_shard_or_a_merge(capsys):
    with pytest.raises(ValueError, match="0/2"):
        run_campaign(None, "0/2", ["folder"])
    end_of_shard("")
    with pytest.raises(SystemExit) as ended:
        end_of_shard("0/2")
    assert ended.value.code == 0 and "shard 0/2 has finished" in capsys.readouterr().out


SHOW = """
import json, os, sys
os.environ["DRSROBUST_CACHE"] = sys.argv[1]
from reproduce.portable import make_portable
make_portable()
import subprocess
show = "import json, numpy, torch, os; from numpy._core import _multiarray_umath as np_cpu;"
show += "kernels = [name for name in np_cpu.__cpu_dispatch__ if np_cpu.__cpu_features__[name]];"
show += "print(json.dumps([torch.backends.cpu.get_cpu_capability(), kernels, dict(os.environ)]))"
print(subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout)
"""


@pytest.mark.long
def test_later_processes_have_no_more_than_avx2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SHOW, str(tmp_path)], capture_output=True, text=True, check=True, env=os.environ
    )
    capability, kernels, variables = json.loads(done.stdout)
    assert capability in ("AVX2", "DEFAULT")  # DEFAULT: another architecture, or no AVX2
    assert not [name for name in kernels if name.startswith(("AVX512", "X86_V4"))]
    assert VARIABLES.items() <= variables.items() and variables["DRSROBUST_CACHE"] == str(tmp_path / "portable")


def test_a_run_is_of_one_checkout(tmp_path):
    """Else its record would name the commit of other notebooks."""
    package = tmp_path / "src" / "drsrobust" / "__init__.py"
    with pytest.raises(ValueError) as refused:
        _check_package(package)
    assert {str(package.parent), str(ROOT)} <= set(str(refused.value).replace(",", " ").replace(":", " ").split())
    _check_package()
