"""The report of a run: statements with verdicts, figures and results by notebook, times, environment; the executed notebooks as
pages. `drsrobust_extras.pages.report` builds the part with figures."""

import zipfile
from pathlib import Path
from typing import Any

import jinja2
import nbformat

from drsrobust._files import new_file
from drsrobust_extras.pages.plots.curves import mitigation_label
from drsrobust_extras.pages.report import figure_entries, templates
from drsrobust_study.findings import number
from drsrobust_study.notebook import datasets_of
from reproduce import executed
from reproduce.agreement import agreement, differing, published_profile
from reproduce.notebooks import FIGURES
from reproduce.profiles import JUDGED
from reproduce.quantities import message, with_message
from reproduce.readme_tables import FRONT
from reproduce.runner import tables_of
from reproduce.statements import TABLE
from reproduce.statements_page import SECOND_HAND, statement_rows
from reproduce.tables import read_rows


def write_report(folder: Path, run: dict[str, Any]) -> Path:
    """Writes `folder`/report/index.html and a page per executed notebook; returns the path of the index.

    Args:
        folder: of the run, with figures/ and notebooks/.
        run: as in its run.json.
    """
    report, figures = folder / "report", folder / "figures"
    environment = templates(Path(__file__).parent)
    judged = run["profile"] in JUDGED
    entries = [_entry(environment, folder, outcome, judged) for outcome in run["notebooks"]]
    # The folder may also hold tables of earlier runs of other notebooks.
    tables = [path.name for outcome in run["notebooks"] for path in tables_of(outcome["notebook"], figures)]
    tables += [TABLE] if (figures / TABLE).is_file() else []
    compared = run["complete"] and run["profile"] == published_profile() and TABLE in tables
    page = environment.get_template("report.html.j2").render(
        title=f"What bit errors do to deep recommenders: {run['profile']} run",
        run=run,
        notebooks=entries,
        tables=sorted(tables),
        seeds=_seeds(run["notebooks"]),
        agreement=_agreement(figures) if compared else None,
        judged=judged,
        statements=_statements(figures if judged else FIGURES),
        second_hand=SECOND_HAND,
        protections=_protections(figures / "data") if judged else None,
    )
    _zip_numbers(figures, report / "numbers.zip")
    with new_file(report / "index.html") as part:
        part.write_text(page)
    return report / "index.html"


def _statements(figures: Path) -> list[dict[str, Any]]:
    """The statements of a folder of figures: of a run too small for verdicts those of the published run are shown."""
    path = figures / TABLE
    return statement_rows(path) if path.is_file() else []


def _protections(data: Path) -> dict[str, Any] | None:
    """Heads and rows of the table of protections, each value with what it is sorted by; None without the figure."""
    if not (data / FRONT).is_file():
        return None
    rows, costs = [], read_rows(data / FRONT)
    for cost in costs:
        share = cost["recovery"]
        cells = [(share or "-9", f"{round(100 * float(share), 1) + 0.0:.1f} %" if share else "")]
        cells += [(cost[name], f"{number(float(cost[name]))} %") for name in ("stored_percent", "overhead_percent")]
        rows.append({"name": mitigation_label(cost["mitigation"]), "values": cells})
    heads = ["protection", f"flips at {number(float(costs[0]['ber']))}", "extra bits", "longer inference"]
    return {"heads": heads, "rows": rows}


def _zip_numbers(figures: Path, path: Path) -> None:
    """All CSVs of a folder of figures in one archive, whose bytes depend on them alone."""
    with new_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for table in sorted(figures.rglob("*.csv")):
            name = zipfile.ZipInfo(table.relative_to(figures).as_posix(), (2020, 1, 1, 0, 0, 0))
            archive.writestr(name, table.read_bytes(), zipfile.ZIP_DEFLATED)


def _agreement(figures: Path) -> dict[str, Any]:
    """Figures and verdicts that disagree with the published ones, and the summary."""
    found = agreement(FIGURES, figures)
    tables = zip(("figures", "verdicts"), differing(found), strict=True)
    return {name: table.to_dict("records") for name, table in tables} | {"summary": found["summary"]}


def _entry(environment: jinja2.Environment, folder: Path, outcome: dict[str, Any], judged: bool) -> dict[str, Any]:
    """The template's variables for one notebook, with messages and results if the run is judged; writes the notebook's page."""
    entry = {"peak_mib": 0, "cpu_seconds": 0.0, "page": None, "opening": "", "results": ""} | outcome
    drawn = figure_entries(folder / "figures", outcome["figures"])
    if judged:
        drawn = [_with_message(one, message(one["name"], folder / "figures")) for one in drawn]
    entry["drawn"], entry["appendix"] = ([one for one in drawn if one["appendix"] == kind] for kind in (False, True))
    entry["data"] = ", ".join(datasets_of(outcome["parameters"]))
    path = folder / outcome["output"]
    if path.is_file():
        notebook = nbformat.read(path, as_version=4)
        entry |= {"page": f"{path.stem}.html", "opening": executed.opening(notebook)}
        entry["results"] = executed.results(notebook) if judged else ""
        page = environment.get_template("notebook.html.j2").render(title=outcome["title"], body=executed.body(notebook))
        with new_file(folder / "report" / entry["page"]) as part:
            part.write_text(page)
    return entry


def _with_message(figure: dict[str, Any], shows: str) -> dict[str, Any]:
    return figure | {"title": shows or figure["title"], "alt": with_message(figure, shows)}


def _seeds(outcomes: list[dict[str, Any]]) -> str:
    """The notebooks' seeds: `0; 00_quickstart: 7`."""
    seeds = {outcome["notebook"]: outcome["parameters"].get("seed") for outcome in outcomes}
    known = [seed for seed in seeds.values() if seed is not None]
    if not known:
        return "none"
    usual = max(known, key=known.count)
    others = [f"{name}: {seed}" for name, seed in seeds.items() if seed not in (None, usual)]
    return "; ".join([str(usual), *others])
