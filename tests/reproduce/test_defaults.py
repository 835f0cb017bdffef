import os

import pytest

from reproduce.defaults import main, read_times
from reproduce.runner import Outcome


@pytest.fixture
def runs(monkeypatch):
    """Stands in for running notebooks: each takes as long as said, and sees an empty cache of its own."""
    seconds, seen = {}, []

    def run(notebook, parameters, folder):
        cache = os.environ["DRSROBUST_CACHE"]
        assert parameters == {} and not os.path.exists(cache)
        os.makedirs(cache)
        seen.append((notebook.name, cache))
        took = seconds.get(notebook.name, 9.96)
        error = "" if took else "ValueError: no"
        return Outcome(notebook.name, notebook.title, not error, took, {}, "notebooks/x.ipynb", [], error, 700)

    monkeypatch.setattr("reproduce.runner.run_notebook", run)
    return seconds, seen


def test_times_of_all_are_kept_and_some_measured_anew(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DRSROBUST_CACHE", "as it was")
    seconds, seen = runs
    assert main(["--out", str(tmp_path)]) == 0
    rows = read_times(tmp_path / "defaults.csv")
    assert [row["notebook"] for row in rows] == [name for name, _ in seen] and len(rows) >= 10
    assert all(row["seconds"] == "10.0" and row["peak_mib"] == "700" and "cores" in row["machine"] for row in rows)
    assert os.environ["DRSROBUST_CACHE"] == "as it was" and not os.path.exists(seen[0][1])
    seconds["03_ber_sweep"] = 299.0
    assert main(["03_ber_sweep", "--out", str(tmp_path)]) == 0
    again = {row["notebook"]: row["seconds"] for row in read_times(tmp_path / "defaults.csv")}
    assert again == {row["notebook"]: row["seconds"] for row in rows} | {"03_ber_sweep": "299.0"}
    assert "03_ber_sweep: 299 s, 700 MiB\n" in capsys.readouterr().out


def test_a_slow_one_a_failed_one_and_an_unknown_one_are_told(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DRSROBUST_CACHE", raising=False)
    runs[0].update({"03_ber_sweep": 301.0, "00_models": 0.0})
    assert main(["03_ber_sweep", "--out", str(tmp_path)]) == 1
    assert "03_ber_sweep: 301 s, 700 MiB over the limit of 300 s" in capsys.readouterr().out
    assert main(["00_models", "--out", str(tmp_path)]) == 1
    assert "ValueError: no" in capsys.readouterr().out and "DRSROBUST_CACHE" not in os.environ
    assert main(["03_ber_swep", "--out", str(tmp_path)]) == 2
    assert "unknown notebook '03_ber_swep'; did you mean '03_ber_sweep'?" in capsys.readouterr().err
