"""What `make publish` writes into README.md, docs/models.md, docs/protection.md and CLAIMS.md from a run's CSVs."""

import re
import textwrap
from pathlib import Path
from typing import Any

from drsrobust.plots import read_words
from drsrobust_study.findings import interval, number
from reproduce.quantities import filled, messages
from reproduce.tables import read_rows

END = "<!-- end of the table -->"
CLAIMS_BEGIN, CLAIMS_END = "<!-- from figures/claims.csv, by make publish -->", "<!-- end of the claims -->"
MODELS_BEGIN = "<!-- from figures/models.csv, by make publish -->"
PROTECTIONS_BEGIN = "<!-- from figures/data/08_mitigation_recovery.csv, by make publish -->"
PROTECTIONS_END = "<!-- end of the protections -->"
RECOVERY, FRONT = "08_mitigation_recovery.csv", "08_mitigation_recovery_front.csv"
RANKING = "12_memory_faults_ranking.csv"
RESULT_BEGIN = "<!-- result: from reproduce/messages.toml, by make publish -->"
RESULT_END = "<!-- end of the result -->"
GALLERY_BEGIN, GALLERY_END = "<!-- gallery: by make publish -->", "<!-- end of the gallery -->"
STRESS = 1e-3  # the rate at which protections under faults of chips are compared
COLUMNS = 3  # of the gallery
LEAD = "12_memory_faults_lead"  # the figure that opens the README
GROUP_HEADINGS = {
    "study": "Claims of Ma et al., and our readings of them",
    "related": "Claims of related work, and our own",
}


def taken(run: dict[str, Any]) -> str:
    """How long a run took, where, and whether it began with an empty cache."""
    minutes, cores = (
        (f"{run[key] / 60:.0f} minutes" for key in ("seconds_from_empty", "seconds")),
        run["machine"]["cores"],
    )
    from_empty, here = minutes
    earlier = f" ({here} with models and trials of an earlier run at hand)" if run["cached"] else ""
    return f"{from_empty} on {cores} cores{earlier}"


def made_by(run: dict[str, Any]) -> str:
    """The version of this package that made a run's figures, and its commit."""
    return f"version {run.get('versions', {}).get('drsrobust', 'unknown')}, commit {run.get('commit') or 'unknown'}"


def with_result(page: str, figures: Path, run: dict[str, Any]) -> str:
    """A README with the result in one sentence, which version found it, and how long the run took.

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
        result = f"The published run has no result in one sentence: {error}."
    text = f"{result} (Results, figures and claims of {made_by(run)}: one run, {taken(run)}.)"
    return _replaced(page, RESULT_BEGIN, RESULT_END, "\n".join(textwrap.wrap(text, 128)), "the result")


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
        title = re.split(r",|\. | \(", words["title"].removesuffix("."))[0]
        cells.append(f'<a href="figures/README.md#{name}"><img src="figures/{name}.png" width="260" alt="{title}"></a>')
    rows = [cells[at : at + COLUMNS] for at in range(0, len(cells), COLUMNS)]
    lines = [_line(*[""] * COLUMNS), _line(*["---"] * COLUMNS)]
    lines += [f"| {' | '.join(row + [''] * (COLUMNS - len(row)))} |" for row in rows]
    return _replaced(page, GALLERY_BEGIN, GALLERY_END, "\n".join(lines), "the gallery")


def with_claims(page: str, path: Path) -> str:
    """A README with the table of `claims.csv` between its two marks.

    Raises:
        ValueError: the marks are missing.
    """
    return _replaced(page, CLAIMS_BEGIN, CLAIMS_END, claims_table(path), "claims")


def with_models(page: str, path: Path) -> str:
    """A docs/models.md with the table of `models.csv` between its two marks, the best of each data set first.

    Raises:
        ValueError: the marks are missing.
    """
    rows = read_rows(path)
    order = {dataset: number for number, dataset in enumerate(dict.fromkeys(row["dataset"] for row in rows))}
    rows.sort(key=lambda row: (order[row["dataset"]], -float(row["auc"])))
    lines = _header("data set", "model", "AUC (95 % interval)", "log loss", "parameters", "seconds")
    for row in rows:
        auc, low, high, loss = (float(row[key]) for key in ("auc", "auc_low", "auc_high", "logloss"))
        numbers = (f"{auc:.4f} ({low:.4f} to {high:.4f})", f"{loss:.4f}", f"{int(row['parameters']):,}")
        lines.append(_line(row["dataset"], row["model"], *numbers, f"{float(row['seconds']):.0f}"))
    return _replaced(page, MODELS_BEGIN, END, "\n".join(lines), "models")


def with_protections(page: str, data: Path) -> str:
    """A docs/protection.md with its table between its two marks: AUC lost at each rate, the share of it that each protection
    recovers, of the AUC lost to a fault of a memory chip, and its cost, in the figure's order; then those of the last alone.

    Args:
        page: the text.
        data: folder of the figures' CSVs; the three that are read hold one model, data set and protocol.

    Raises:
        ValueError: the marks are missing.
        FileNotFoundError: a CSV is missing.
        KeyError: a mitigation of the first is not in the second.
    """
    from drsrobust.plots.curves import mitigation_label  # imports pandas

    recovery = read_rows(data / RECOVERY)
    costs = {row["mitigation"]: row for row in read_rows(data / FRONT)}
    rates = sorted({float(row["ber"]) for row in recovery})
    lost = {float(row["ber"]): _lost(row) for row in recovery}
    shares = {(row["mitigation"], float(row["ber"])): row["recovery"] for row in recovery}
    ranked = {row["mitigation"]: row for row in read_rows(data / RANKING)}
    shares |= {(name, STRESS): row["flips"] for name, row in ranked.items() if name not in costs}
    titles = [f"{rate:.0e}".replace("e-0", "e-") for rate in rates]
    lines = _header("protection", *titles, "a chip fails", "extra bits", "longer inference, this small model")
    lines.append(_line("*none: AUC lost*", *(f"*{lost[rate]}*" for rate in rates), "", "", ""))
    for name in dict.fromkeys([*(row["mitigation"] for row in recovery), *ranked]):
        own = [*(shares.get((name, rate)) for rate in rates), ranked.get(name, {}).get("faults")]
        recovered = [f"{round(float(share), 2) + 0:.2f}" if share else "" for share in own]
        stored = float((costs.get(name) or ranked[name])["stored_percent"])
        percent = "under 0.01 %" if 0 < stored < 0.01 else f"{number(stored)} %"
        timed = name in costs and costs[name]["timed"] == "True"
        time = f"{float(costs[name]['overhead_percent']):.0f} %" if timed else "none"
        lines.append(_line(mitigation_label(name), *recovered, percent, time))
    return _replaced(page, PROTECTIONS_BEGIN, PROTECTIONS_END, "\n".join(lines), "protections")


def _lost(row: dict[str, Any]) -> str:
    """The AUC lost without protection; where its interval spans more than a factor of 3, the upper end."""
    value, low, high = (round(float(row[name]), 3) for name in ("lost", "lost_low", "lost_high"))
    return number(value) if low > 0 and high <= 3 * low else f"at most {number(high)}"


def read_claims(path: Path) -> list[dict[str, Any]]:
    """The rows of a `claims.csv`: its columns as text, and `got`, the number with its interval; `whole`, whether it is the row
    of a claim."""
    rows: list[dict[str, Any]] = read_rows(path)
    for row in rows:
        row["got"] = interval(*(float(row[end] or "nan") for end in ("value", "low", "high")))
        row["whole"] = row["check"] == "0"
        row["data"] = row["data"] or ("generated" if row["got"] else "")
    return rows


def claims_table(path: Path) -> str:
    """`claims.csv` as two Markdown tables: one line per claim, with its verdict and one number."""
    rows, lines = [row for row in read_claims(path) if row["whole"]], []
    for group, heading in GROUP_HEADINGS.items():
        lines += ["", *_header(heading, "verdict", "here")]
        for row in (row for row in rows if row["group"] == group):
            lines.append(_line(f"{row['claim']}: {row['what']}", f"**{row['verdict']}**", row["number"]))
    return "\n".join([*lines[1:]])


def claims_page(path: Path, run: dict[str, Any]) -> str:
    """The text of `CLAIMS.md`.

    Args:
        path: of `claims.csv`.
        run: as in its run.json.
    """
    rows = read_claims(path)
    minutes = {one["notebook"]: one["seconds"] / 60 for one in run["notebooks"]}
    lines = ["# What is claimed, and what was found", ""]
    lines += [
        f"Made by `make publish` from `claims.csv` of a {run['profile']} run ({run['started']}, "
        f"{made_by(run)}, data: {', '.join(run['datasets']) or 'none'}). A check is `reproduced` if its claim "
        "holds in all of the interval, `contradicted` if in none of it or if all of it is below the smallest effect that would "
        "be worth the claim (in the column `expected`, chosen by us; `in part` if it is clear all the same), "
        "`undecided` if an interval of this width could not have shown both (the number that it takes is given), `in part` "
        "otherwise, and `map-dependent` if two of three "
        "independent thirds of the error maps contradict each other (their verdicts are under `thirds`). A claim has the worst "
        "verdict of the checks that its words need, which are bold. `another thing was measured` than the source claims where "
        "that is said. Brackets hold 95 % intervals, or what follows them in parentheses. `rule of` dates each rule by its "
        "first commit, and says where it was written after a result was seen. Minutes are those of the notebooks in that run. "
        "The commands need the data sets that are named. `corrected`: errors in all parameters; `as_released`: errors where "
        "the study's scripts put them.",
    ]
    for group, heading in GROUP_HEADINGS.items():
        lines += ["", f"## {heading}", ""]
        lines += _header("claim", "verdict", "what was found", "source", "notebook", "minutes")
        for row in (row for row in rows if row["whole"] and row["group"] == group):
            notebooks = row["notebook"].split(", ")
            links = ", ".join(f"[{name}](../notebooks/{name}.ipynb)" if name in minutes else name for name in notebooks)
            took = [f"{minutes[name]:.1f}" for name in notebooks if name in minutes]
            anchor = f"[{row['claim']}](#{row['claim'].lower()}): {row['what']}"
            cells = (anchor, row["verdict"], row["sentence"], row["source"], links)
            lines.append(_line(*cells, ", ".join(took) or "not run"))
    for row in rows:
        if row["whole"]:
            command = f"`.venv/bin/python -m reproduce {' '.join(row['notebook'].split(', '))}`"
            lines += [
                "",
                f"## {row['claim']}",
                "",
                f"{row['what']} ({row['source']}). **{row['verdict'].capitalize()}**",
            ]
            lines[-1] += f": {row['reason']}. {command}" if row["reason"] else f". {command}"
            header = ("check", "where", "expected", "got", "verdict", "thirds", "rule of", "data", "figure")
            lines += ["", *_header(*header)]
        else:
            lines.append(_line(*_check(row, minutes)))
    return "\n".join(lines) + "\n"


def _check(row: dict[str, Any], minutes: dict[str, float]) -> tuple[str, ...]:
    verdict = f"{row['verdict']}: {row['reason']}" if row["reason"] else row["verdict"]
    bracket = f" ({row['interval']})" if row["interval"] else ""
    got = "; ".join(filter(None, (f"{row['reads']}: {row['got']}{bracket}" if row["got"] else "", row["detail"])))
    figure = f"[{row['figure']}]({row['figure']}.svg)" if row["notebook"] in minutes else row["figure"]
    what = f"**{row['what']}**" if row["needed"] == "True" else row["what"]
    return what, row["where"], row["expected"], got, verdict, row["thirds"], row["since"], row["data"], figure


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
