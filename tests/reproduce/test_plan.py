"""The plan: counted as the notebooks count, measured here, and never stopped by missing data."""

import pytest

from reproduce.__main__ import main
from reproduce.notebooks import all_notebooks
from reproduce.plan import COUNTED, EPOCHS, Line, Timed, _span, lines, rows_and_ids, untrained
from reproduce.profiles import FOLDER, Profile, load_profile

NOTEBOOKS = all_notebooks()
TIMED = Timed(None, 100, {"": 1, "component": 3, "stratum": 20}, {"embedding": 900, "mlp": 100})


@pytest.fixture
def measured(monkeypatch):
    """No time is taken: every model costs the same."""
    monkeypatch.setattr("reproduce.plan.untrained", lambda *_: TIMED)
    monkeypatch.setattr("reproduce.plan.seconds_per_row", lambda timed, kind, rate: 2e-6 if rate is None else 1e-6)
    monkeypatch.setattr("reproduce.plan.rows_and_ids", lambda *_: (200_000, 1000))


@pytest.mark.parametrize("profile", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_every_notebook_of_every_profile_is_counted(profile, measured):
    for line in lines(load_profile(profile, NOTEBOOKS, None), None):
        assert line.seconds > 0, line.notebook
        without = {"00_models", "09_injection_speed", "10_your_model", "11_one_flip"}  # trials of registered models
        assert (line.trials > 0) == (line.notebook not in without), line.notebook


def test_counts_are_those_of_the_campaigns(data, trained):
    """E1 and E3 on a small model: trials as they are counted, and as the campaigns have them."""
    import drsrobust as dr

    evaluator = dr.Evaluator(trained, data.test)
    parts = list(dr.components(trained).query("parameters > 0")["component"])
    campaign = dr.Campaign(evaluator, errors=[dr.SingleBit(b) for b in (30, 31)], targets=parts, trials=5)
    p = {"dataset": "d", "models": ["dlrm"], "bits": [30, 31], "trials": 5, "test_rows": 9, "afn_neurons": 5}
    (work,) = [one for one in COUNTED["01_bit_sensitivity"](p) if one.kind == "trials"]
    assert work.count * len(parts) == 5 * len(campaign.conditions) and work.per == "component" and work.rate is None
    p = {
        "datasets": ["d"],
        "models": ["dlrm", "fm"],
        "bers": [1e-6, 1e-5],
        "trials": 5,
        "leave_out": [],
        "test_rows": 9,
        "train_seeds": [0, 1, 2],
        "reseeded": [],
    }
    found = [one for one in COUNTED["03_ber_sweep"](p) if one.kind == "trials"]
    assert sum(one.count for one in found) == 2 * 5 + 2 * 2 * 5  # fm under both protocols
    p["leave_out"] = ["fm d"]
    assert sum(one.count for one in COUNTED["03_ber_sweep"](p) if one.kind == "trials") == 10
    p["reseeded"] = ["dlrm d"]
    counts = {
        kind: sum(one.count for one in COUNTED["03_ber_sweep"](p) if one.kind == kind)
        for kind in ("trials", "training")
    }
    assert counts == {"trials": 30, "training": 3}


def test_cells_of_the_dummy_model_are_counted():
    p = {"widths": [64, 128, 512], "depths": [1], "embedding_dims": [64], "densities": [0.01, 0.1], "full": True}
    p |= {"bers": [1e-7, 1e-6], "targets": ["all", "mlp"], "drawn_models": 3, "trials": 5, "inputs": 10_000}
    first, second = COUNTED["02_model_factors"](p)
    assert first.count == second.count == 2 * 6 * 3 * 2 * 5 and (first.rate, second.rate) == (1e-7, 1e-6)
    assert dict(first.sizes) == {"width": 128, "depth": 1, "embedding_dim": 64}  # of a mean width of 235
    assert sum(one.count for one in COUNTED["02_model_factors"](p | {"full": False})) == 2 * 2 * 4 * 3 * 2 * 5


def test_seconds(measured):
    """20,000 rows at 1 microsecond each: 20 ms a trial; a model is trained once; its tables have 10 times the rows."""
    p = {"dataset": "synthetic-movielens/ids", "model_name": "dlrm", "bers": [1e-5], "trials": 100, "test_rows": 10**7}
    first, second = lines(
        Profile("x", {"00_quickstart": p, "08_mitigation_recovery": p | RECOVERY}, False, (), ()), None
    )
    assert first.models == 1 and first.trials == 100 and first.trial_seconds == pytest.approx(2.0)
    assert first.seconds == pytest.approx(2.0 + EPOCHS * 160_000 * 2e-6 * 9.1)
    assert second.models == 0 and second.alone == pytest.approx(10 * 3 * 5 * 20 * 2e-6)
    assert Line("x", seconds=100, alone=40).wall(2) == pytest.approx(6 + 40 + 30)


RECOVERY = {"repeats": 3, "turns": 2, "batch": 5, "batches": 4}


def test_large_and_missing_data_are_timed_on_generated_data(tmp_path):
    timed = untrained("fm", "movielens-20m/ids", (), tmp_path)
    assert timed.evaluator.rows.dataset == "synthetic-movielens/ids" and timed.groups["stratum"] > 2
    assert rows_and_ids("movielens-20m/ids", tmp_path)[0] == 20_000_263


def test_durations():
    assert [_span(seconds) for seconds in (7, 600, 7200, 86400 * 40)] == ["7 s", "10.0 min", "2.0 hours", "40.0 days"]


def test_what_is_missing_is_said_and_the_plan_ends_well(measured, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DRSROBUST_DATA", "")  # which `main` sets
    monkeypatch.setattr("reproduce.__main__._run", lambda *_: pytest.fail("something was run"))
    call = ["--profile", "paper", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*call, "--plan"]) == 0
    said = capsys.readouterr().out
    assert said.count("missing: ") == 3 and "ml-20m.zip from GroupLens" in said and "Kaggle, 2014" in said
    assert "03_ber_sweep" in said and "in all " in said and not (tmp_path / "out").exists()
    assert main(call) == 2  # without the plan one error names them all
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.count("there is no") == 3


def test_a_measured_plan(capsys, monkeypatch, session_cache):
    """Models of the smoke profile, timed for real (some seconds)."""
    monkeypatch.delenv("DRSROBUST_DATA", raising=False)
    assert main(["--profile", "smoke", "--plan", "03_ber_sweep", "models=dlrm"]) == 0
    said = capsys.readouterr().out
    assert "no data folder was given" in said and "missing: movielens-1m is read from ml-1m/" in said
    line = next(line for line in said.splitlines() if line.startswith("03_ber_sweep"))
    assert line.split()[1:3] == ["1", "48"] and float(line.split()[3]) > 1
