"""Comparing the numbers of two trees."""

import subprocess

import pytest

from reproduce import same


@pytest.fixture
def folders(tmp_path):
    """Two folders of figures with equal tables."""
    for side in ("base", "here"):
        (tmp_path / side / "data").mkdir(parents=True)
        (tmp_path / side / "data" / "03_sweep.csv").write_text(
            "# made by a run\nmodel,auc,seconds\nfm,0.7,1\ndlrm,0.8,2\n"
        )
        (tmp_path / side / "data" / "09_injection_speed.csv").write_text("cpu_ms\n1\n")
        (tmp_path / side / "models.csv").write_text("model,auc,cpu_seconds\nfm,0.5,3\n")
    return tmp_path / "base", tmp_path / "here"


def test_times_and_comments_are_no_difference(folders):
    base, here = folders
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
def test_any_digit_that_differs_is_named(name, text, says, folders):
    base, here = folders
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
