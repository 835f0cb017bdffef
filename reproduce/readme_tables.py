"""Tables of README.md, docs/protection.md and CLAIMS.md, made from a run's CSVs by `make publish`."""

import csv
from pathlib import Path
from typing import Any

from drsrobust.study.findings import NOT, NOT_TESTED, interval, number

END = "<!-- end of the table -->"
CLAIMS_BEGIN, CLAIMS_END = "<!-- from figures/claims.csv, by make publish -->", "<!-- end of the claims -->"
MODELS_BEGIN = "<!-- from figures/models.csv, by make publish -->"
PROTECTIONS_BEGIN = "<!-- from figures/data/08_mitigation_recovery.csv, by make publish -->"
PROTECTIONS_END = "<!-- end of the protections -->"
RECOVERY, FRONT = "08_mitigation_recovery.csv", "08_mitigation_recovery_front.csv"


def with_claims(page: str, path: Path) -> str:
    """A README with the table of `claims.csv` between its two marks.

    Raises:
        ValueError: the marks are missing.
    """
    return _replaced(page, CLAIMS_BEGIN, CLAIMS_END, claims_table(path), "claims")


def with_models(page: str, path: Path) -> str:
    """A README with the table of `models.csv` between its two marks, the best of each data set first.

    Raises:
        ValueError: the marks are missing.
    """
    rows = _read_rows(path)
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
    recovers, and its cost, in the figure's order.

    Args:
        page: the text.
        data: folder of the figures' CSVs; the two that are read hold one model, data set and protocol.

    Raises:
        ValueError: the marks are missing.
        FileNotFoundError: a CSV is missing.
        KeyError: a mitigation of the first is not in the second.
    """
    from drsrobust.plots.curves import mitigation_label  # imports pandas

    recovery = _read_rows(data / RECOVERY)
    costs = {row["mitigation"]: row for row in _read_rows(data / FRONT)}
    rates = sorted({float(row["ber"]) for row in recovery})
    lost = {float(row["ber"]): round(float(row["lost"]), 3) for row in recovery}
    shares = {(row["mitigation"], float(row["ber"])): row["recovery"] for row in recovery}
    titles = [f"{rate:.0e}".replace("e-0", "e-") for rate in rates]
    lines = _header("protection", *titles, "extra bits", "longer inference, this small model")
    lines.append(_line("*none: AUC lost*", *(f"*{number(lost[rate])}*" for rate in rates), "", ""))
    for name in dict.fromkeys(row["mitigation"] for row in recovery):
        own = [shares.get((name, rate)) for rate in rates]
        recovered = [f"{round(float(share), 2) + 0:.2f}" if share else "" for share in own]
        stored = float(costs[name]["stored_percent"])
        percent = "under 0.01 %" if 0 < stored < 0.01 else f"{number(stored)} %"
        time = f"{float(costs[name]['overhead_percent']):.0f} %" if costs[name]["timed"] == "True" else "none"
        lines.append(_line(mitigation_label(name), *recovered, percent, time))
    return _replaced(page, PROTECTIONS_BEGIN, PROTECTIONS_END, "\n".join(lines), "protections")


def read_claims(path: Path) -> list[dict[str, Any]]:
    """The rows of a `claims.csv`: its columns as text, and `got`, the number with its interval; `whole`, whether it is the row
    of a claim; `said`, the verdict in words; of the row of a claim `found`, the numbers of its first check."""
    rows: list[dict[str, Any]] = _read_rows(path)
    for row in rows:
        row["got"] = interval(*(float(row[end] or "nan") for end in ("value", "low", "high")))
        row["whole"] = row["check"] == "0"
        row["said"] = "not reproduced" if row["verdict"] == NOT else row["verdict"]
        row["data"] = row["data"] or ("generated" if row["got"] else "")
    for row in rows:
        if row["whole"]:
            row["found"] = _range([other for other in rows if other["claim"] == row["claim"] and other["check"] == "1"])
    return rows


def _range(rows: list[dict[str, Any]]) -> str:
    """The number of a check, or the least and the greatest of several cases."""
    values = sorted((row for row in rows if row["got"]), key=lambda row: float(row["value"]))
    if not values:
        return ""
    ends = [row["got"] + (f" ({row['where']})" if row["where"] else "") for row in (values[0], values[-1])]
    if len(values) == 1:
        return f"{values[0]['reads']}: {ends[0]}"
    count = f"{len(values)}" if len(values) == len(rows) else f"{len(values)} of {len(rows)}"
    return f"{values[0]['reads']}: {' to '.join(dict.fromkeys(ends))}, {count} cases"


def claims_table(path: Path) -> str:
    """`claims.csv` as a Markdown table: one row per claim."""
    lines = _header("claim", "verdict", "found", "data")
    for row in read_claims(path):
        if row["whole"]:
            verdict = row["said"] if row["verdict"] == NOT_TESTED else f"**{row['said']}**"
            lines.append(_line(f"{row['claim']}: {row['what']}", verdict, _found(row), row["data"]))
    return "\n".join(lines)


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
        f"Made by `make publish` from `claims.csv` of a {run['profile']} run ({run['started']}, commit "
        f"{run['commit'] or 'unknown'}, data: {', '.join(run['datasets']) or 'none'}). Numbers in brackets are 95 % "
        "intervals unless said otherwise; minutes are those of the notebooks in that run. The commands need the data sets "
        "that are named. `corrected`: errors in all parameters; `as_released`: errors and protection where the study's "
        "scripts put them. Of the study only the abstract and those scripts could be read: apart from the 30 % of C4, the "
        "100 of C7 and the sizes in C8, limits and wording are ours.",
        "",
    ]
    header = ("claim", "verdict", "expected", "got", "data", "notebook", "command", "minutes")
    lines += _header(*header)
    for row in (row for row in rows if row["whole"]):
        notebooks = row["notebook"].split(", ")
        links = ", ".join(f"[{name}](../notebooks/{name}.ipynb)" if name in minutes else name for name in notebooks)
        took = [f"{minutes[name]:.1f}" for name in notebooks if name in minutes]
        command = f"`.venv/bin/python -m reproduce {' '.join(notebooks)}`"
        anchor = f"[{row['claim']}](#{row['claim'].lower()}): {row['what']}"
        cells = (anchor, row["said"], row["expected"], _found(row), row["data"], links, command)
        lines.append(_line(*cells, ", ".join(took) or "not run"))
    for row in rows:
        if row["whole"]:
            lines += [
                "",
                f"## {row['claim']}",
                "",
                f"{row['what']} ({row['source']}). **{row['said'].capitalize()}**",
            ]
            lines[-1] += f": {row['reason']}." if row["reason"] else "."
            header = ("check", "where", "expected", "got", "verdict", "data", "figure")
            lines += ["", *_header(*header)]
        else:
            lines.append(_line(*_check(row, minutes)))
    return "\n".join(lines) + "\n"


def _check(row: dict[str, Any], minutes: dict[str, float]) -> tuple[str, ...]:
    verdict = f"{row['said']}: {row['reason']}" if row["reason"] else row["said"]
    got = "; ".join(filter(None, (f"{row['reads']}: {row['got']}" if row["got"] else "", row["detail"])))
    figure = f"[{row['figure']}]({row['figure']}.svg)" if row["notebook"] in minutes else row["figure"]
    return row["what"], row["where"], row["expected"], got, verdict, row["data"], figure


def _found(row: dict[str, Any]) -> str:
    return "; ".join(filter(None, (row["found"], row["reason"])))


def _replaced(page: str, begin: str, end: str, table: str, thing: str) -> str:
    """The page with the table between the two marks."""
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no place for the table of {thing}, between {begin!r} and {end!r}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _read_rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as handle:
        return list(csv.DictReader(line for line in handle if not line.startswith("#")))


def _header(*cells: str) -> list[str]:
    return [_line(*cells), _line(*["---"] * len(cells))]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
