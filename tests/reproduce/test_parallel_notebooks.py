"""Notebooks beside each other: in order, at the same time, and gone after an interrupt."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drsrobust._processes import process_context
from reproduce.notebooks import all_notebooks, read_notebook
from reproduce.profiles import load_profile
from reproduce.runner import ALONE, MODELS, run_notebooks, total_seconds
from tests.reproduce.test_parameters import write

DRAW = """
import os, pathlib
folder = pathlib.Path(os.environ["DRSROBUST_FIGURES"])
(folder / "data").mkdir(parents=True, exist_ok=True)
for ending in ("svg", "png"):
    (folder / f"{name}.{ending}").write_text(name)
(folder / "data" / f"{name}.csv").write_text(name)
"""
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
ROOT = Path(__file__).resolve().parents[2]
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
def test_they_see_the_environment_variables_of_their_start(tmp_path, monkeypatch):
    """Not those of the fork server, which may have begun before."""
    first = process_context().Process(target=int)
    first.start()  # and the server
    first.join()
    for name in ("10_one", "11_two"):
        write(tmp_path, f'name: str = "{name}"', DRAW + 'assert os.environ["SET_LATER"] == "1"', name=f"{name}.ipynb")
    found = {name: read_notebook(tmp_path / f"{name}.ipynb") for name in ("10_one", "11_two")}
    monkeypatch.setenv("SET_LATER", "1")
    outcomes = run_notebooks(dict.fromkeys(found, {}), found, tmp_path / "run", 2)
    assert [outcome.error for outcome in outcomes] == ["", ""]


@pytest.mark.long
def test_a_process_that_is_killed_is_named_as_such(tmp_path):
    """The process of the first notebook is killed by its kernel; the other notebook ends well."""
    cells = {"10_one": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)", "11_two": 'name = "11_two"' + DRAW}
    for name, cell in cells.items():
        write(tmp_path, 'own: str = ""', cell, name=f"{name}.ipynb")
    found = {name: read_notebook(tmp_path / f"{name}.ipynb") for name in cells}
    killed, good = run_notebooks(dict.fromkeys(found, {}), found, tmp_path / "run", 2)
    assert not killed.ok and "was killed by signal 9; memory may have run out" in killed.error and good.ok


def test_those_that_measure_run_alone(tmp_path, monkeypatch):
    """Notebooks that save measured times (`timed=True`) are in the list, and run one at a time; but for one that takes
    the CPU time of processes of its own."""
    timed = {name for name, one in all_notebooks().items() if "timed=True" in one.path.read_text()}
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
    ran.clear()
    monkeypatch.setattr("reproduce.runner.run_notebook", lambda notebook, *_: ran.append(notebook))
    list(run_notebooks(dict.fromkeys(notebooks, {}), notebooks, tmp_path, 1))
    assert ran == [MODELS, *others, *ALONE]


def test_notebooks_run_alone_in_profiles_whose_times_are_read():
    found = all_notebooks()
    assert load_profile("smoke", found, None).alone == () and load_profile("laptop", found, None).alone == ALONE
    seconds = {"00_models": 100, "01_bit_sensitivity": 10, "07_abft": 6}
    assert (total_seconds(seconds, 2), total_seconds(seconds, 2, alone=())) == (116, 110)


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
