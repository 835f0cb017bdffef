"""Which runs are published, by the records of made-up ones."""

import json
import subprocess

import pytest

from drsrobust._hashing import file_digest
from reproduce import publish as module
from reproduce.bundle import figure_sums
from reproduce.notebooks import ROOT
from reproduce.publish import checked_run


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A repository with one commit, and in its build folder a laptop run of it; gives a function that changes the record."""
    monkeypatch.setattr(module, "ROOT", tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    rules = tmp_path / "reproduce" / "rules.toml"
    rules.parent.mkdir()
    rules.write_text("frozen")
    monkeypatch.setattr(module, "RULES", rules)
    for command in (["init", "-q"], ["add", "reproduce"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    described = subprocess.run(
        [*git, "describe", "--always", "--abbrev=12"], capture_output=True, text=True, check=True
    )
    figures = tmp_path / "build" / "laptop" / "figures"
    (figures / "data").mkdir(parents=True)
    for name in ("statements.csv", "a.svg", "data/a.csv"):
        (figures / name).write_text(name)
    run = {"real": True, "complete": True, "commit": described.stdout.strip(), "figure_sha256": figure_sums(figures)}
    run |= {"notebooks": [{"notebook": "03_ber_sweep", "ok": True}], "rules_sha256": file_digest(rules)}

    def changed(**changes):
        (tmp_path / "build" / "laptop" / "run.json").write_text(json.dumps(run | changes))
        return tmp_path / "build"

    return changed


def test_a_run_of_a_commit_with_its_own_figures(build):
    assert checked_run("laptop", build())["complete"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"real": False}, "used generated data"),
        ({"complete": False}, "not whole"),
        ({"notebooks": [{"notebook": "03_ber_sweep", "ok": False}]}, r"not whole \(03_ber_sweep\)"),
        ({"commit": "0123456789ab-dirty"}, "uncommitted changes"),
        ({"commit": None}, "has no commit: it was made outside a git checkout"),
        ({"commit": ""}, "has no commit"),
        ({"commit": "0123456789ab"}, "made by commit 0123456789ab, which is not in this repository"),
        ({"commit": "HEAD"}, "made by commit HEAD, which is not in this repository"),
        ({"rules_sha256": "0" * 64}, "was judged by rules of SHA-256 0{64}, not by those of its commit"),
        ({"rules_sha256": None}, "was judged by rules of SHA-256 unknown"),
        ({"figure_sha256": {}}, r"figures/a\.svg is not of this run, by the SHA-256 in its run\.json"),
    ],
)
def test_what_is_not_published(changes, says, build):
    with pytest.raises(ValueError, match=says):
        checked_run("laptop", build(**changes))


def test_figures_that_were_changed_added_or_removed(build):
    figures = build() / "laptop" / "figures"
    (figures / "data" / "a.csv").write_text("better numbers")
    with pytest.raises(ValueError, match=r"figures/data/a\.csv differs, by the SHA-256 in .*run\.json; run it again"):
        checked_run("laptop", build())
    (figures / "data" / "a.csv").write_text("data/a.csv")
    (figures / "b.csv").touch()
    with pytest.raises(ValueError, match=r"figures/b\.csv is not of this run"):
        checked_run("laptop", build())
    (figures / "b.csv").rename(figures / "data" / "b.csv")
    with pytest.raises(ValueError, match=r"figures/data/b\.csv is not of this run"):
        checked_run("laptop", build())
    (figures / "data" / "b.csv").unlink()
    (figures / "a.svg").unlink()
    with pytest.raises(ValueError, match=r"figures/a\.svg is missing"):
        checked_run("laptop", build())


def test_a_record_that_follows_its_file_is_refused(build):
    """The record of 27 November 2026 was rewritten for a table that its commit cannot make: as the sums of another run do, it
    differs from what the run wrote."""
    figures = build() / "laptop" / "figures"
    table = figures / "04_component_vulnerability_statements.csv"
    table.write_bytes((ROOT / "figures" / "04_component_vulnerability_statements.csv").read_bytes())
    with pytest.raises(ValueError, match=r"04_component_vulnerability_statements\.csv is not of this run"):
        checked_run("laptop", build())


def test_runs_that_are_not_there(build):
    with pytest.raises(FileNotFoundError, match="there is no finished run in .*/paper: make reproduce PROFILE=paper"):
        checked_run("paper", build())
    with pytest.raises(ValueError, match="only runs of laptop and paper are published, got smoke"):
        checked_run("smoke", build())
    (build() / "laptop" / "figures" / "statements.csv").unlink()
    with pytest.raises(ValueError, match=r"no statements\.csv: it has no verdicts"):
        checked_run("laptop", build())
