"""The report of a run: one page with all figures, what was run on which data, and the executed notebooks as pages."""

from pathlib import Path
from typing import Any

import jinja2

from drsrobust._storage import new_file
from reproduce.claims_page import read_claims


def write_report(folder: Path, run: dict[str, Any]) -> Path:
    """Writes `folder`/report/index.html and a page per executed notebook; gives the path of the index.

    Args:
        folder: of the run, with figures/ and notebooks/.
        run: as in its run.json.
    """
    report = folder / "report"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    entries = []
    for outcome in run["notebooks"]:
        page = _page(folder / outcome["output"], report)
        figures = [{"name": name, "caption": _caption(folder, name)} for name in outcome["figures"]]
        entries.append(
            outcome | {"page": page, "drawn": figures, "data": ", ".join(datasets_of(outcome["parameters"]))}
        )
    tables = sorted(path.name for path in (folder / "figures").glob("*.csv"))
    claims = read_claims(folder / "figures" / "claims.csv") if "claims.csv" in tables else []
    page = environment.get_template("report.html.j2").render(run=run, notebooks=entries, tables=tables, claims=claims)
    with new_file(report / "index.html") as part:
        part.write_text(page)
    return report / "index.html"


def datasets_of(parameters: dict[str, Any]) -> list[str]:
    """The data sets that a notebook with these parameters reads."""
    if "datasets" in parameters:
        return parameters["datasets"]
    return [parameters["dataset"]] if "dataset" in parameters else []


def _page(executed: Path, report: Path) -> str | None:
    """The executed notebook as a page beside the report; its name, None when there is no notebook."""
    from nbconvert import HTMLExporter

    if not executed.is_file():
        return None
    body, _ = HTMLExporter(embed_images=True).from_filename(str(executed))
    name = f"{executed.stem}.html"
    with new_file(report / name) as part:
        part.write_text(body)
    return name


def _caption(folder: Path, name: str) -> str:
    """The first line of the figure's CSV is its caption."""
    with open(folder / "figures" / "data" / f"{name}.csv") as handle:
        return handle.readline().removeprefix("# ").strip()
