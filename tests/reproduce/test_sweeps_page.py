"""What docs/sweeps.md shows: its shell scripts call what there is, its Python runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sweeps.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
(TOML,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# Stands for the run of the notebooks: all is checked up to there; what would run is written as their table would be.
INSTEAD = """
import sys
import reproduce.__main__ as program

def run_sweep(sweep, notebooks, folder, options):
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
