"""`figures/README.md`: every published figure with its message, data, notebook, command, and what of the paper it answers."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from drsrobust.plots import read_words
from drsrobust_study.fleet_risk import worded
from reproduce.quantities import message, with_message
from reproduce.readme_tables import taken

WIDTH = 830  # pixels of a figure of 7 inches
FLEET = "13_fleet_risk"  # a table in place of a figure
# Begin of a figure's name -> what of the paper it answers, the longest one that fits. Of the paper only the abstract and the
# released scripts are known.
ANSWERS = {
    "00": "ours: quality of the models without errors",
    "01": "ours, after the abstract: which bits matter (C8)",
    "02": "known from the scripts: the grids of the dummy model (C1)",
    "03_ber_sweep": "known from the scripts: models, rates and protocols (C3a to C3c, C10b)",
    "03_ber_sweep_scores": "ours: what ranking logits and rules for NaN would change",
    "04": "ours, after the abstract and arXiv:2405.01741: components (C2a, C2b, C9, C10a, C11)",
    "04_component_vulnerability_shapes": "ours: errors other than single flips",
    "05": "known from abstract and scripts: up to 30 % by clipping (C4)",
    "06": "known from abstract and scripts: selective bit protection (C5a to C5c)",
    "07": "known from the abstract: ABFT; numbers of arXiv:2103.00130 (C6a to C6c, C13)",
    "08": "ours: all protections on the same error maps",
    "09": "known from abstract and tool: speed of injection (C7)",
    "10": "ours: a model, rows and a metric of one's own",
    "11": "ours: one flip, from the bit to the rank of an item",
    "12": "ours: faults of memory chips, with an extent (C12)",
    "13": "ours: from failure rates to wrong recommendations a day",
    "14": "ours: what to protect within a budget (C19)",
    "15": "ours: number formats of weights (C14, C17a, C17b)",
    "16": "ours: chosen against random flips (C15)",
    "17": "ours: errors during training, detectors and repairs (C16a, C16b)",
    "18": "ours: what fixed probe rows detect (C18)",
}


def figures_page(figures: Path, run: dict[str, Any]) -> str:
    """The text of `figures/README.md`, main figures first.

    Args:
        figures: folder with the figures and `data/`.
        run: as in its run.json.
    """
    lines = ["# Figures of the published run", ""]
    peak, machine = max(one.get("peak_mib", 0) for one in run["notebooks"]) / 1024, run["machine"]
    lines += [
        f"Made by `make publish` from a {run['profile']} run ({run['started']}, commit {run['commit'] or 'unknown'}). It took "
        f"{taken(run)} ({machine.get('processor', 'processor unknown')}), and at most {peak:.1f} GiB of memory in a notebook. "
        "Each CSV holds what is drawn. [CLAIMS.md](CLAIMS.md) has the verdicts.",
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
            ]
            files = f"[SVG]({name}.svg), [CSV](data/{name}.csv), [{notebook}](../notebooks/{notebook}.ipynb)"
            lines += [f"`{name}`: {files}; `.venv/bin/python -m reproduce {notebook}`; {_answer(name)}."]
    risk = figures / f"{FLEET}.csv"
    if risk.is_file():
        lines += ["", "## Tables", "", f'<a id="{FLEET}"></a>', "", *_fleet_table(risk), ""]
        files = f"[CSV]({FLEET}.csv), [{FLEET}](../notebooks/{FLEET}.ipynb)"
        lines += [f"`{FLEET}`: {files}; `.venv/bin/python -m reproduce {FLEET}`; {_answer(FLEET)}."]
    return "\n".join(lines) + "\n"


def _fleet_table(path: Path) -> list[str]:
    """The table of fleet risk with its caption, as lines of Markdown."""
    table = worded(pd.read_csv(path)).astype(str)
    rows = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    caption = json.loads(path.with_suffix(".json").read_text())["caption"]
    return [caption, "", *(f"| {' | '.join(row)} |" for row in rows)]


def _answer(name: str) -> str:
    return ANSWERS[max((start for start in ANSWERS if name.startswith(start)), key=len)]
