"""Publishing: a finished run on real data becomes the committed figures/."""

import json
import shutil
from pathlib import Path

from drsrobust._files import exclusive, new_file, new_folder
from reproduce.figures_page import figures_page
from reproduce.notebooks import FIGURES, ROOT
from reproduce.package import write_package
from reproduce.profiles import JUDGED
from reproduce.readme_tables import (
    FRONT,
    RECOVERY,
    claims_page,
    with_claims,
    with_gallery,
    with_models,
    with_protections,
    with_result,
)


def publish(
    profile: str,
    build: Path,
    target: Path = FIGURES,
    readme: Path = ROOT / "README.md",
    docs: Path = ROOT / "docs",
    paper: Path = ROOT / "paper",
) -> list[str]:
    """Copies a run's figures, tables and numbers to `target`, with run.json, `CLAIMS.md` and `README.md`, in place of all
    earlier files, and writes what the README, the guides to models and protections, and the article say of them.

    Returns:
        the names of the files in `target`.

    Raises:
        ValueError: the run is missing, unfinished, on generated data, made with uncommitted changes, or of another profile.
    """
    if profile not in JUDGED:
        raise ValueError(f"only runs of {' and '.join(JUDGED)} are published, got {profile}")
    record = build / profile / "run.json"
    if not record.is_file():
        raise ValueError(
            f"there is no finished {profile} run in {build / profile}: make reproduce PROFILE={profile} DATA=..."
        )
    run = json.loads(record.read_text())
    failed = [outcome["notebook"] for outcome in run["notebooks"] if not outcome["ok"]]
    if failed or not run["complete"]:
        raise ValueError(
            f"the {profile} run is not whole ({', '.join(failed) or 'not every notebook was run'}); run it again"
        )
    if not run["real"]:
        raise ValueError(f"the {profile} run used generated data; figures are published from real data: give DATA=...")
    if (run["commit"] or "").endswith("-dirty"):
        raise ValueError(f"the {profile} run was made with uncommitted changes; commit, and run it again")
    source = build / profile / "figures"
    if not (source / "claims.csv").is_file():
        raise ValueError(f"the {profile} run has no claims.csv: its claims could not be evaluated; run it again")
    names = [name for outcome in run["notebooks"] for name in outcome["figures"]]
    pages = {readme: with_gallery(with_claims(readme.read_text(), source / "claims.csv"), source, names)}
    if (source / "models.csv").is_file():
        pages[docs / "models.md"] = with_models((docs / "models.md").read_text(), source / "models.csv")
    if all((source / "data" / name).is_file() for name in (RECOVERY, FRONT)):
        pages[readme] = with_result(pages[readme], source / "data", run)
        pages[docs / "protection.md"] = with_protections((docs / "protection.md").read_text(), source / "data")
    with exclusive(build / "publish"), new_folder(target) as part:
        (part / "data").mkdir()
        for name in names:
            for path in (*source.glob(f"{name}.*"), *source.glob(f"data/{name}.*")):
                shutil.copy(path, part / path.relative_to(source))
        for table in (*source.glob("*.csv"), *source.glob("*.json")):
            shutil.copy(table, part / table.name)
        (part / "run.json").write_text(json.dumps(run, indent=1) + "\n")
        (part / "CLAIMS.md").write_text(claims_page(part / "claims.csv", run))
        (part / "README.md").write_text(figures_page(part, run))
        write_package(part, paper, run)
    for page, written in pages.items():
        with new_file(page) as part:
            part.write_text(written)
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
