"""The report of a run: one page with claims and all figures, what was run on which data, and the executed notebooks as pages.

The pages take nothing from elsewhere, so they are read without a network. The table of claims comes first: `claims.html.j2`
with the rows of the run's claims.csv; a run without that file has no such part.
"""

import re
from pathlib import Path
from typing import Any

import jinja2

from drsrobust._files import new_file
from drsrobust.study.notebook import datasets_of
from reproduce import executed
from reproduce.readme_tables import read_claims
from reproduce.runner import tables_of


def write_report(folder: Path, run: dict[str, Any]) -> Path:
    """Writes `folder`/report/index.html and a page per executed notebook; gives the path of the index.

    Args:
        folder: of the run, with figures/ and notebooks/.
        run: as in its run.json.
    """
    report = folder / "report"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    entries = [_entry(environment, folder, outcome) for outcome in run["notebooks"]]
    figures = folder / "figures"  # which may hold tables of earlier runs of other notebooks too
    tables = [path.name for one in run["notebooks"] for path in tables_of(one["notebook"], figures)]
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
    """What the template needs of one notebook; writes its page."""
    entry = {"peak_mib": 0, "page": None, "opening": "", "seen": ""} | outcome
    figures = folder / "figures"
    entry["drawn"] = [
        {"name": name, **_words(figures, name, outcome["title"]), **_frame(figures, name)}
        for name in outcome["figures"]
    ]
    entry["data"] = ", ".join(datasets_of(outcome["parameters"]))
    path = folder / outcome["output"]
    if path.is_file():
        notebook = executed.read(path)
        entry |= {"page": f"{path.stem}.html", "opening": executed.opening(notebook), "seen": executed.seen(notebook)}
        page = environment.get_template("page.html.j2").render(title=outcome["title"], body=executed.body(notebook))
        with new_file(folder / "report" / entry["page"]) as part:
            part.write_text(page)
    return entry


def _words(figures: Path, name: str, title: str) -> dict[str, str]:
    """Caption, title and what is shown: the first lines of the figure's CSV."""
    with open(figures / "data" / f"{name}.csv") as handle:
        caption, *more = [line[1:].strip() for line in handle if line.startswith("#")]
    named = dict(line.split(": ", 1) for line in more)
    return {"caption": caption, "title": named.get("Title", title), "shown": named.get("Shown", caption)}


def _frame(figures: Path, name: str) -> dict[str, float]:
    """Width and height of the figure in pixels, and the height above the caption in it, which the page gives as text."""
    drawing = (figures / f"{name}.svg").read_text()
    width, height = (float(re.search(rf'{side}="([\d.]+)pt"', drawing)[1]) for side in ("width", "height"))
    caption = re.search(r'<g id="caption">.*?translate\([-\d.]+ ([\d.]+)\)', drawing, re.DOTALL)
    above = float(caption[1]) - 9 if caption else height  # in points; its first line's base, less a line
    return {"width": round(width * 4 / 3), "height": round(height * 4 / 3), "above": round(above * 4 / 3)}


def _seeds(outcomes: list[dict[str, Any]]) -> str:
    """The notebooks' seeds: `0; 00_quickstart: 7`."""
    seeds = {outcome["notebook"]: outcome["parameters"].get("seed") for outcome in outcomes}
    given = [seed for seed in seeds.values() if seed is not None]
    if not given:
        return "none"
    usual = max(given, key=given.count)
    others = [f"{name}: {seed}" for name, seed in seeds.items() if seed not in (None, usual)]
    return "; ".join([str(usual), *others])
