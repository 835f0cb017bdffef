"""Which runs are published, by the records of made-up ones."""

import json
import subprocess

import pytest

from drsrobust._hashing import file_digest
from reproduce import publish as module
from reproduce.bundle import figure_sums
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
        ({"real": False}, "generated data"),
        ({"complete": False}, "not whole"),
        ({"notebooks": [{"notebook": "03_ber_sweep", "ok": False}]}, "03_ber_sweep"),
        ({"commit": "0123456789ab-dirty"}, "uncommitted changes"),
        ({"commit": None}, "no commit"),
        ({"commit": ""}, "no commit"),
        ({"commit": "0123456789ab"}, "0123456789ab, which is not in"),
        ({"commit": "HEAD"}, "HEAD, which is not in"),
        ({"rules_sha256": "0" * 64}, "0{64}"),
        ({"rules_sha256": None}, "rules of SHA-256 unknown"),
        ({"figure_sha256": {}}, r"figures/a\.svg is not of this run"),
    ],
)
def test_what_is_not_published(changes, says, build):
    with pytest.raises(ValueError, match=says):
        checked_run("laptop", build(**changes))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda figures: (figures / "data" / "a.csv").write_text("better numbers"), r"figures/data/a\.csv differs"),
        (lambda figures: (figures / "b.csv").touch(), r"figures/b\.csv is not of this run"),
        (lambda figures: (figures / "data" / "b.csv").touch(), r"figures/data/b\.csv is not of this run"),
        (lambda figures: (figures / "a.svg").unlink(), r"figures/a\.svg is missing"),
        (lambda figures: (figures / "statements.csv").unlink(), r"no statements\.csv"),
    ],
)
def test_figures_that_were_changed_added_or_removed(change, says, build):
    change(build() / "laptop" / "figures")
    with pytest.raises(ValueError, match=says):
        checked_run("laptop", build())


def test_runs_that_are_not_there(build):
    with pytest.raises(FileNotFoundError, match="paper"):
        checked_run("paper", build())
    with pytest.raises(ValueError, match="smoke"):
        checked_run("smoke", build())
