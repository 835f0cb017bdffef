"""The report of a run: claims with verdicts, figures and results by notebook, times, environment; the executed notebooks as
pages. `drsrobust.report` builds the part with figures."""

from pathlib import Path
from typing import Any

import jinja2

from drsrobust._files import new_file
from drsrobust.report import figure_entries, templates
from drsrobust.study.notebook import datasets_of
from reproduce import executed
from reproduce.readme_tables import read_claims
from reproduce.runner import tables_of


def write_report(folder: Path, run: dict[str, Any]) -> Path:
    """Writes `folder`/report/index.html and a page per executed notebook; returns the path of the index.

    Args:
        folder: of the run, with figures/ and notebooks/.
        run: as in its run.json.
    """
    report, figures = folder / "report", folder / "figures"
    environment = templates(Path(__file__).parent)
    entries = [_entry(environment, folder, outcome) for outcome in run["notebooks"]]
    # The folder may also hold tables of earlier runs of other notebooks.
    tables = [path.name for outcome in run["notebooks"] for path in tables_of(outcome["notebook"], figures)]
    tables += ["claims.csv"] if (figures / "claims.csv").is_file() else []
    page = environment.get_template("report.html.j2").render(
        title=f"What bit errors do to deep recommenders: {run['profile']} run",
        run=run,
        notebooks=entries,
        tables=sorted(tables),
        seeds=_seeds(run["notebooks"]),
        claims=read_claims(figures / "claims.csv") if "claims.csv" in tables else [],
    )
    with new_file(report / "index.html") as part:
        part.write_text(page)
    return report / "index.html"


def _entry(environment: jinja2.Environment, folder: Path, outcome: dict[str, Any]) -> dict[str, Any]:
    """The template's variables for one notebook; writes the notebook's page."""
    entry = {"peak_mib": 0, "page": None, "opening": "", "results": ""} | outcome
    entry["drawn"] = figure_entries(folder / "figures", outcome["figures"])
    entry["data"] = ", ".join(datasets_of(outcome["parameters"]))
    path = folder / outcome["output"]
    if path.is_file():
        notebook = executed.read(path)
        entry |= {"page": f"{path.stem}.html", "opening": executed.opening(notebook)}
        entry["results"] = executed.results(notebook)
        page = environment.get_template("notebook.html.j2").render(title=outcome["title"], body=executed.body(notebook))
        with new_file(folder / "report" / entry["page"]) as part:
            part.write_text(page)
    return entry


def _seeds(outcomes: list[dict[str, Any]]) -> str:
    """The notebooks' seeds: `0; 00_quickstart: 7`."""
    seeds = {outcome["notebook"]: outcome["parameters"].get("seed") for outcome in outcomes}
    known = [seed for seed in seeds.values() if seed is not None]
    if not known:
        return "none"
    usual = max(known, key=known.count)
    others = [f"{name}: {seed}" for name, seed in seeds.items() if seed not in (None, usual)]
    return "; ".join([str(usual), *others])
