"""How far a run lies from the published one, and the numbers of two trees from each other."""

import json
import shutil
import subprocess

import pandas as pd
import pytest

from reproduce import __main__, agreement, same
from reproduce.agreement import by_figure, compare_figures, compare_tables, compare_verdicts, equal_models
from reproduce.bundle import figure_sums


def curve(**changes):
    table = {"model": ["a", "a", "b"], "ber": [1e-5, 1e-4, 1e-5], "n": 60, "auc_golden": [0.8, 0.8, 0.7]}
    table |= {"auc": [0.79, 0.7, 0.69], "auc_low": [0.78, 0.68, 0.66], "auc_high": [0.8, 0.72, 0.7]}
    return pd.DataFrame(table | changes)


def test_auc_is_compared_as_loss_on_the_sides_that_face_each_other():
    """The other model has an AUC of 0.9; its loss is 0.04 for 0.01, of half-widths 0.01 (upwards) and 0.03 (downwards)."""
    golden = {"auc_golden": [0.9, 0.8, 0.7]}
    other = curve(auc=[0.86, 0.7, 0.69], auc_low=[0.7, 0.68, 0.66], auc_high=[0.89, 0.72, 0.7], **golden)
    found = compare_tables(curve(), other)
    assert found["distance"].tolist() == pytest.approx([0.03 / (0.01**2 + 0.03**2) ** 0.5, 0, 0])
    assert found["where"][0] == "auc_drop: a, 1e-05"


def test_numbers_without_width_and_without_interval():
    exact = {"low": [1.0, 2.0], "high": [1.0, 2.0]}
    one = pd.DataFrame({"case": ["x", "y"], "value": [1.0, 2.0], **exact, "seconds": [1.0, 2.0]})
    other = one.assign(value=[1.0, 3.0], low=[1.0, 3.0], high=[1.0, 3.0], seconds=[5.0, 6.0])
    found = compare_tables(one, other)
    assert found["distance"].tolist() == [0, float("inf")] and found["where"][1] == "value: y"
    assert compare_tables(one[["case", "seconds"]], other[["case", "seconds"]]).empty


@pytest.fixture
def folders(tmp_path):
    """Published figures and those of a run: one number, one verdict and one of two models differ."""
    for name, auc, verdict, state in (("published", 0.7, "reproduced", "aaa"), ("here", 0.75, "partly", "bbb")):
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True)
        ends = {"auc_low": [0.78, auc - 0.02, 0.66], "auc_high": [0.8, auc + 0.02, 0.7]}
        curve(auc=[0.79, auc, 0.69], **ends).to_csv(folder / "data" / "03_ber_sweep.csv", index=False)
        curve(auc=[0.1, 0.2, 0.3]).to_csv(folder / "data" / "07_abft_overhead.csv", index=False)
        rows = [["S1", "", "", "", verdict], ["S3", "wide", "m", "", "reproduced"]]
        rows += [["S3", "wide", "m", "fm", "clearly"]]
        rows = pd.DataFrame(rows, columns=["statement", "part", "dataset", "item", "verdict"])
        rows.to_csv(folder / "statements.csv", index=False)
        models = pd.DataFrame({"model": ["dlrm", "fm"], "dataset": "m", "state": [state, "ccc"]})
        models.to_csv(folder / "models.csv", index=False)
    (tmp_path / "published" / "run.json").write_text(json.dumps({"profile": "laptop"}))
    return tmp_path / "published", tmp_path / "here"


def test_figures_verdicts_and_models(folders):
    published, here = folders
    (row,) = by_figure(compare_figures(published, here)).to_dict("records")  # without the figure of measured times
    assert row["figure"] == "03_ber_sweep" and (row["values"], row["differs"]) == (3, 1)
    assert row["where"] == "auc_drop: a, 0.0001" and row["largest"] == pytest.approx(0.05 / 0.0008**0.5)
    verdicts = compare_verdicts(published / "statements.csv", here / "statements.csv")
    assert verdicts[["published", "here"]].values.tolist() == [["reproduced", "partly"], ["reproduced", "reproduced"]]
    assert equal_models(published / "models.csv", here / "models.csv") == (1, 2)
    pd.read_csv(published / "models.csv").drop(columns="state").to_csv(published / "models.csv", index=False)
    assert equal_models(published / "models.csv", here / "models.csv") is None


def test_what_a_run_lacks_is_no_agreement():
    """Rows that are gone, no interval, one over ten times the published one, no column: each number by name."""
    published = curve()
    other = curve(auc_low=[0.78, None, 0.4], auc_high=[0.8, None, 0.8])
    found = compare_tables(published, other.iloc[1:])
    assert found["result"].tolist() == ["missing", "no interval", "interval over 10 times the published one"]
    assert found["where"].tolist() == ["auc_drop: a, 1e-05", "auc_drop: a, 0.0001", "auc_drop: b, 1e-05"]
    assert set(compare_tables(published, other.drop(columns="auc_low"))["result"]) == {"missing"}  # no loss without
    table = pd.DataFrame({"case": ["x"], "value": [1.0], "value_low": [0.9], "value_high": [1.1]})
    assert compare_tables(table, table[["case", "value"]])["result"].tolist() == ["no interval"]
    assert compare_tables(table, table.assign(value=None))["result"].tolist() == ["missing"]
    wide = table.assign(value_low=-0.01, value_high=2.0)
    assert compare_tables(table, wide)["result"].tolist() == ["interval over 10 times the published one"]
    assert compare_tables(table, table.assign(value_low=0.1, value_high=2.0))["result"].tolist() == ["agrees"]


def test_rows_belong_together_though_results_differ_and_rows_are_gone():
    """A number that other models have otherwise, here `harmed`, is no name of a row."""
    rates = [1e-6, 1e-5, 1e-4, 1e-3]
    one = pd.DataFrame({"ber": rates, "harmed": [0, 0, 1, 2], "n": 60, "loss": [0.0, 0.1, 0.2, 0.3]})
    one = one.assign(loss_low=one["loss"] - 0.01, loss_high=one["loss"] + 0.01)
    found = compare_tables(one, one.assign(harmed=[0, 1, 2, 2]).iloc[[3, 1]])
    assert found["result"].tolist() == ["missing", "agrees", "missing", "agrees"]


def test_a_verdict_that_one_side_lacks(tmp_path):
    """Of another part or data set it is another verdict; a model of one training belongs to that of the same one."""
    rows = [["S1", "", "m", "yes"], ["S3", "a", "", "no"]]
    other = [["S1", "", "c", "yes"], ["S3", "a", "", "no"]]
    for name, table in (("old", rows), ("new", other)):
        table = pd.DataFrame(table, columns=["statement", "part", "dataset", "verdict"]).assign(item="")
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    found = compare_verdicts(tmp_path / "old.csv", tmp_path / "new.csv")
    expected = [["", "no", "no"], ["c", "", "yes"], ["m", "yes", ""]]
    assert sorted(found[["dataset", "published", "here"]].values.tolist()) == expected
    models = pd.DataFrame({"model": "fm", "dataset": "m", "train_seed": [0, 1], "state": ["a", "b"]})
    models.to_csv(tmp_path / "models.csv", index=False)
    models.iloc[::-1].to_csv(tmp_path / "others.csv", index=False)
    assert equal_models(tmp_path / "models.csv", tmp_path / "others.csv") == (2, 2)


def test_the_command(folders, tmp_path, monkeypatch, capsys):
    """Its counts fit: 3 numbers, of which one differs; without the figure's file none is compared."""
    published, here = folders
    monkeypatch.setattr(agreement, "FIGURES", published)
    record = {"profile": "laptop", "figure_sha256": figure_sums(published)}
    (published / "run.json").write_text(json.dumps(record))
    call = ["--compare", "--out", str(tmp_path / "build"), "--profile"]
    assert __main__.main([*call, "laptop"]) == 2
    for profile in ("laptop", "paper"):
        (tmp_path / "build" / profile).mkdir(parents=True)
        (tmp_path / "build" / profile / "run.json").write_text(json.dumps({"figure_sha256": figure_sums(here)}))
    here = here.rename(tmp_path / "build" / "laptop" / "figures")
    assert __main__.main([*call, "laptop"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines[:4]] == ["3 of 3", "2 of 3", "1 of 2", "1 of 2"]
    assert "03_ber_sweep: of 3 numbers 1 differs" in lines[4] and "published reproduced, here partly" in lines[-1]
    assert __main__.main([*call, "paper"]) == 2 and "laptop, not of paper" in capsys.readouterr().err
    for name in ("03_ber_sweep", "07_abft_overhead"):
        (here / "data" / f"{name}.csv").unlink()
    (here / "models.csv").write_text((published / "models.csv").read_text())
    assert __main__.main([*call, "laptop"]) == 1
    text = capsys.readouterr().out
    assert [line[:6] for line in text.splitlines()[:5]] == ["0 of 3", "0 of 0", "1 of 2", "2 of 4", "2 of 2"]
    assert all(f"{name}, by the SHA-256" in text for name in ("03_ber_sweep.csv is missing", "models.csv differs"))
    shutil.copytree(published, here, dirs_exist_ok=True)
    (here.parent / "run.json").write_text(json.dumps({"figure_sha256": figure_sums(here)}))
    assert __main__.main([*call, "laptop"]) == 0
    (here.parent / "run.json").write_text("{}")
    assert __main__.main([*call, "laptop"]) == 2


@pytest.fixture
def two_trees(tmp_path):
    """Two two_trees of figures with equal tables."""
    for side in ("base", "here"):
        (tmp_path / side / "data").mkdir(parents=True)
        (tmp_path / side / "data" / "03_sweep.csv").write_text(
            "# made by a run\nmodel,auc,seconds\nfm,0.7,1\ndlrm,0.8,2\n"
        )
        (tmp_path / side / "data" / "09_injection_speed.csv").write_text("cpu_ms\n1\n")
        (tmp_path / side / "models.csv").write_text("model,auc,cpu_seconds\nfm,0.5,3\n")
    return tmp_path / "base", tmp_path / "here"


def test_times_and_comments_are_no_difference(two_trees):
    base, here = two_trees
    (here / "data" / "03_sweep.csv").write_text("model,auc,seconds,new\nfm,0.7,3,#1\ndlrm,0.8,4,#2\n")
    (here / "data" / "09_injection_speed.csv").write_text("cpu_ms\n2\n")
    (here / "models.csv").write_text("model,auc,cpu_seconds\nfm,0.5,4\n")
    text, differing = same.compared(base, here)
    assert not differing and text.splitlines() == [
        "data/03_sweep.csv: column new only in the work tree",
        "0 of 2 tables differ; tables with measured times are not compared",
    ]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("data/03_sweep.csv", "model,auc\nfm,0.7\ndlrm,0.80\n", "auc differs, first in row 1: '0.8' in base, '0.80'"),
        ("data/03_sweep.csv", "model,auc\nfm,0.7\n", "2 rows in base, 1 in the work tree"),
        ("models.csv", "model,auc,cpu_seconds\nfm,0.6,3\n", "auc differs, first in row 0"),
    ],
)
def test_any_digit_that_differs_is_named(name, text, says, two_trees):
    base, here = two_trees
    (here / name).write_text(text)
    found, differing = same.compared(base, here)
    assert differing and f"{name}: " in found and says in found and "1 of 2 tables differ" in found


def test_a_commit_is_unpacked_whole_or_not_at_all(tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    (tmp_path / "file").write_text("content")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setattr(same, "ROOT", tmp_path)
    folder = same.unpacked(commit)
    assert (folder / "file").read_text() == "content" and same.unpacked(commit) == folder
    with pytest.raises(subprocess.CalledProcessError):
        same.unpacked("0000")
    assert [path.name for path in folder.parent.iterdir() if path.is_dir() and path.name[0] != "."] == [folder.name]
