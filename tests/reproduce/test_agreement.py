"""How far a run lies from the published one, on made-up figures."""

import json

import pandas as pd
import pytest

from reproduce import agreement
from reproduce.agreement import compare_figures, compare_verdicts, distances, equal_models


def curve(**changes):
    table = {"model": ["a", "a", "b"], "ber": [1e-5, 1e-4, 1e-5], "n": 60, "auc_golden": [0.8, 0.8, 0.7]}
    table |= {"auc": [0.79, 0.7, 0.69], "auc_low": [0.78, 0.68, 0.66], "auc_high": [0.8, 0.72, 0.7]}
    return pd.DataFrame(table | changes)


def test_equal_tables_in_another_order_have_no_distance():
    found = distances(curve(), curve().iloc[[2, 0, 1]])
    assert found["distance"].tolist() == [0, 0, 0]


def test_auc_is_compared_as_loss_on_the_sides_that_face_each_other():
    """The other model has an AUC of 0.9; its loss is 0.04 for 0.01, of half-widths 0.01 (upwards) and 0.03 (downwards)."""
    golden = {"auc_golden": [0.9, 0.8, 0.7]}
    other = curve(auc=[0.86, 0.7, 0.69], auc_low=[0.7, 0.68, 0.66], auc_high=[0.89, 0.72, 0.7], **golden)
    found = distances(curve(), other)
    assert found["distance"].tolist() == pytest.approx([0.03 / (0.01**2 + 0.03**2) ** 0.5, 0, 0])
    assert found["where"][0] == "auc_drop: a, 1e-05"


def test_numbers_without_width_and_without_interval():
    exact = {"low": [1.0, 2.0], "high": [1.0, 2.0]}
    one = pd.DataFrame({"case": ["x", "y"], "value": [1.0, 2.0], **exact, "seconds": [1.0, 2.0]})
    other = one.assign(value=[1.0, 3.0], low=[1.0, 3.0], high=[1.0, 3.0], seconds=[5.0, 6.0])
    found = distances(one, other)
    assert found["distance"].tolist() == [0, float("inf")] and found["where"][1] == "value: y"
    assert distances(one[["case", "seconds"]], other[["case", "seconds"]]).empty


@pytest.fixture
def folders(tmp_path):
    """Published figures and those of a run: one number, one verdict and one of two models differ."""
    for name, auc, verdict, state in (("published", 0.7, "reproduced", "aaa"), ("here", 0.75, "partly", "bbb")):
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True)
        ends = {"auc_low": [0.78, auc - 0.02, 0.66], "auc_high": [0.8, auc + 0.02, 0.7]}
        curve(auc=[0.79, auc, 0.69], **ends).to_csv(folder / "data" / "03_ber_sweep.csv", index=False)
        curve(auc=[0.1, 0.2, 0.3]).to_csv(folder / "data" / "07_abft_overhead.csv", index=False)
        claims = [["C1", 0, "", "", "all", verdict], ["C1", 1, "dlrm", "m", "one", "reproduced"]]
        claims = pd.DataFrame(claims, columns=["claim", "check", "where", "data", "what", "verdict"])
        (folder / "claims.csv").write_text("# a comment\n" + claims.to_csv(index=False))
        models = pd.DataFrame({"model": ["dlrm", "fm"], "dataset": "m", "state": [state, "ccc"]})
        models.to_csv(folder / "models.csv", index=False)
    (tmp_path / "published" / "run.json").write_text(json.dumps({"profile": "laptop"}))
    return tmp_path / "published", tmp_path / "here"


def test_figures_verdicts_and_models(folders):
    published, here = folders
    (row,) = compare_figures(published, here).to_dict("records")  # without the figure of measured times
    assert row["figure"] == "03_ber_sweep" and (row["values"], row["over_1"]) == (3, 1)
    assert row["where"] == "auc_drop: a, 0.0001" and row["largest"] == pytest.approx(0.05 / 0.0008**0.5)
    verdicts = compare_verdicts(published / "claims.csv", here / "claims.csv")
    assert verdicts[["published", "here"]].values.tolist() == [["reproduced", "partly"], ["reproduced", "reproduced"]]
    assert equal_models(published / "models.csv", here / "models.csv") == (1, 2)
    pd.read_csv(published / "models.csv").drop(columns="state").to_csv(published / "models.csv", index=False)
    assert equal_models(published / "models.csv", here / "models.csv") is None


def test_the_command(folders, tmp_path, monkeypatch, capsys):
    from reproduce import __main__

    published, here = folders
    for module in (agreement, __main__):
        monkeypatch.setattr(module, "FIGURES", published)
    call = ["--compare", "--out", str(tmp_path / "build"), "--profile"]
    assert __main__.main([*call, "laptop"]) == 2 and "there is no finished run in" in capsys.readouterr().err
    for profile in ("laptop", "paper"):
        (tmp_path / "build" / profile).mkdir(parents=True)
        here.rename(tmp_path / "build" / profile / "figures") if profile == "laptop" else None
        (tmp_path / "build" / profile / "run.json").write_text("{}")
    assert __main__.main([*call, "laptop"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "2 of 3 numbers agree with the published ones within the intervals of both",
        "1 of 2 verdicts are the published ones",
        "1 of 2 trained models are the published ones, bit for bit",
    ]
    assert lines[3] == "  03_ber_sweep: 1 of 3 differ, most auc_drop: a, 0.0001 (distance 1.8)"
    assert lines[-1] == "  C1, all: published reproduced, here partly"
    assert __main__.main([*call, "paper"]) == 2
    assert "the published figures are of profile laptop, not of paper" in capsys.readouterr().err
