"""`figures/README.md`: the table of the study's figures and statements, then every figure with its message and data."""

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from drsrobust_extras.pages.plots.save import read_words
from drsrobust_study import fleet_risk, memories
from reproduce.published_notebooks import FOLDER
from reproduce.quantities import message, with_message
from reproduce.readme_tables import taken
from reproduce.statements import TABLE, load_statements, statements_of
from reproduce.statements_page import SECOND_HAND, statements_table

WIDTH = 830  # pixels of a figure of 7 inches
# Tables in place of figures, in words.
TABLES = {
    "12_memory_faults_today": memories.worded,
    "13_fleet_risk": fleet_risk.worded,
    "13_fleet_risk_today": memories.fleets_worded,
}


def figures_page(figures: Path, run: dict[str, Any]) -> str:
    """The text of `figures/README.md`: the table of statements, then main figures, then the others.

    Args:
        figures: folder with the figures and `data/`.
        run: as in its run.json.
    """
    lines = ["# Figures of the published run", ""]
    peak, machine = max(one.get("peak_mib", 0) for one in run["notebooks"]) / 1024, run["machine"]
    lines += [
        f"Made by `make publish` from a {run['profile']} run ({run['started']}, commit {run['commit'] or 'unknown'}). It took "
        f"{taken(run)} ({machine.get('processor', 'processor unknown')}), and at most {peak:.1f} GiB of memory in a notebook. "
        "Each CSV holds what is drawn.",
        "",
        f"{SECOND_HAND} [CLAIMS.md](CLAIMS.md) has rules and checks.",
        "",
        statements_table(figures / TABLE),
    ]
    drawn = [(name, one["notebook"]) for one in run["notebooks"] for name in one["figures"]]
    for heading, appendix in (("Main figures", False), ("Appendix", True)):
        shown = [pair for pair in drawn if bool(read_words(figures, pair[0]).get("appendix")) == appendix]
        if shown:
            lines += ["", f"## {heading}"]
        for name, notebook in shown:
            words = read_words(figures, name)
            shows = message(name, figures)
            lines += ["", f'<a id="{name}"></a>', "", f"### {shows or words['title']}", ""]
            lines += [
                f'<img src="{name}.png" width="{WIDTH}" alt="{with_message(words, shows)}">',
                "",
                words["caption"],
                "",
                *_details(words),
            ]
            files = f"[SVG]({name}.svg), [CSV](data/{name}.csv), {_notebook(figures, notebook)}"
            lines += [f"`{name}`: {files}; `.venv/bin/python -m reproduce {notebook}`; {_answer(notebook)}."]
    drawn_tables = {name: in_words for name, in_words in TABLES.items() if (figures / f"{name}.csv").is_file()}
    lines += ["", "## Tables"] if drawn_tables else []
    for name, in_words in drawn_tables.items():
        notebook = next(one["notebook"] for one in run["notebooks"] if name.startswith(one["notebook"]))
        lines += ["", f'<a id="{name}"></a>', "", *_table(figures / f"{name}.csv", in_words), ""]
        files = f"[CSV]({name}.csv), {_notebook(figures, notebook)}"
        lines += [f"`{name}`: {files}; `.venv/bin/python -m reproduce {notebook}`; {_answer(notebook)}."]
    return "\n".join(lines) + "\n"


def _notebook(figures: Path, name: str) -> str:
    """Links to a notebook, and to what the published run made of it where that is there."""
    executed = f"{FOLDER}/{name}.ipynb"
    words = f" ([with its results]({executed}))" if (figures / executed).is_file() else ""
    return f"[{name}](../notebooks/{name}.ipynb){words}"


def _table(path: Path, in_words: Callable[[pd.DataFrame], pd.DataFrame]) -> list[str]:
    """A table with its caption, as lines of Markdown."""
    words = json.loads(path.with_suffix(".json").read_text())
    table = in_words(pd.read_csv(path)).astype(str)
    rows = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return [words["caption"], "", *(f"| {' | '.join(row)} |" for row in rows), "", *_details(words)[:-1]]


def _details(words: dict[str, Any]) -> list[str]:
    """Data, numbers of trials and what bars are over, folded."""
    text = escape(words.get("details", ""), quote=False)
    return [f"<details><summary>Data, trials and intervals</summary>{text}</details>", ""] if text else []


def _answer(notebook: str) -> str:
    """What of the study a notebook's figures answer."""
    own = [load_statements()[name] for name in statements_of(notebook)]
    if not own:
        return "ours"
    published = ", ".join(dict.fromkeys(one.published for one in own))
    return f"{published} of the study ({', '.join(one.name for one in own)})"
