"""The verdicts of a run in words: the table of published figures, and `CLAIMS.md` with a block per statement."""

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from drsrobust_extras.pages.plots.names import display_name
from drsrobust_study.findings import interval
from reproduce.statements import EXACT, JUDGED_COMMIT, JUDGED_RUN, NOT_RUN, REPRODUCED, load_statements
from reproduce.tables import read_rows

HEADS = ("published", "ours", "statement", "MovieLens-1M", "Criteo", "judged run", "known before", "by construction")
KNOWN = ("known_before", "by_construction")
SAME = "the same"
SECOND_HAND = (
    "The study (D. Ma, X. Jiao, F. Lin, D. Moore, S. Sankar, ISSRE 2025, doi 10.1109/ISSRE66568.2025.00016) was not read here: "
    "its figures and statements are known from a public digest of it, and its released code (PyTEI, MIT) was read."
)


def statement_rows(path: Path) -> list[dict[str, Any]]:
    """One row per statement: its words, its verdicts, and what was known.

    Args:
        path: of `statements.csv`.

    Returns:
        `name`, `text`, `published`, `figure`, `measured`; `movielens` and `criteo`, the verdicts in words (one that holds for
        all data, or for both sets together, is in the first); `judged`, those of the judged run, or `SAME`; `known_before`,
        `by_construction`, in a word or two; `parts`: the rows of its rules with their `items`, where the same two are whole.
    """
    rows, judged, found = read_rows(path), read_rows(JUDGED_RUN), []
    for name, words in load_statements().items():
        own = [row for row in rows if row["statement"] == name]
        parts: list[dict[str, Any]] = []
        for row in own:
            if not row["item"]:
                parts.append(row | {"items": []})
            else:
                got = interval(*(float(row[end] or "nan") for end in ("value", "low", "high")))
                parts[-1]["items"].append(row | {"got": got})
        if words.exact:
            cells = {"movielens": EXACT, "criteo": "", "judged": ""}
        else:
            by_data = _by_data(parts)
            first = _by_data([row for row in judged if row["statement"] == name])
            units = f"{words.units}: " if words.units else ""
            cells = {"movielens": units + by_data[0], "criteo": by_data[1]}
            cells["judged"] = SAME if first == by_data else "; ".join(filter(None, first))
        known = {key: _joined(part[key] for part in parts) for key in KNOWN}
        known["known_before"] = known["known_before"] or ("yes" if words.exact else "")
        found.append(vars(words) | cells | known | {"parts": parts})
    return found


def _by_data(parts: list[dict[str, Any]]) -> tuple[str, str]:
    """Verdicts in words, first those that are not of Criteo."""
    of_criteo = [part for part in parts if part["dataset"].startswith("criteo")]
    return _verdicts([part for part in parts if part not in of_criteo]), _verdicts(of_criteo)


def _verdicts(parts: list[dict[str, Any]]) -> str:
    """`reproduced (4 of 5)`, of several parts `2 reproduced, 1 undecided`; of both data sets together it says so."""
    if len(parts) == 1:
        (part,) = parts
        both = "both: " if ", " in part["dataset"] else ""
        count = f" ({part['what']})" if part["what"] and not part["what"].endswith(" of 1") else ""
        return f"{both}{part['verdict']}{count if part['verdict'] != NOT_RUN else ''}"
    return ", ".join(f"{count} {word}" for word, count in Counter(part["verdict"] for part in parts).items())


def _joined(texts: Iterable[str]) -> str:
    """The short words of some texts, which are before their colons."""
    return ", ".join(dict.fromkeys(text.partition(":")[0] for text in texts if text))


def tally(path: Path) -> str:
    """How many verdicts of each word a `statements.csv` has, and of those `reproduced` how many were known or made so."""
    rows = [row for row in read_rows(path) if not row["item"]]
    counts = ", ".join(f"{count} {word}" for word, count in Counter(row["verdict"] for row in rows).most_common())
    good = [row for row in rows if row["verdict"] == REPRODUCED]
    known = sum(row["known_before"].partition(":")[0] not in ("", "no") for row in good)
    made = sum(bool(row["by_construction"]) for row in good)
    return (
        f"{counts}; of the {len(good)} reproduced, {known} were known before, in part or whole, from runs with other seeds, "
        f"and {made} hold in part or nearly by construction"
    )


def against_judged(path: Path) -> str:
    """How many verdicts of a `statements.csv` are those of the judged run, and each other one with both words."""
    keys = ("statement", "part", "dataset")
    judged = {tuple(row[key] for key in keys): row["verdict"] for row in read_rows(JUDGED_RUN)}
    now = {tuple(row[key] for key in keys): row["verdict"] for row in read_rows(path) if not row["item"]}
    others = [
        f"{', '.join(filter(None, key))}: {now.get(key, NOT_RUN)}, there {word}"
        for key, word in judged.items()
        if now.get(key) != word
    ]
    same = f"{len(judged) - len(others)} of {len(judged)} are those of the judged run, the first under these rules"
    return f"{same} (commit {JUDGED_COMMIT})" + (f"; others: {'; '.join(others)}" if others else "")


def statements_table(path: Path, link: str = "#{}") -> str:
    """The table of published figures in Markdown.

    Args:
        path: of `statements.csv`.
        link: to a figure of ours, by its name.
    """
    lines = [_line(*HEADS), _line(*["---"] * len(HEADS))]
    for row in statement_rows(path):
        ours = f"[{row['figure'].replace('_', ' ')}]({link.format(row['figure'])})"
        words = f"[{row['name']}](CLAIMS.md#{row['name'].lower()}): {row['text']}"
        cells = (row["movielens"], row["criteo"], row["judged"], row["known_before"], row["by_construction"])
        lines.append(_line(row["published"], ours, words, *cells))
    return "\n".join(lines)


def statements_page(path: Path, run: Mapping[str, Any], others: str = "") -> str:
    """The text of `CLAIMS.md`: a block per statement, checks folded, then our numbers and those of other papers.

    Args:
        path: of `statements.csv`.
        run: as in its run.json.
        others: a table in Markdown.
    """
    outcomes = {one["notebook"]: one for one in run["notebooks"]}
    lines = [
        "# What the study states, and what came out",
        "",
        f"{SECOND_HAND} Verdicts of a {run['profile']} run ({run['started']}, commit {run['commit'] or 'unknown'}), one for "
        f"each part of a statement and data set: {tally(path)}. {against_judged(path)}. Each follows from a rule that was "
        f"committed before the run (`reproduce/rules.toml`, SHA-256 `{(run.get('rules_sha256') or 'unknown')[:12]}`): "
        "`reproduced` where enough items "
        "(curves, cells, tools) meet its condition clearly, by a 95 % interval over trained models (S1 to S5: drawn ones; S19: "
        "calls), `contradicted` where too few still may, else `undecided`. Each block says what was seen before, in "
        "development runs with other seeds.",
    ]
    for row in statement_rows(path):
        by_data = [f"MovieLens-1M: {row['movielens']}", f"Criteo: {row['criteo']}"]
        verdict = "; ".join(by_data) if row["criteo"] else row["movielens"]
        notebook = next((name for name in outcomes if row["figure"].startswith(name)), "")
        lines += [
            "",
            f'<a id="{row["name"].lower()}"></a>',
            "",
            f"## {row['name']}: {verdict}",
            "",
            f"{row['text']}.",
            "",
        ]
        lines += [
            f"*{row['published']} of the study{_known(row)}.*",
            "",
            f"{row['measured']}.",
        ]
        if notebook in outcomes:
            minutes, cpu = outcomes[notebook]["seconds"] / 60, outcomes[notebook].get("cpu_seconds")
            took = f"{minutes:.1f} minutes" + (f", {cpu:,.0f} CPU seconds" if cpu else "")
            lines += [
                "",
                f"[{notebook}](../notebooks/{notebook}.ipynb), {took}; figure [{row['figure']}](README.md#{row['figure']}).",
            ]
        lines += _checks(row["parts"])
    return "\n".join([*lines, *(["", "## Published numbers of other papers", "", others] if others else [])]) + "\n"


def _known(row: Mapping[str, Any]) -> str:
    """What was known of an answer, and what holds by construction."""
    texts = (f"{key.replace('_', ' ')}: {row[key]}" for key in KNOWN if row[key])
    return "".join(f"; {text}" for text in texts)


def _checks(parts: list[dict[str, Any]]) -> list[str]:
    """Every item of every part, folded."""
    lines: list[str] = []
    if missing := [part["part"] for part in parts if part["part"] and not part["items"]]:
        lines += ["", f"Not run: {', '.join(missing)}."]
    for part in (part for part in parts if part["items"]):
        named = ", ".join(filter(None, (part["part"], part["dataset"])))
        said = f"{part['verdict']}, clearly in {part['what']}"
        lines += ["", f"<details><summary>{escape(named or 'all')}: {said}</summary>", ""]
        lines += [f"{known[2].upper()}{known[3:]}.", ""] if (known := _known(part)) else []
        lines += [_line("item", "quantity", "mean over units", "units", "holds"), _line(*["---"] * 5)]
        for item in part["items"]:
            lines.append(
                _line(display_name(item["item"]), item["what"], item["got"] or "none", item["n"], item["verdict"])
            )
        lines += ["", "</details>"]
    return lines


def _line(*cells: str) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"
