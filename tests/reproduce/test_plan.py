"""The plan: what notebooks took before with the same parameters, and nothing where they never ran with them."""

import json
import time
from dataclasses import replace

import pytest

from drsrobust.campaign import Campaign
from drsrobust.injection import BitFlip
from reproduce.__main__ import main
from reproduce.notebooks import all_notebooks, progress_file
from reproduce.plan import RECORDS, Record, estimate, matching, print_plan, read_records, remember
from reproduce.plan_estimate import growth
from reproduce.profiles import load_profile
from reproduce.progress import Progress
from reproduce.runner import Outcome
from reproduce.time_left import Event, Step, read_events, steps_of, totals

NOTEBOOKS = all_notebooks()
STEPS = ["other 1 5.00", "trials 40 20.00", "other 1 3.00"]


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A published run of the profile smoke on generated data, written before steps were recorded: 10 s a notebook."""
    parameters = load_profile("smoke", NOTEBOOKS, None).parameters
    entries = [
        {"notebook": name, "parameters": own, "seconds": 10.0, "peak_mib": 512} for name, own in parameters.items()
    ]
    run = {"started": "2026-01-02 03:04 UTC", "machine": {"cores": 4}, "cached": False, "notebooks": entries}
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "run.json").write_text(json.dumps(run))
    monkeypatch.setattr("reproduce.plan.FIGURES", tmp_path / "published")
    return run


def outcome(name="00_quickstart", steps=STEPS, **changes):
    parameters = {"trials": 8, "ber": 1e-3} | changes
    return Outcome(name, "A title", True, 28.0, parameters, "notebooks/x.ipynb", peak_mib=700, steps=steps)


def test_a_notebook_that_computed_everything_is_remembered(tmp_path):
    remember(outcome(steps=["other 1 5.00", "trials 40 90.00", "other 1 3.00"]), tmp_path)
    remember(outcome(), tmp_path)  # in its place
    remember(outcome(trials=9), tmp_path)
    (first, second) = [record for record in read_records(tmp_path, NOTEBOOKS) if record.source.startswith("run here")]
    assert (first.seconds, first.peak_mib, first.parameters) == (28.0, 700, {"trials": 8, "ber": 1e-3})
    assert first.work == [Step("other", 1, 5.0), Step("trials", 40, 20.0), Step("other", 1, 3.0)]
    assert matching([first, second], {"00_quickstart": second.parameters}) == {"00_quickstart": second}
    assert matching([first, second], {"00_quickstart": {"trials": 10, "ber": 1e-3}}) == {}


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("00_quickstart", []),  # trials were stored
        ("00_quickstart", ["other 1 5.00", "trials 39 1.00", "other 1 3.00"]),
        ("00_models", ["other 1 5.00", "other 1 3.00"]),  # all models were stored
    ],
)
def test_a_run_that_computed_less_is_not(name, steps, tmp_path):
    remember(outcome(), tmp_path)
    before = (tmp_path / RECORDS).read_text()
    remember(outcome(name, steps), tmp_path)
    assert (tmp_path / RECORDS).read_text() == before
    remember(outcome("09_injection_speed", ["other 1 5.00", "other 1 20.00"]), tmp_path)  # which counts nothing
    assert len(json.loads((tmp_path / RECORDS).read_text())) == 2


def test_records_of_this_machine_come_before_published_ones_and_defaults(published, tmp_path):
    parameters = load_profile("smoke", NOTEBOOKS, None).parameters
    here = published["notebooks"][1] | {"seconds": 3.0, "steps": STEPS, "source": "run here"}
    (tmp_path / RECORDS).write_text(json.dumps([here]))
    found = matching(read_records(tmp_path, NOTEBOOKS), parameters)
    assert found["00_quickstart"].source == "run here"
    assert found["03_ber_sweep"].source == "published run of 2026-01-02, 4 cores"
    assert found["00_quickstart"].counted == 40 and found["03_ber_sweep"].work == [("other", 1, 10.0)]
    defaults = {name: one.default for name, one in NOTEBOOKS["03_ber_sweep"].parameters.items()}
    found = matching(read_records(tmp_path, NOTEBOOKS), {"03_ber_sweep": defaults})
    assert found["03_ber_sweep"].source.startswith("with its defaults, ")


def test_the_plan_of_a_recorded_profile(published, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    assert main(["--profile", "smoke", "--out", str(tmp_path), "--plan", "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith("03_ber_sweep"))
    assert line.split(maxsplit=5) == ["03_ber_sweep", "10", "s", "0.5", "GiB", "published run of 2026-01-02, 4 cores"]
    # The models, then 22 notebooks two at a time.
    assert "in all 2.0 min, 2 at a time, from an empty cache" in said and "memory: up to 0.5 GiB a notebook" in said
    assert "no data folder was given" in said and "missing: movielens-1m is read from ml-1m/" in said


def test_lists_multiply_and_the_number_that_grows_most_counts():
    old = {"datasets": ["a"], "models": ["fm"], "others": ["afn"], "trials": 10, "lead_maps": 2, "test_rows": 500}
    old |= {"seed": 1, "leave_out": ["x"], "hosts": 3}
    assert growth(old, old) == 1
    new = {"datasets": ["a", "b", "c"], "models": ["fm", "dcn"], "others": ["afn"], "trials": 40, "lead_maps": 4}
    new |= {"test_rows": 5000, "seed": 7, "leave_out": ["x", "y"], "hosts": 30}
    assert growth(old, new) == 3 * 1.5 * 4 * 10


def test_a_profile_without_a_record_is_scaled(capsys):
    profile = load_profile("smoke", all_notebooks(), None)
    name = "05_activation_clipping"
    other = profile.parameters[name] | {"trials": 2 * profile.parameters[name]["trials"]}
    record = Record(name, other, 60.0, 700, [], "a run", cpu_seconds=106.0)
    assert estimate(record, other | {"trials": 10 * other["trials"]}) == 6 + 10 * 100
    few = replace(profile, parameters={name: other | {"trials": 500 * other["trials"]}})
    print_plan(few, [record], 2, [])
    said = capsys.readouterr().out
    assert "about 13.9 hours of CPU time, scaled from: a run" in said and "about 14 hours of CPU time\n" in said


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
    progress = Progress({name: progress_file(tmp_path, name) for name in steps}, steps)
    write(counted, ("started", 1, 1000.0), ("trials", 500, 1600.0))
    assert progress.text(1600.0) == "[#####...............] 03_ber_sweep: 500 of 1,500 trials; about 30.0 min left"
    assert progress.text(1720.0).endswith("about 28.0 min left")  # two minutes later, with nothing counted since
    write(counted, ("started", 1, 1000.0), ("trials", 1600, 1060.0))  # more than recorded
    assert "1,600 of 1,600 trials" in progress.text(1060.0)
    progress.line("  03_ber_sweep ... 3 s", finished="03_ber_sweep")
    assert progress.text(1060.0) == "[###############.....] a notebook starts; about 20 s left"


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
