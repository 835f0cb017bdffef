"""What archives and journals ask for, from the published run: the article, the artifact appendix and the RO-Crate."""

import json
from pathlib import Path
from typing import Any

import jinja2

from drsrobust import __version__
from drsrobust_extras.pages.plots.names import display_name
from drsrobust_study.findings import number
from reproduce import other_papers
from reproduce.readme_tables import taken
from reproduce.statements import TABLE
from reproduce.statements_page import SECOND_HAND, statement_rows, tally
from reproduce.tables import read_rows

ARTICLE, APPENDIX, CRATE = "article.md", "artifact.md", "ro-crate-metadata.json"
NAME = "drsrobust: what bit errors do to deep recommenders, and what to protect"
LICENCE = "https://spdx.org/licenses/Apache-2.0"


def write_package(figures: Path, paper: Path, run: dict[str, Any]) -> None:
    """Writes the article and the appendix into `paper`, and the crate into `figures`.

    Args:
        figures: the published figures with statements.csv and models.csv.
        paper: folder with `article.md.j2`.
        run: as in its run.json.
    """
    (figures / CRATE).write_text(json.dumps(crate(figures, run), indent=1) + "\n")
    (paper / ARTICLE).write_text(article(figures, paper, run))
    (paper / APPENDIX).write_text(appendix(figures, run))


def article(figures: Path, paper: Path, run: dict[str, Any]) -> str:
    """The text of the article, with the numbers of the run."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(paper),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": number, "model": display_name, "cell": _cell}
    statements = statement_rows(figures / TABLE)
    return environment.get_template(f"{ARTICLE}.j2").render(
        run=run,
        settings={outcome["notebook"]: outcome.get("parameters", {}) for outcome in run["notebooks"]},
        statements=statements,
        verdicts=tally(figures / TABLE),
        second_hand=SECOND_HAND,
        others=other_papers.as_markdown(other_papers.table(figures)),
        models=read_rows(figures / "models.csv"),
        version=run["versions"].get("drsrobust", __version__),
    )


def _cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def appendix(figures: Path, run: dict[str, Any]) -> str:
    """The artifact appendix (ACM badges 1.1): what is available, works and was reproduced; minutes and memory per statement."""
    outcomes = {one["notebook"]: one for one in run["notebooks"]}
    lines = [
        "# Artifact appendix",
        "",
        "**Available.** Source, figures with their data, and the record of the published run are in this repository, under "
        "Apache-2.0. `make bundle` makes the archive (models, figures, record, SHA-256 sums) that is to be deposited.",
        "",
        "**Functional.** `make reproduce PROFILE=smoke` installs pinned versions and runs every notebook on generated data in "
        "about three minutes; `make test` runs the tests. Linux, Python 3.11, 2 cores, 4 GiB of memory, 2 GB of disk.",
        "",
        f"**Reproduced.** `make reproduce DATA=folder` repeats the published run: {taken(run)}, "
        f"at most {_peak(run['notebooks'])} of memory. `make compare` then says, figure by "
        "figure and verdict by verdict, whether it agrees. Minutes are of a statement's own notebook, after `00_models`, "
        "which trains most models.",
        "",
        "| statement | verdicts | command | minutes | CPU seconds | memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in statement_rows(figures / TABLE):
        own = next((one for name, one in outcomes.items() if row["figure"].startswith(name)), None)
        if own is None:
            continue
        words = "; ".join(filter(None, (row["movielens"], row["criteo"])))
        command, cpu = f"`.venv/bin/python -m reproduce {own['notebook']}`", own.get("cpu_seconds", 0)
        cells = (row["name"], words, command, f"{own['seconds'] / 60:.1f}", f"{cpu:,.0f}" if cpu else "", _peak([own]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _peak(outcomes: list[dict[str, Any]]) -> str:
    return f"{max(one.get('peak_mib', 0) for one in outcomes) / 1024:.1f} GiB"


def crate(figures: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The published run as an RO-Crate 1.1: files, software, and the action that made them."""
    kinds = {".csv": "text/csv", ".svg": "image/svg+xml", ".png": "image/png", ".json": "application/json"}
    kinds[".md"] = "text/markdown"
    files = sorted(path for path in figures.rglob("*") if path.is_file() and path.name != CRATE)
    names = [path.relative_to(figures).as_posix() for path in files]
    date = run["started"].replace(" UTC", "Z").replace(" ", "T")
    parts = [{"@id": name} for name in names]
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Figures and verdicts of the published {run['profile']} run of drsrobust",
        "description": "Figures (SVG, PNG), their numbers (CSV), words (JSON), verdicts, and the record of the run.",
        "datePublished": date,
        "license": {"@id": LICENCE},
        "author": {"@id": "#authors"},
        "publisher": {"@id": "#authors"},
        "hasPart": parts,
        "mentions": {"@id": "#run"},
    }
    software = {
        "@id": "#drsrobust",
        "@type": "SoftwareApplication",
        "name": NAME,
        "softwareVersion": run["versions"].get("drsrobust", __version__),
        "version": run["commit"] or "unknown",
        "license": {"@id": LICENCE},
    }
    action = {
        "@id": "#run",
        "@type": "CreateAction",
        "name": f"make reproduce PROFILE={run['profile']}",
        "startTime": date,
        "instrument": {"@id": "#drsrobust"},
        "object": [{"@id": f"#{name}"} for name in run["datasets"]],
        "result": parts,
    }
    described = {"@type": "CreativeWork", "@id": CRATE, "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"}}
    authors = {"@id": "#authors", "@type": "Organization", "name": "The drsrobust authors"}
    graph: list[dict[str, Any]] = [described | {"about": {"@id": "./"}}, root, software, action, authors]
    graph += [{"@id": f"#{name}", "@type": "Dataset", "name": name} for name in run["datasets"]]
    graph.append({"@id": LICENCE, "@type": "CreativeWork", "name": "Apache License 2.0"})
    for path, name in zip(files, names, strict=True):
        entry = {"@id": name, "@type": "File", "name": path.name, "contentSize": str(path.stat().st_size)}
        graph.append(entry | {"encodingFormat": kinds.get(path.suffix, "application/octet-stream")})
    return {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph}
