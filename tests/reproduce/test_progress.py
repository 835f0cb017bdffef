"""The line that says how far a run is."""

import io
import time

import pytest

from drsrobust._progress import count_done
from drsrobust.campaign import Campaign
from drsrobust.injection import BitFlip
from reproduce.notebooks import progress_file
from reproduce.progress import Progress
from reproduce.time_left import Event, Step, read_events, steps_of, totals

CHOSEN = ["03_ber_sweep", "04_component_vulnerability"]


def files(folder, names=CHOSEN):
    return {name: progress_file(folder, name) for name in names}


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


def test_campaigns_count_their_trials_and_those_of_earlier_runs(counted, evaluator, tmp_path):
    for trials in (8, 12):
        Campaign(evaluator, errors=[BitFlip(1e-3)], trials=trials, store=tmp_path / "s").run(workers=1)
    assert totals(read_events(counted)) == {"trials": 8 + 12, "stored": 8}  # the second has 8 of the first
    assert all(0 <= time.time() - event.time < 60 for event in read_events(counted))
    Campaign(evaluator, errors=[BitFlip(1e-3)], trials=5, store=tmp_path / "t").run(workers=1, progress=False)
    assert totals(read_events(counted)) == {"trials": 20, "stored": 8} and read_events(tmp_path / "none") == []


def write(path, *events):
    path.write_text("".join(f"{what} {number} {at}\n" for what, number, at in events))


def test_the_line(counted, tmp_path):
    """By the record the first notebook takes three quarters of the time, and a third of it is done, in six times as long."""
    steps = {"03_ber_sweep": [Step("trials", 1500, 300.0)], "04_component_vulnerability": [Step("trials", 100, 100.0)]}
    progress = Progress(files(tmp_path), steps)
    write(counted, ("started", 1, 1000.0), ("trials", 500, 1600.0))
    assert progress.text(1600.0) == "[#####...............] 03_ber_sweep: 500 of 1,500 trials; about 30.0 min left"
    assert progress.text(1720.0).endswith("about 28.0 min left")  # two minutes later, with nothing counted since
    write(counted, ("started", 1, 1000.0), ("trials", 1600, 1060.0))  # more than recorded
    assert "1,600 of 1,600 trials" in progress.text(1060.0)
    progress.line("  03_ber_sweep ... 3 s", finished="03_ber_sweep")
    assert progress.text(1060.0) == "[###############.....] a notebook starts; about 20 s left"


def test_without_a_record_of_each_notebook_no_time_is_said(counted, tmp_path):
    progress = Progress(files(tmp_path), {"03_ber_sweep": [Step("trials", 1500, 300.0)]})
    write(counted, ("started", 1, 1000.0), ("trials", 500, 1600.0))
    assert progress.text(1600.0) == f"[{'.' * 20}] 03_ber_sweep: 500 of 1,500 trials"
    write(counted, ("started", 1, 1000.0), ("trials", 7, 1600.0))
    assert Progress(files(tmp_path), {}).text(1600.0) == f"[{'.' * 20}] 03_ber_sweep: 7 trials"


def test_the_steps_of_a_record():
    """A step is of one kind, and ends after a twentieth of the time: cheap and dear trials are told apart."""
    cheap = [("trials", 1000, 9.0 + 0.1 * number) for number in range(10)]
    dear = [("trials", 100, 20.0 + 9 * number) for number in range(10)]
    events = [Event(*one) for one in [("started", 1, 0.0), ("models", 2, 8.0), *cheap, *dear, ("ended", 1, 105.0)]]
    steps = steps_of(events)
    assert steps[0] == ("other", 1, 6.0) and steps[1] == ("models", 2, 2.0) and steps[-1] == ("other", 1, 4.0)
    assert steps[2][:2] == ("trials", 10_100) and len(steps) == 2 + 10 + 1
    assert sum(step.seconds for step in steps) == pytest.approx(105.0)
    assert sum(step.count for step in steps if step.kind == "trials") == 11_000
    assert steps_of([events[0], Event("stored", 5, 1.0), *events[1:]]) == [] == steps_of([])


def test_a_terminal_has_one_line_and_a_file_a_line_now_and_then(counted, tmp_path):
    for stream in (Terminal(), io.StringIO()):
        with Progress(files(tmp_path, CHOSEN[:1]), {}, stream=stream, every=0.1) as progress:
            counted.touch()
            count_done("trials", 7)
            until = time.monotonic() + 10
            while "7 trials" not in stream.getvalue() and time.monotonic() < until:
                time.sleep(0.05)
            progress.line("  03_ber_sweep ... 3 s", finished="03_ber_sweep")
        said = stream.getvalue()
        assert "03_ber_sweep: 7 trials" in said and "  03_ber_sweep ... 3 s\n" in said
        assert said.count("\n") == 1 if stream.isatty() else "\r" not in said and "\x1b" not in said
