"""`CLAIMS.md` and the README's table of results, made from `claims.csv`: nobody types a verdict."""

from pathlib import Path
from typing import Any

from reproduce.checks import NOT, NOT_TESTED, interval
from reproduce.marked import line, read_rows, replaced

BEGIN, END = "<!-- from figures/claims.csv, by make publish -->", "<!-- end of the claims -->"


def read_claims(path: Path) -> list[dict[str, Any]]:
    """The rows of a `claims.csv`: its columns as text, and beside them `got`, the number with its interval; `whole`, whether
    it is a claim's own row; `said`, the verdict as it is shown; of a claim's own row `found`, what its first check found."""
    rows: list[dict[str, Any]] = read_rows(path)
    for row in rows:
        numbers = (float(row[end] or "nan") for end in ("value", "low", "high"))
        row["got"] = interval(*numbers)
        row["whole"] = row["check"] == "0"
        row["said"] = "not reproduced" if row["verdict"] == NOT else row["verdict"]
        row["data"] = row["data"] or ("generated" if row["got"] else "")
    for row in rows:
        if row["whole"]:
            row["found"] = _spread([one for one in rows if one["claim"] == row["claim"] and one["check"] == "1"])
    return rows


def claims_table(path: Path) -> str:
    """The claims as a Markdown table: one row each."""
    lines = ["| claim | verdict | found | data |", "| --- | --- | --- | --- |"]
    for row in read_claims(path):
        if row["whole"]:
            verdict = row["said"] if row["verdict"] == NOT_TESTED else f"**{row['said']}**"
            lines.append(line(f"{row['claim']}: {row['what']}", verdict, _found(row), row["data"]))
    return "\n".join(lines)


def claims_page(path: Path, run: dict[str, Any]) -> str:
    """The whole `CLAIMS.md`.

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
    lines += [line(*header), line(*["---"] * len(header))]
    for row in (row for row in rows if row["whole"]):
        notebooks = row["notebook"].split(", ")
        links = ", ".join(f"[{name}](../notebooks/{name}.ipynb)" if name in minutes else name for name in notebooks)
        took = [f"{minutes[name]:.1f}" for name in notebooks if name in minutes]
        command = f"`.venv/bin/python -m reproduce {' '.join(notebooks)}`"
        cells = (_anchor(row), row["said"], row["expected"], _found(row), row["data"], links, command)
        lines.append(line(*cells, ", ".join(took) or "not run"))
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
            lines += ["", line(*header), line(*["---"] * len(header))]
        else:
            lines.append(line(*_check(row, minutes)))
    return "\n".join(lines) + "\n"


def with_claims(text: str, path: Path) -> str:
    """A README with the table of `claims.csv` between its two marks.

    Raises:
        ValueError: the marks are not there.
    """
    return replaced(text, BEGIN, END, claims_table(path), "claims")


def _check(row: dict[str, Any], minutes: dict[str, float]) -> tuple[str, ...]:
    verdict = f"{row['said']}: {row['reason']}" if row["reason"] else row["said"]
    got = "; ".join(filter(None, (f"{row['reads']}: {row['got']}" if row["got"] else "", row["detail"])))
    figure = f"[{row['figure']}]({row['figure']}.svg)" if row["notebook"] in minutes else row["figure"]
    return row["what"], row["where"], row["expected"], got, verdict, row["data"], figure


def _anchor(row: dict[str, Any]) -> str:
    return f"[{row['claim']}](#{row['claim'].lower()}): {row['what']}"


def _found(row: dict[str, Any]) -> str:
    """The claim's numbers, what they are of, and why the verdict is what it is."""
    return "; ".join(filter(None, (row["found"], row["reason"])))


def _spread(rows: list[dict[str, Any]]) -> str:
    """What the cases of one check found: the number, or the least and the greatest of several."""
    there = sorted((row for row in rows if row["got"]), key=lambda row: float(row["value"]))
    if not there:
        return ""
    ends = [row["got"] + (f" ({row['where']})" if row["where"] else "") for row in (there[0], there[-1])]
    if len(there) == 1:
        return f"{there[0]['reads']}: {ends[0]}"
    count = f"{len(there)}" if len(there) == len(rows) else f"{len(there)} of {len(rows)}"
    return f"{there[0]['reads']}: {' to '.join(dict.fromkeys(ends))}, {count} cases"
