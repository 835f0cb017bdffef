"""The line that says how far a run is."""

import io
import time
from collections import Counter

import pytest

from drsrobust._environment import count_done
from drsrobust.campaign import Campaign
from drsrobust.injection import BitFlip
from reproduce.progress import Progress, planned_counts, progress_file, read_counts

CHOSEN = {"03_ber_sweep": {}, "04_component_vulnerability": {}}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """The file of a running notebook, to which this process counts."""
    path = progress_file(tmp_path, "03_ber_sweep")
    path.parent.mkdir()
    monkeypatch.setenv("DRSROBUST_PROGRESS", str(path))
    return path


@pytest.fixture(autouse=True)
def published(monkeypatch):
    seconds = {"03_ber_sweep": 300.0, "04_component_vulnerability": 100.0}
    monkeypatch.setattr(
        "reproduce.progress._published_seconds", lambda chosen: {name: seconds[name] for name in chosen}
    )


def test_campaigns_count_their_trials_and_those_of_earlier_runs(counted, evaluator, tmp_path):
    for trials in (8, 12):
        Campaign(evaluator, errors=[BitFlip(1e-3)], trials=trials, store=tmp_path / "s").run(workers=1)
    assert read_counts(counted) == {"trials": 8 + 12}  # the second has 8 of the first
    Campaign(evaluator, errors=[BitFlip(1e-3)], trials=5, store=tmp_path / "t").run(workers=1, progress=False)
    assert read_counts(counted) == {"trials": 20} and read_counts(tmp_path / "none") == {}


def test_the_line(counted, tmp_path):
    """The first notebook takes three quarters of the published time, and a third of it is done."""
    progress = Progress(CHOSEN, tmp_path, None)
    count_done("trials", 500)
    assert progress.text(60.0) == f"[{'.' * 20}] 03_ber_sweep: 500 trials"
    progress.planned = {"03_ber_sweep": Counter(trials=1500, models=2)}
    assert progress.text(600.0) == "[#####...............] 03_ber_sweep: 500 of 1,500 trials; about 30.0 min left"
    count_done("trials", 1100)  # more than planned
    assert "1,600 of 1,600 trials" in progress.text(60.0)
    counted.unlink()
    assert progress.text(60.0) == f"[{'.' * 20}] a notebook starts"


def test_models_are_counted_where_there_are_no_trials(counted, tmp_path):
    progress = Progress(CHOSEN, tmp_path, None)
    progress.planned = {"03_ber_sweep": Counter(models=4)}
    count_done("models")
    assert "03_ber_sweep: 1 of 4 models" in progress.text(1.0)


def test_a_terminal_has_one_line_and_a_file_a_line_now_and_then(counted, tmp_path, monkeypatch):
    monkeypatch.setattr("reproduce.progress.planned_counts", lambda *_: {})
    for stream in (Terminal(), io.StringIO()):
        with Progress({"03_ber_sweep": {}}, tmp_path, None, stream=stream, every=0.1) as progress:
            counted.touch()
            count_done("trials", 7)
            until = time.monotonic() + 10
            while "7 trials" not in stream.getvalue() and time.monotonic() < until:
                time.sleep(0.05)
            progress.line("  03_ber_sweep ... 3 s", finished="03_ber_sweep")
        said = stream.getvalue()
        assert "03_ber_sweep: 7 trials" in said and "  03_ber_sweep ... 3 s\n" in said
        assert said.count("\n") == 1 if stream.isatty() else "\r" not in said and "\x1b" not in said


def test_planned_counts():
    parameters = {"dataset": "synthetic-movielens/ids", "model_name": "fm", "bers": [1e-5, 1e-4], "trials": 5}
    parameters["test_rows"] = 100
    assert planned_counts({"00_quickstart": parameters}, None) == {"00_quickstart": {"trials": 10, "models": 1}}
