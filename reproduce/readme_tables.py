"""What `make publish` writes into README.md, docs/models.md and docs/protection.md from a run's CSVs."""

import re
import textwrap
from pathlib import Path
from typing import Any

from drsrobust_extras.pages.plots.save import read_words
from drsrobust_study.findings import interval, number
from reproduce.published_notebooks import FOLDER
from reproduce.quantities import filled, messages
from reproduce.statements_page import tally
from reproduce.tables import read_rows

END = "<!-- end of the table -->"
STATEMENTS_BEGIN, STATEMENTS_END = (
    "<!-- from figures/statements.csv, by make publish -->",
    "<!-- end of the verdicts -->",
)
MODELS_BEGIN = "<!-- from figures/00_models_table.csv, by make publish -->"
PROTECTIONS_BEGIN = "<!-- from figures/data/08_mitigation_recovery_front.csv, by make publish -->"
PROTECTIONS_END = "<!-- end of the protections -->"
FRONT, MODELS = "08_mitigation_recovery_front.csv", "00_models_table.csv"
RANKING = "12_memory_faults_ranking.csv"
RESULT_BEGIN = "<!-- result: from reproduce/messages.toml, by make publish -->"
RESULT_END = "<!-- end of the result -->"
GALLERY_BEGIN, GALLERY_END = "<!-- gallery: by make publish -->", "<!-- end of the gallery -->"
STRESS = 1e-3  # the rate at which protections under faults of chips are compared
COLUMNS = 3  # of the gallery
LEAD = "12_memory_faults_lead"  # the figure that opens the README


def taken(run: dict[str, Any]) -> str:
    """How long a run took, where, and whether it began with an empty cache."""
    from_empty, here = (f"{run[key] / 60:.0f} minutes" for key in ("seconds_from_empty", "seconds"))
    earlier = f" ({here} with models and trials of an earlier run at hand)" if run["cached"] else ""
    cpu = f", {run['cpu_seconds']:,.0f} CPU seconds" if run.get("cpu_seconds") else ""
    return f"{from_empty} on {run['machine']['cores']} cores{earlier}{cpu}"


def made_by(run: dict[str, Any]) -> str:
    """The version of this package that made a run's figures, and its commit."""
    return f"version {run.get('versions', {}).get('drsrobust', 'unknown')}, commit {run.get('commit') or 'unknown'}"


def with_result(page: str, figures: Path, run: dict[str, Any]) -> str:
    """A README with the results in a few bullets, which version found them, and how long the run took.

    Args:
        page: the text.
        figures: folder of the figures.
        run: as in its run.json.

    Raises:
        ValueError: the marks are missing.
    """
    try:
        result = filled(messages()["readme"]["result"], figures)
    except LookupError as error:
        result = f"The published run has no results for this page: {error}."
    lines = [
        *result.strip().splitlines(),
        "",
        f"(Results, figures and verdicts of {made_by(run)}: one run, {taken(run)}.)",
    ]
    wrapped = [textwrap.fill(line, 128, subsequent_indent="  " if line.startswith("- ") else "") for line in lines]
    return _replaced(page, RESULT_BEGIN, RESULT_END, "\n".join(wrapped), "the result")


def with_gallery(page: str, figures: Path, names: list[str]) -> str:
    """A README with the main figures as thumbnails that link to figures/README.md.

    Args:
        page: the text.
        figures: folder of the figures.
        names: of all figures, in their order.

    Raises:
        ValueError: the marks are missing.
    """
    main = [name for name in names if not read_words(figures, name).get("appendix") and name != LEAD]
    cells = []
    for name in main:
        words = read_words(figures, name)
        title = re.split(r",(?!\d)|(?<!Fig)\. | \(", words["title"].removesuffix("."))[0]
        cells.append(f'<a href="figures/README.md#{name}"><img src="figures/{name}.png" width="260" alt="{title}"></a>')
    rows = [cells[at : at + COLUMNS] for at in range(0, len(cells), COLUMNS)]
    lines = [_line(*[""] * COLUMNS), _line(*["---"] * COLUMNS)]
    lines += [f"| {' | '.join(row + [''] * (COLUMNS - len(row)))} |" for row in rows]
    if (figures / FOLDER).is_dir():
        lines += [
            "",
            f"All of them with code and tables, without running anything: the [executed notebooks](figures/{FOLDER}).",
        ]
    return _replaced(page, GALLERY_BEGIN, GALLERY_END, "\n".join(lines), "the gallery")


def with_statements(page: str, path: Path) -> str:
    """A README with how many statements of the study came out how.

    Args:
        page: the text.
        path: of `statements.csv`.

    Raises:
        ValueError: the marks are missing.
    """
    text = f"Verdicts, one for each part of a statement and set of data: {tally(path)} ([table](figures/README.md), [rules "
    text += "and checks](figures/CLAIMS.md))."
    return _replaced(page, STATEMENTS_BEGIN, STATEMENTS_END, "\n".join(textwrap.wrap(text, 128)), "the verdicts")


def with_models(page: str, path: Path) -> str:
    """A docs/models.md with Table II of the study between its two marks.

    Args:
        page: the text.
        path: of the models' table of `00_models`.

    Raises:
        ValueError: the marks are missing.
    """
    lines = _header("data set", "model", "AUC over trainings", "trainings", "log loss", "parameters", "CPU seconds")
    for row in read_rows(path):
        auc = interval(*(float(row[name] or "nan") for name in ("auc", "auc_low", "auc_high")))
        numbers = (f"{float(row['logloss']):.4f}", f"{int(row['parameters']):,}")
        cpu = f"{float(row['cpu_seconds']):.0f}" if row["cpu_seconds"] else ""
        lines.append(_line(row["dataset"], row["model"], auc, row["n"], *numbers, cpu))
    return _replaced(page, MODELS_BEGIN, END, "\n".join(lines), "models")


def with_protections(page: str, data: Path) -> str:
    """A docs/protection.md with its table between its two marks: the share that each protection recovers of the AUC lost to
    flips, and of that lost to a fault of a memory chip, and its cost, in the figure's order.

    Args:
        page: the text.
        data: folder of the figures' CSVs; the two that are read hold one model, data set, protocol and rate.

    Raises:
        ValueError: the marks are missing.
        FileNotFoundError: a CSV is missing.
    """
    from drsrobust_extras.pages.plots.curves import mitigation_label

    costs = {row["mitigation"]: row for row in read_rows(data / FRONT)}
    ranked = {row["mitigation"]: row for row in read_rows(data / RANKING)}
    lines = _header(
        "protection", f"flips at {STRESS:g}", "a chip fails", "extra bits", "longer inference, this small model"
    )
    lines.append(_line("*none: AUC lost*", f"*{_lost(next(iter(costs.values())))}*", "", "", ""))
    for name in dict.fromkeys([*costs, *ranked]):
        cost, of_chips = costs.get(name, {}), ranked.get(name, {})
        own = [cost.get("recovery") or of_chips.get("flips"), of_chips.get("faults")]
        recovered = [f"{round(float(share), 2) + 0:.2f}" if share else "" for share in own]
        stored = float((cost or of_chips)["stored_percent"])
        percent = "under 0.01 %" if 0 < stored < 0.01 else f"{number(stored)} %"
        time = f"{float(cost['overhead_percent']):.0f} %" if cost.get("timed") == "True" else "none"
        lines.append(_line(mitigation_label(name), *recovered, percent, time))
    return _replaced(page, PROTECTIONS_BEGIN, PROTECTIONS_END, "\n".join(lines), "protections")


def _lost(row: dict[str, Any]) -> str:
    """The AUC lost without protection; where its interval spans more than a factor of 3, the upper end."""
    value, low, high = (round(float(row[name]), 3) for name in ("lost", "lost_low", "lost_high"))
    return number(value) if low > 0 and high <= 3 * low else f"at most {number(high)}"


def _replaced(page: str, begin: str, end: str, table: str, thing: str) -> str:
    """The page with the table between the two marks."""
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no place for the table of {thing}, between {begin!r} and {end!r}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _header(*cells: str) -> list[str]:
    return [_line(*cells), _line(*["---"] * len(cells))]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
