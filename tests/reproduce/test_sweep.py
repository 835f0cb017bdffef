"""Sweeps: how they are read, what is refused in a line, and one that is killed and goes on."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from reproduce import __main__
from reproduce.notebooks import all_notebooks, read_notebook
from reproduce.profiles import Profile, load_profile
from reproduce.sweep import read_assignments, read_grid
from reproduce.sweep_result import read_result
from tests.refusals import refuses
from tests.reproduce.test_parameters import write

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = all_notebooks()
SMOKE = load_profile("smoke", NOTEBOOKS, None)
# A notebook with a curve and a picture, which counts its runs, and stops for good at `stop` until the file `go` is there.
CELL = """
import pathlib, time
import pandas as pd
import drsrobust as dr
place = pathlib.Path(log)
with open(place / "ran", "a") as file:
    file.write(f"{seed} {trials}\\n")
if trials > 8:
    raise ValueError(f"trials must be at most 8, got {trials}")
while seed == stop and not (place / "go").exists():
    time.sleep(0.05)
curve = {"ber": [1e-5, 1e-3], "seed": [7, 7], "auc": [0.8, 0.5 + seed / 100], "auc_low": [0.79, 0.5], "auc_high": [0.81, 0.6]}
curve["model"] = "dlrm"
more = pd.DataFrame({"value": [seed, 2.0]})
for name, data in (("10_test", pd.DataFrame(curve)), ("10_test_more", more), ("10_test_same", pd.DataFrame(curve))):
    (ax,) = dr.plots.new_panels()
    ax.plot(range(2), data.iloc[:, 0], label="x")
    title = "One for all." if name == "10_test_same" else f"A message of {seed}."
    dr.plots.save(ax, name, data, "A test.", title=title, appendix=name == "10_test_more")
"""
PARAMETERS = 'trials: int = 1\nseed: int = 0\nlog: str = ""\nstop: int = -1\nnames: list[str] = []'
# `python -m reproduce` with that notebook alone.
MAIN = """
import sys
from pathlib import Path
from reproduce import __main__
from reproduce.notebooks import read_notebook
from reproduce.profiles import Profile
if __name__ == "__main__":
    notebook = read_notebook(Path(sys.argv[1]))
    values = {name: parameter.default for name, parameter in notebook.parameters.items()}
    __main__.all_notebooks = lambda: {notebook.name: notebook}
    __main__.load_profile = lambda *_, **__: Profile("smoke", {notebook.name: values}, False, (), ())
    sys.exit(__main__.main(sys.argv[2:]))
"""


def sweep(*words):
    return read_assignments(words, NOTEBOOKS, SMOKE)


def grid(tmp_path, text, encoding="utf-8"):
    (tmp_path / "sweep.toml").write_text(text, encoding)
    return read_grid(tmp_path / "sweep.toml", NOTEBOOKS, SMOKE)


def test_commas_and_ranges_are_values():
    found = sweep("03_ber_sweep", "seed=0..2", "trials=50,20", "test_rows=1000")
    names = [f"trials={trials},seed={seed}" for trials in (20, 50) for seed in (0, 1, 2)]
    assert list(found.points) == names and found.points[names[-1]] == {"trials": 50, "seed": 2}  # fewest trials first
    assert found.varied == ["trials", "seed"] and found.fixed["test_rows"] == 1000
    whole = found.parameters("trials=20,seed=1")
    assert whole == SMOKE.parameters["03_ber_sweep"] | {"trials": 20, "seed": 1, "test_rows": 1000}
    assert list(sweep("11_one_flip", "seed=0..2,5").points) == ["seed=0", "seed=1", "seed=2", "seed=5"]
    assert list(sweep("11_one_flip", "model_name=dlrm,fm", "seed=3").points) == ["model_name=dlrm", "model_name=fm"]


def test_a_list_and_a_quoted_value_are_one_value():
    found = sweep("03_ber_sweep", "bers=[[1e-3],[1e-3,1e-2]]", "models=dlrm,fm")
    assert list(found.points) == ["bers=0.001", "bers=0.001+0.01"] and found.fixed["models"] == ["dlrm", "fm"]
    assert found.points["bers=0.001"] == {"bers": [1e-3]}
    protected = sweep("06_selective_bit_protection", "protected=[[30],[31]]", "seed=0,1").fixed["protected"]
    assert protected == [[30], [31]]
    unquoted = sweep("03_ber_sweep", "models=[[dlrm],[fm, wide_deep]]", "datasets=[movielens-1m/ids]")
    assert [point["models"] for point in unquoted.points.values()] == [["dlrm"], ["fm", "wide_deep"]]
    assert unquoted.fixed["datasets"] == ["movielens-1m/ids"]
    found = sweep("11_one_flip", "target='a,b'", "seed=0,1")
    assert found.fixed["target"] == "a,b" and len(found.points) == 2
    assert [point["target"] for point in sweep("11_one_flip", "target='a,b','c'").points.values()] == ["a,b", "c"]


def test_a_file_is_the_same_sweep_as_the_command_line(tmp_path):
    here = sweep("03_ber_sweep", "seed=0..1", "trials=4,8", "models=dlrm")
    text = 'notebook = "03_ber_sweep"\n[fixed]\nmodels = ["dlrm"]\n[grid]\ntrials = [8, 4]\nseed = [1, 0]\n'
    there = grid(tmp_path, text)
    assert there.identity == here.identity and set(there.points) == set(here.points)
    assert sweep("03_ber_sweep", "seed=0..1", "trials=4,8", "models=fm").identity != here.identity
    paired = grid(tmp_path, text.replace("[grid]", "[zip]"))
    assert paired.points == {"trials=4,seed=0": {"trials": 4, "seed": 0}, "trials=8,seed=1": {"trials": 8, "seed": 1}}
    assert paired.identity != here.identity


def test_a_sweep_after_an_edit_of_the_code_is_another_one(tmp_path, monkeypatch):
    before = sweep("03_ber_sweep", "seed=0..1").identity
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setattr("reproduce.sweep.drsrobust_study", SimpleNamespace(__file__=str(tmp_path / "__init__.py")))
    other = sweep("03_ber_sweep", "seed=0..1").identity
    (tmp_path / "part.py").write_text("x = 1")
    assert len({before, other, sweep("03_ber_sweep", "seed=0..1").identity}) == 3


def test_names_of_folders_are_safe_and_differ():
    names = list(sweep("11_one_flip", "dataset=a/b,a?b,A?b,../c", "target=" + "x" * 300 + ",y").points)
    assert len({name.casefold() for name in names}) == 8
    assert all(re.fullmatch(r"dataset=[\w.,=+-]+", name) and len(name) < 120 and "/" not in name for name in names)


A = "11_one_flip"
B = "03_ber_sweep"
REFUSED = [  # words, exception, what the message names
    (["03_ber_swep", "seed=0,1"], ValueError, "03_ber_swep", B),
    ([B, "trails=4,8"], ValueError, "trails", "trials"),
    ([B, "trials=4,many"], TypeError, "trials", "many"),
    ([B, "bers=[[1e-3],['x']]"], TypeError, "bers", "['x']"),
    ([B, "bers=[[1e-3],[x]]"], TypeError, "bers", "['x']"),
    ([B, "seed=0,1,0"], ValueError, "seed=0"),
    ([B, "seed=2..0"], ValueError, "seed=2..0"),
    ([B, "seed=0..99999999"], ValueError, "0..99999999", "100,000,000"),
    ([B, "seed=0..999", "trials=1..99"], ValueError, "1000 of seed", "99,000"),
    ([B, "bers=" + "[" * 3000, "seed=0,1"], TypeError, "bers"),
    ([A, "target=c,'a,b'"], ValueError, "target=c,'a,b'"),
    ([B, "seed=1"], ValueError, "seed=0..2"),
    ([B, "models=dlrm,fm"], ValueError, "'models=[[dlrm],[fm]]'"),
    ([B, "slow=['a b',c]", "seed=1"], ValueError, "'slow=[[\"a b\"],[c]]'"),
    ([B, "04_component_vulnerability", "seed=0,1"], ValueError, B, "04_component_vulnerability"),
    (["seed=0,1"], ValueError, "none"),
]
HEAD = f"notebook = '{B}'\n"
NO_FILES = [  # text of a file, exception, what the message names
    ("[grid]\nseed=[0]", ValueError, "notebook"),
    ("notebook = ['a']\n[grid]\nseed=[0]", ValueError, "['a']"),
    (HEAD + "[grids]\nseed=[0]", ValueError, "grids", "'grid'"),
    (HEAD + "[grid]\nseed=[0]\n[zip]\ntrials=[1]", ValueError, "[grid]", "[zip]"),
    (HEAD, ValueError, "[grid]", "[zip]"),
    (HEAD + "[grid]\nseed=1", TypeError, "seed", 1),
    (HEAD + "[grid]\nbers=[1e-3]", TypeError, "bers", [0.001]),
    (HEAD + "[fixed]\nseed=1\n[grid]\nseed=[0]", ValueError, "seed"),
    (HEAD + "[zip]\nseed=[0, 1]\ntrials=[4, 8, 9]", ValueError, "seed has 2", "trials has 3"),
    (HEAD + f"[grid]\nseed={'[' * 3000}{']' * 3000}", ValueError, "sweep.toml"),
    (HEAD + "# caf\xe9\n[grid]\nseed=[0, 1]", ValueError, "sweep.toml", "UTF-8"),
]


@pytest.mark.parametrize(("words", "error", "said"), [(words, error, said) for words, error, *said in REFUSED])
def test_what_is_no_sweep(words, error, said):
    refuses(lambda: sweep(*words), error, *said)


@pytest.mark.parametrize(("text", "error", "said"), [(text, error, said) for text, error, *said in NO_FILES])
def test_what_is_no_file_of_a_sweep(text, error, said, tmp_path):
    refuses(lambda: grid(tmp_path, text, "latin-1"), error, *said)


NOT_RUN = [
    [B, "seed=0..99999999", "--sweep"],
    ["--grid", "nowhere.toml"],
    ["--grid", "nowhere.toml", "seed=1"],
    [B, "trials=2,4"],
    [B, "models=[[dlrm],[fm]]"],
    [A, "model_name=dlrm,fm"],
    [B, "seed=0", "--result", f"{B}:auc"],
    [B, "seed=0,1", "--sweep", "--result", f"{B}:auk"],
]


@pytest.mark.parametrize("words", NOT_RUN)
def test_a_refusal_is_a_line(words, tmp_path, capsys):
    assert __main__.main([*words, "--profile", "smoke", "--out", str(tmp_path / "build")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("reproduce: ") and said.count("\n") == 1 and not (tmp_path / "build").exists()


@pytest.fixture
def call(tmp_path):
    write(tmp_path, PARAMETERS, CELL, result="10_test:auc,ber=0.001")
    (tmp_path / "main.py").write_text(MAIN)
    words = ["10_test", f"log={tmp_path}", "--sweep", "--out", str(tmp_path / "build")]
    return [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "10_test.ipynb"), *words]


def environ():
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}


def run(call, *words):
    return subprocess.run([*call, *words], env=environ(), capture_output=True, text=True, timeout=120)


@pytest.fixture
def here(call, tmp_path, monkeypatch):
    """`run` in this process, for calls that start no notebook; gives the exit status."""
    notebook = read_notebook(tmp_path / "10_test.ipynb")
    values = {name: parameter.default for name, parameter in notebook.parameters.items()}
    monkeypatch.setattr(__main__, "all_notebooks", lambda: {notebook.name: notebook})
    monkeypatch.setattr(__main__, "load_profile", lambda *_, **__: Profile("smoke", {"10_test": values}, False, (), ()))
    return lambda *words: __main__.main([*call[3:], *words])


def ran(tmp_path):
    return sorted((tmp_path / "ran").read_text().splitlines())


@pytest.mark.long
def test_a_sweep_that_is_killed_goes_on(call, here, tmp_path, start, capsys):
    words = ["seed=0..2", "stop=1"]
    process = start([*call, *words], env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("build/*/*/point.json"))) < 2:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert ran(tmp_path) == ["0 1", "1 1", "2 1"]
    (folder,) = (path for path in (tmp_path / "build").iterdir() if path.is_dir())
    assert folder.name.startswith("smoke-sweep-") and not (folder / "seed=1" / "notebooks" / "10_test.ipynb").exists()
    assert here(*words, "--plan") == 0
    expected = [("seed=0", "finished"), ("seed=1", ""), ("seed=2", "finished")]
    assert re.findall(r"^(seed=\d) +(finished)?", capsys.readouterr().out, re.MULTILINE) == expected
    (tmp_path / "go").touch()
    done = run(call, *words)
    assert done.returncode == 0, done.stderr
    assert f"sweep of 10_test: 3 points, 2 finished earlier; {folder}" in done.stdout
    assert ran(tmp_path) == ["0 1", "1 1", "1 1", "2 1"]  # the half of a point is done again, the others are not
    table = pd.read_csv(folder / "sweep.csv")
    curve = table[table["figure"] == "10_test"].dropna(axis=1, how="all")
    columns = ["point", "seed", "figure", "ber", "figure_seed", "auc", "auc_low", "auc_high", "model"]
    assert list(curve) == columns and curve["seed"].tolist() == [0, 0, 1, 1, 2, 2] and set(curve["figure_seed"]) == {7}
    assert curve["auc"].tolist() == [0.8, 0.5, 0.8, 0.51, 0.8, 0.52]
    points = pd.read_csv(folder / "points.csv")
    assert points["status"].tolist() == 3 * ["done"] and points["seed"].tolist() == [0, 1, 2]
    check_page(folder, ["seed=0", "seed=1", "seed=2"])
    assert here(*words) == 0 and len(ran(tmp_path)) == 4


def check_page(folder, points):
    page = (folder / "index.html").read_text()
    for link in re.findall(r'(?:href|src)="([^"#]+)"', page):
        assert (folder / link.replace("%3D", "=").replace("%2C", ",")).is_file(), link
    assert page.count("<figure>") == 2 + len(points) + 1 and "0.51 [0.5, 0.6]" in page
    pictures = re.findall(r'src="([^"]+)"', page)
    assert pictures[:2] == ["figures/result.svg", "figures/10_test.svg"] and len(set(pictures)) == len(pictures)
    assert all(f"A message of {point[-1]}." in page for point in points)


@pytest.mark.long
def test_a_failed_point_does_not_end_the_others(call, tmp_path):
    done = run(call, "trials=1,9", "seed=3")
    assert done.returncode == 1
    said = "ValueError: trials must be at most 8, got 9"
    assert f"reproduce: trials=9 failed: {said}\n" in done.stderr and "1 of 2 points failed" in done.stderr
    assert "Traceback" not in done.stderr
    (folder,) = (path for path in (tmp_path / "build").iterdir() if path.is_dir())
    points = pd.read_csv(folder / "points.csv")
    assert points["status"].tolist() == ["done", "failed"] and points["error"][1] == said
    assert set(pd.read_csv(folder / "sweep.csv")["trials"]) == {1}
    assert "1 of 2 points have none" in (folder / "index.html").read_text()
    assert run(call, "trials=1,9", "seed=3").returncode == 1
    assert ran(tmp_path) == ["3 1", "3 9", "3 9"]  # the failed point alone is tried again


PAGE = (ROOT / "docs" / "sweeps.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
(TOML,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# Stands for the run of the notebooks: all is checked up to there; what would run is written as their table would be.
INSTEAD = """
import sys
import reproduce.__main__ as program

def run_sweep(sweep, notebooks, folder, *_):
    lines = ["point,trials,seed,figure,model,ber,auc,share"]
    for point in sweep.points:
        p = sweep.parameters(point)
        values = f'"{point}",{p["trials"]},{p["seed"]}'
        lines += [f"{values},03_ber_sweep,{model},{ber},0.{p['seed']}," for model in p["models"] for ber in p["bers"]]
        lines += [f"{values},03_ber_sweep_scores,,,,0.5"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.csv").write_text("\\n".join(lines))
    return 0

program._run_sweep = run_sweep
assert sys.argv[1:3] == ["-m", "reproduce"], sys.argv
sys.exit(program.main(sys.argv[3:]))
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder in which `.venv/bin/python -m reproduce` runs no notebook."""
    (tmp_path / "instead.py").write_text(INSTEAD)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/instead.py" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bash(script):
    done = subprocess.run(["bash", "-eu", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_sweep_its_file_and_the_reading_of_its_table(checkout, capsys):
    """The file is the sweep of the command line, so its results lie in the same folder."""
    command, file = (script for script in SHELL if "#SBATCH" not in script)
    bash(f"{command.strip()} --out build")
    (table,) = checkout.glob("build/laptop-sweep-*/sweep.csv")
    written = table.read_text()
    table.unlink()
    (checkout / "sweep.toml").write_text(TOML)
    bash(f"{file.strip()} --out build")
    assert table.read_text() == written and "trials=50,seed=2" in written
    exec(compile(PYTHON[0], "sweeps.md", "exec"), {})
    printed = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert {tuple(line[-3:]) for line in printed} == {("0.1", "0.0", "0.2")}
    assert [line[:2] for line in printed if len(line) > 4] == [["20", "dlrm"], ["50", "dlrm"]]


def test_its_calls_are_understood():
    """Every `python -m reproduce` of the page names notebooks and parameters that there are."""
    from reproduce.notebooks import all_notebooks, parse_assignment

    notebooks = all_notebooks()
    calls = re.findall(r"-m reproduce (\d\d_\w+)(.*)", PAGE)
    assert calls
    for name, rest in calls:
        for quoted, word in re.findall(r"'(\w+=[^']+)'|(?<!\")\b(\w+=[\w,.]+)", rest):
            parse_assignment(quoted or word, notebooks[name])
    (text,) = re.findall(r"--result (\d\d\S+)`", PAGE)
    assert str(read_result(text, notebooks["03_ber_sweep"])) == text
