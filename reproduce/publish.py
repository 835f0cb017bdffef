"""Publishing: a finished run on real data becomes the committed figures/."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from drsrobust._files import cache_folder, new_file, new_folder
from drsrobust._locks import exclusive
from reproduce import other_papers
from reproduce.bundle import altered_figures
from reproduce.figures_page import figures_page
from reproduce.notebook_index import write_index
from reproduce.notebooks import FIGURES, ROOT
from reproduce.package import write_package
from reproduce.profiles import JUDGED
from reproduce.published_notebooks import FOLDER, write_notebooks
from reproduce.readme_tables import (
    FRONT,
    MODELS,
    RANKING,
    with_gallery,
    with_models,
    with_protections,
    with_result,
    with_statements,
)
from reproduce.runner import read_run
from reproduce.statements import RULES, TABLE
from reproduce.statements_page import statements_page


def publish(
    profile: str,
    build: Path,
    target: Path = FIGURES,
    readme: Path = ROOT / "README.md",
    docs: Path = ROOT / "docs",
    paper: Path = ROOT / "paper",
    cached: bool = False,
) -> list[str]:
    """Copies a run's figures, tables, verdicts, record and executed notebooks (`notebooks/`) to `target`, in place of all
    earlier files, and writes `CLAIMS.md` and `README.md` there, and what the README, the guides to models and protections, and
    the article say of them. It makes no number, verdict or sum of its own.

    Args:
        profile, build: of the run.
        target, readme, docs, paper: what is written.
        cached: whether a run may be published that used models or trials of an earlier one; the texts then give both times.

    Returns:
        the names of the files in `target`.

    Raises:
        FileNotFoundError, ValueError: as `checked_run` and `write_notebooks`; or `cached` is not given for such a run.
    """
    run, source = checked_run(profile, build), build / profile / "figures"
    if run["cached"] and not cached:
        raise ValueError(
            f"the {profile} run used models or trials of an earlier run, so its minutes are not those of a reader; empty "
            f"{cache_folder()} and run it again, or give CACHED=1 to publish both times"
        )
    names = [name for outcome in run["notebooks"] for name in outcome["figures"]]
    with exclusive(build / "publish"), new_folder(target) as part:
        shutil.copytree(source, part, dirs_exist_ok=True)
        write_notebooks([build / profile / outcome["output"] for outcome in run["notebooks"]], part / FOLDER)
        page = with_statements(with_gallery(readme.read_text(), part, names), part / TABLE)
        page = with_result(page, part, run)
        pages = {readme: page}
        if (part / MODELS).is_file():
            pages[docs / "models.md"] = with_models((docs / "models.md").read_text(), part / MODELS)
        if all((part / "data" / name).is_file() for name in (FRONT, RANKING)):
            pages[docs / "protection.md"] = with_protections((docs / "protection.md").read_text(), part / "data")
        (part / "run.json").write_text(json.dumps(run, indent=1) + "\n")
        (part / "CLAIMS.md").write_text(
            statements_page(part / TABLE, run, other_papers.as_markdown(other_papers.table(part)))
        )
        (part / "README.md").write_text(figures_page(part, run))
        write_package(part, paper, run)
    for page, written in pages.items():
        with new_file(page) as part:
            part.write_text(written)
    if target == FIGURES:
        write_index()  # which leads to the executed notebooks
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def checked_run(profile: str, build: Path) -> dict[str, Any]:
    """The record of a run that may be published.

    Raises:
        FileNotFoundError: the run is missing.
        ValueError: it is not whole, on generated data, of no commit of this repository, made with uncommitted changes, or of
            another profile; or its figures, or its rules, are not those that it recorded.
    """
    if profile not in JUDGED:
        raise ValueError(f"only runs of {' and '.join(JUDGED)} are published, got {profile}")
    run = read_run(build / profile)
    failed = [outcome["notebook"] for outcome in run["notebooks"] if not outcome["ok"]]
    if failed or not run["complete"]:
        raise ValueError(
            f"the {profile} run is not whole ({', '.join(failed) or 'not every notebook was run'}); run it again"
        )
    if not run["real"]:
        raise ValueError(f"the {profile} run used generated data; figures are published from real data: give DATA=...")
    _check_commit(profile, run["commit"], run.get("rules_sha256"))
    source = build / profile / "figures"
    if not (source / TABLE).is_file():
        raise ValueError(f"the {profile} run has no {TABLE}: it has no verdicts; run it again")
    for name, what in altered_figures(source, run).items():
        raise ValueError(f"{source / name} {what}; run it again")
    return run


def _check_commit(profile: str, commit: str | None, rules: str | None) -> None:
    """Raises ValueError unless a commit, as `git describe --always` names it, is in this repository, with the rules of this
    SHA-256."""
    if not commit:
        raise ValueError(
            f"the {profile} run has no commit: it was made outside a git checkout; run it again in the repository"
        )
    if commit.endswith("-dirty"):
        raise ValueError(f"the {profile} run was made with uncommitted changes; commit, and run it again")
    name = commit.rpartition("-g")[2]
    name = name if re.fullmatch("[0-9a-f]{7,40}", name) else f"refs/tags/{commit}"
    command = ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    if subprocess.run(command, cwd=ROOT, capture_output=True).returncode:
        raise ValueError(
            f"the {profile} run was made by commit {commit}, which is not in this repository; run it again"
        )
    path = f"{name}:{RULES.relative_to(ROOT).as_posix()}"
    there = subprocess.run(["git", "show", path], cwd=ROOT, capture_output=True).stdout
    if hashlib.sha256(there).hexdigest() != rules:
        raise ValueError(
            f"the {profile} run was judged by rules of SHA-256 {rules or 'unknown'}, not by those of its commit {commit}; "
            "run it again"
        )
