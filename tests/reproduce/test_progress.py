"""The line that says how far a run is."""

import io
import re
import time

import pytest

from drsrobust._environment import count_done
from drsrobust.campaign import Campaign
from drsrobust.injection import BitFlip
from reproduce.notebooks import progress_file
from reproduce.plan import Timed
from reproduce.progress import Progress, planned_steps, read_counts
from reproduce.time_left import Step

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


def test_campaigns_count_their_trials_and_those_of_earlier_runs(counted, evaluator, tmp_path):
    for trials in (8, 12):
        Campaign(evaluator, errors=[BitFlip(1e-3)], trials=trials, store=tmp_path / "s").run(workers=1)
    assert read_counts(counted) == {"trials": 8 + 12, "stored": 8}  # the second has 8 of the first
    Campaign(evaluator, errors=[BitFlip(1e-3)], trials=5, store=tmp_path / "t").run(workers=1, progress=False)
    assert read_counts(counted) == {"trials": 20, "stored": 8} and read_counts(tmp_path / "none") == {}


def test_the_line(counted, tmp_path):
    """By the plan the first notebook takes three quarters of the time, and a third of it is done."""
    progress = Progress(CHOSEN, tmp_path, None)
    count_done("trials", 500)
    assert progress.text(60.0) == f"[{'.' * 20}] 03_ber_sweep: 500 trials"
    progress.planned = {
        "03_ber_sweep": [Step("trials", 1500, 300.0)],
        "04_component_vulnerability": [Step("trials", 100, 100.0)],
    }
    assert progress.text(600.0) == "[#####...............] 03_ber_sweep: 500 of 1,500 trials; about 30.0 min left"
    count_done("trials", 1100)  # more than planned
    assert "1,600 of 1,600 trials" in progress.text(60.0)
    progress.line("  03_ber_sweep ... 3 s", finished="03_ber_sweep")
    assert progress.text(60.0) == "[###############.....] a notebook starts; about 20 s left"


def test_models_are_counted_where_there_are_no_trials(counted, tmp_path):
    progress = Progress(CHOSEN, tmp_path, None)
    progress.planned = {"03_ber_sweep": [Step("models", 4, 1.0)]}
    count_done("models")
    assert "03_ber_sweep: 1 of 4 models" in progress.text(1.0)


# Of each notebook: kind, count, seconds by the plan, and the real ones without a cache.
RUN = {
    "00_models": [("other", 1, 6, 9), ("models", 18, 400, 850)],
    "01_bit_sensitivity": [("other", 1, 6, 8), ("models", 2, 0, 0), ("trials", 3000, 90, 80)],
    "03_ber_sweep": [
        ("other", 1, 6, 8),
        ("models", 6, 130, 260),
        ("trials", 8000, 4, 5),  # at a low rate
        ("trials", 8000, 16, 20),
        ("trials", 8000, 300, 380),  # as many at a high one
    ],
    "10_your_model": [("other", 1, 16, 18)],
    "12_memory_faults": [("other", 1, 6, 8), ("trials", 40_000, 20, 30), ("trials", 400, 200, 290)],
}


def simulated(stored, slow):
    """The counts of a run, each with its time and notebook; `stored` gives the share of a step that an earlier run left."""
    events, now = [], 0.0
    for name, steps in RUN.items():
        events.append((now, name, ""))
        for number, (kind, count, _, real) in enumerate(steps):
            before = int(stored(name, number, kind) * count)
            if kind == "trials" and before:
                events.append((now, name, f"stored {before}\ntrials {before}\n"))
            parts = min(count - before, 40)
            for part in range(parts):
                now += slow * real * (count - before) / count / parts
                size = (count - before) * (part + 1) // parts - (count - before) * part // parts
                events.append((now, name, f"{kind} {size}\n" if kind != "other" else ""))
        events.append((now, name, "ended 1\n"))
    return events, now


def estimates(stored, slow, folder):
    """Of a simulated run the seconds left, by the line and really, from a tenth of it on until its last twentieth."""
    progress_file(folder, "x").parent.mkdir()
    events, end = simulated(stored, slow)
    progress = Progress({name: {} for name in RUN}, folder, None)
    progress.planned = {name: [Step(*step[:3]) for step in steps] for name, steps in RUN.items()}
    counted = False
    for now, name, text in events:
        with open(progress_file(folder, name), "a") as handle:
            handle.write(text)
        line = progress.text(now)
        counted = counted or bool(text) and "ended" not in text
        if 0.1 * end <= now <= 0.95 * end and counted:  # before, whether models and trials are loaded is not known
            found = re.search(r"about ([\d.,]+) (s|min|hours) left", line)
            assert found, line
            left = float(found[1].replace(",", "")) * {"s": 1, "min": 60, "hours": 3600}[found[2]]
            yield left, end - now, line


@pytest.mark.parametrize("slow", [1.0, 3.0])
@pytest.mark.parametrize(
    "stored",
    [
        lambda name, number, kind: 0.0,
        lambda name, number, kind: float(kind == "models"),
        lambda name, number, kind: float(kind == "models" and name == "00_models"),
        # An interruption at half of the dear condition of 03.
        lambda name, number, kind: 0.0 if kind == "other" or name > "03_ber_sweep" else 0.5 if number == 4 else 1.0,
    ],
    ids=["empty cache", "models", "models of 00", "interrupted"],
)
def test_the_time_left_is_within_a_factor_of_two(stored, slow, tmp_path):
    """Cheap and dear conditions, plans that are wrong by up to a factor of two, a cache that holds models, or trials too."""
    found = list(estimates(stored, slow, tmp_path))
    assert len(found) > 50
    assert not [one for one in found if not one[1] / 2 <= one[0] <= 2 * one[1]]


def test_a_run_that_is_repeated_has_little_left(tmp_path):
    """It takes 51 s: starts of kernels, which are not counted until they are over. Computed, it would take half an hour."""
    found = list(estimates(lambda name, number, kind: float(kind != "other"), 1.0, tmp_path))
    assert found and max(left for left, *_ in found) < 90


def test_costs_of_the_plan_are_those_of_conditions(monkeypatch):
    """Two rates: as many trials, and ten times the time; a model is trained where it is needed first."""
    timed = Timed(None, 100, {"": 1}, {"embedding": 900, "mlp": 100})
    monkeypatch.setattr("reproduce.plan.untrained", lambda *_: timed)
    monkeypatch.setattr("reproduce.plan.seconds_per_row", lambda timed, kind, rate: 1e-3 * (rate or 1e-6))
    monkeypatch.setattr("reproduce.plan.rows_and_ids", lambda *_: (1000, 100))
    monkeypatch.setattr("reproduce.progress.cores", lambda: 2)
    parameters = {"dataset": "d", "model_name": "fm", "bers": [1e-5, 1e-4], "trials": 5, "test_rows": 100}
    steps = planned_steps({"00_quickstart": parameters}, None, 2)["00_quickstart"]
    assert [(step.kind, step.count) for step in steps] == [("other", 1), ("models", 1), ("trials", 5), ("trials", 5)]
    assert [step.seconds for step in steps[2:]] == pytest.approx([5 * 100 * 1e-8 / 2, 5 * 100 * 1e-7 / 2])
    more = planned_steps({"00_quickstart": parameters, "11_one_flip": parameters}, None, 1)["11_one_flip"]
    assert [step.kind for step in more] == ["other", "other"]  # the second of passes


def test_a_terminal_has_one_line_and_a_file_a_line_now_and_then(counted, tmp_path):
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
