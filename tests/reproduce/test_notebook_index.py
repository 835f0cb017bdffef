import os

import nbformat
import pytest

from reproduce.__main__ import main
from reproduce.notebook_index import INDEX, LIMIT, TIMES, index_notebook, read_times
from reproduce.notebooks import ROOT, all_notebooks
from reproduce.runner import Outcome

GUIDE = (ROOT / "docs" / "reproduce.md").read_text()


def test_the_committed_index_is_what_is_known_of_the_notebooks():
    made = index_notebook(all_notebooks(), GUIDE, read_times(TIMES))
    assert nbformat.read(INDEX, as_version=4) == made, (
        "notebooks/index.ipynb is old: python -m reproduce.notebook_index"
    )


def test_measured_times_are_under_the_limit_and_of_notebooks_that_are_there():
    rows = read_times(TIMES)
    assert {row["notebook"] for row in rows} == set(all_notebooks())
    assert all(0 < float(row["seconds"]) < LIMIT and int(row["peak_mib"]) > 0 for row in rows)


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Replaces running notebooks: each takes the time given here, and has an empty cache of its own."""
    seconds, seen = {}, []

    def run(notebook, parameters, folder):
        cache = os.environ["DRSROBUST_CACHE"]
        assert parameters == {} and not os.path.exists(cache)
        os.makedirs(cache)
        seen.append((notebook.name, cache))
        took = seconds.get(notebook.name, 9.96)
        error = "" if took else "ValueError: no"
        return Outcome(
            notebook.name, notebook.title, not error, took, {}, "notebooks/x.ipynb", [], error, 700, cpu_seconds=8.0
        )

    monkeypatch.setattr("reproduce.notebook_index.run_notebook", run)
    monkeypatch.setattr("reproduce.notebook_index.TIMES", tmp_path / "defaults.csv")
    monkeypatch.setattr("reproduce.notebook_index.INDEX", tmp_path / "index.ipynb")
    return seconds, seen


def test_times_of_all_are_kept_and_some_measured_again(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DRSROBUST_CACHE", "as it was")
    seconds, seen = runs
    assert main(["--times", "--out", str(tmp_path)]) == 0
    rows = read_times(tmp_path / "defaults.csv")
    assert [row["notebook"] for row in rows] == [name for name, _ in seen] and len(rows) >= 10
    assert all(row["seconds"] == "10.0" and row["peak_mib"] == "700" and "cores" in row["machine"] for row in rows)
    assert os.environ["DRSROBUST_CACHE"] == "as it was" and not os.path.exists(seen[0][1])
    seconds["03_ber_sweep"] = 299.0
    assert main(["--times", "03_ber_sweep", "--out", str(tmp_path)]) == 0
    again = {row["notebook"]: row["seconds"] for row in read_times(tmp_path / "defaults.csv")}
    assert again == {row["notebook"]: row["seconds"] for row in rows} | {"03_ber_sweep": "299.0"}
    assert "03_ber_sweep: 299 s, 8 CPU s, 700 MiB\n" in capsys.readouterr().out
    assert "| 5.0 | 8 | 0.7 GiB |" in (tmp_path / "index.ipynb").read_text()


def test_slow_failed_and_unknown_notebooks(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DRSROBUST_CACHE", raising=False)
    runs[0].update({"03_ber_sweep": 301.0, "00_models": 0.0})
    assert main(["--times", "03_ber_sweep", "--out", str(tmp_path)]) == 1
    assert "03_ber_sweep: 301 s, 8 CPU s, 700 MiB over the limit of 300 s" in capsys.readouterr().out
    assert main(["--times", "00_models", "--out", str(tmp_path)]) == 1
    assert "ValueError: no" in capsys.readouterr().out and "DRSROBUST_CACHE" not in os.environ
    assert [row["notebook"] for row in read_times(tmp_path / "defaults.csv")] == ["03_ber_sweep"]
