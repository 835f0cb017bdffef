"""The claims as data (`claims.toml`), and the verdicts of a run on them (`claims.csv`).

A number of a figure's CSV, or of a table of findings, gets its verdict by a rule of `reproduce.verdicts`. A claim has the worst
verdict of the checks that its words need.
"""

import json
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drsrobust._choices import unknown
from drsrobust._files import new_file
from drsrobust_study.findings import number
from drsrobust_study.notebook import datasets_of
from drsrobust_study.thirds import THIRD
from reproduce.profiles import JUDGED
from reproduce.quantities import ENDS, Selection, filled, named_in, quantities
from reproduce.tables import read_table
from reproduce.verdicts import (
    MAP_DEPENDENT,
    NOT_TESTABLE,
    OTHER,
    RULES,
    UNDECIDED,
    Rule,
    map_dependent,
    rule_options,
    worst,
)

if TYPE_CHECKING:
    import pandas as pd

FILE = Path(__file__).resolve().parent / "claims.toml"
GROUPS = ("study", "related")  # the claims of Ma et al., and those of related work
COLUMNS = (
    *(
        "group",
        "claim",
        "check",
        "needed",
        "what",
        "where",
        "expected",
        "reads",
        "value",
        "low",
        "high",
        "n",
        "interval",
    ),
    *("verdict", "thirds", "reason", "detail", "number", "sentence", "data", "notebook", "figure", "source", "since"),
)


@dataclass(frozen=True)
class Check:
    """One number of a claim, and the rule for its verdict.

    Attributes:
        place: `claims.toml, C3a, check 1`, for messages.
        what: in words.
        notebook: that makes the figure.
        figure: that shows it.
        table: the CSV to read, `figures/<table>.csv`; None: `figures/data/<figure>.csv`.
        quantity: its numbers.
        reads: what the number is, in words.
        expected: in words.
        rule: that gives the verdict.
        needed: whether the words of the claim need it.
        after: what of the rule was written after a result was seen; empty where the rule came first.
        generated: whether the study's own data are generated, so that no real ones are needed.
        since: the first commit with this rule, as `since` gives it.
    """

    place: str
    what: str
    notebook: str
    figure: str
    table: str | None
    quantity: Selection
    reads: str
    expected: str
    rule: Rule
    needed: bool = False
    after: str = ""
    generated: bool = False
    since: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim and its checks.

    Attributes:
        id: as `C3a`.
        group: of `GROUPS`.
        text: what is claimed.
        source: of the claim, and how it is known.
        number, sentence: what was found, in some words and in a sentence, with names of quantities in braces.
        checks: at least one is needed.
        datasets: of the study, as patterns.
        measured: what was measured in place of what is claimed; empty where it is the same.
    """

    id: str
    group: str
    text: str
    source: str
    number: str
    sentence: str
    checks: tuple[Check, ...]
    datasets: tuple[str, ...] = ()
    measured: str = ""


def load_claims(notebooks: Iterable[str], path: Path = FILE) -> list[Claim]:
    """Reads `claims.toml`.

    Args:
        notebooks: names of the notebooks.
        path: of the file.

    Raises:
        ValueError: an unknown or missing key, rule, option or quantity, a figure of no notebook, or a claim that needs no
            check; file and key are named.
    """
    tables = tomllib.loads(path.read_text())
    _check_keys(path.name, tables, {"claim"})
    notebooks, claims = list(notebooks), []
    words, dates = ("id", "group", "text", "source", "number", "sentence"), since(path)
    for position, table in enumerate(tables["claim"], 1):
        place = f"{path.name}, {table.get('id', f'claim {position}')}"
        _check_keys(place, table, {*words, "check"}, {"datasets", "measured"})
        if table["group"] not in GROUPS:
            raise unknown(f"group in {place}", table["group"], GROUPS)
        for name in named_in(f"{table['number']} {table['sentence']}"):
            if name not in quantities():
                raise unknown(f"quantity in {place}", name, quantities())
        checks = tuple(
            _check(f"{place}, check {i}", entry, notebooks, dates) for i, entry in enumerate(table["check"], 1)
        )
        if not any(check.needed for check in checks):
            raise ValueError(f"{place}: at least one check must have needed = true")
        options = {"datasets": tuple(table.get("datasets", ())), "measured": table.get("measured", "")}
        claims.append(Claim(*(table[key] for key in words), checks, **options))
    if duplicates := [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]:
        raise ValueError(f"{path.name}: duplicate claim {', '.join(duplicates)}")
    return claims


def _check(place: str, entry: dict[str, Any], notebooks: list[str], dates: Mapping[str, str]) -> Check:
    words = {"what", "figure", "reads", "expected"}
    _check_keys(place, entry, words | {"quantity", "rule"}, {"table", "generated", "needed", "after"})
    notebook = notebook_of(entry["figure"], notebooks)
    if notebook is None:
        raise unknown(f"notebook in {place}, figure", entry["figure"], notebooks)
    quantity = entry["quantity"]
    _check_keys(f"{place}, quantity", quantity, set(), set(Selection.__dataclass_fields__))
    if bool(quantity.get("over")) != bool(quantity.get("match")):
        raise ValueError(
            f"{place}, quantity: give both `over` (the rows to divide by) and `match` (equal columns), or neither"
        )
    kind = entry["rule"].get("kind")
    if kind not in RULES:
        raise unknown(f"kind in {place}, rule", kind, RULES)
    general = {"kind", "true", "false", "log", "needs"}
    needed = {key for key in rule_options(kind) if key != "refuted" or kind == "differs"}
    _check_keys(
        f"{place}, rule {kind}", entry["rule"], {"kind", "true", "false", *needed}, general | rule_options(kind)
    )
    options = {key: entry["rule"][key] for key in rule_options(kind) if key in entry["rule"]}
    rule = Rule(**{key: entry["rule"][key] for key in general if key in entry["rule"]}, options=options)
    lists = {key: tuple(quantity.get(key, ())) for key in ("by", "match")}
    rest = {key: entry[key] for key in (*words, "needed", "after", "generated", "table") if key in entry}
    return Check(
        place,
        notebook=notebook,
        quantity=Selection(**(quantity | lists)),
        rule=rule,
        since=dates.get(_rule_text(entry), ""),
        **{"table": None} | rest,
    )


def _rule_text(entry: Mapping[str, Any]) -> str:
    """What decides the verdict of a check: its number, and the kind and bounds of its rule. The numbers of an exactly true and
    an exactly false claim only say whether it is undecided."""
    rule = {key: value for key, value in entry.get("rule", {}).items() if key not in ("true", "false", "log", "needs")}
    return json.dumps([entry.get("table") or entry.get("figure"), entry.get("quantity"), rule], sort_keys=True)


@cache
def since(path: Path = FILE) -> dict[str, str]:
    """The first commit of each rule that any version of a file holds, as `2026-11-25 0123456`; empty outside a git checkout."""
    git = ("git", "-C", str(path.parent))
    log = subprocess.run(
        [*git, "log", "--abbrev=8", "--format=%h %cs", "--", path.name], capture_output=True, text=True
    )
    dates: dict[str, str] = {}
    for commit, date in (line.split() for line in log.stdout.splitlines()):  # from the latest to the first
        version = subprocess.run([*git, "show", f"{commit}:./{path.name}"], capture_output=True, text=True)
        for claim in tomllib.loads(version.stdout).get("claim", ()):
            dates |= {_rule_text(entry): f"{date} {commit}" for entry in claim.get("check", ())}
    return dates


def _check_keys(place: str, entry: Mapping[str, Any], needed: set[str], optional: set[str] = frozenset()) -> None:
    for key in entry:
        if key not in needed | optional:
            raise unknown(f"key in {place}", key, sorted(needed | optional))
    if missing := sorted(needed - set(entry)):
        raise ValueError(f"{place}: no {', '.join(missing)}")


def notebook_of(figure: str, notebooks: Iterable[str]) -> str | None:
    """The notebook that makes a figure: the one with whose name the figure's begins."""
    return next((name for name in notebooks if figure == name or figure.startswith(f"{name}_")), None)


def evaluate_claims(claims: list[Claim], figures: Path, run: dict[str, Any]) -> "pd.DataFrame":
    """Makes all checks of all claims on the CSVs of a run.

    Args:
        claims: as `load_claims` returns them.
        figures: the folder with the run's figures, and `data/` in it.
        run: as in its run.json.

    Returns:
        `COLUMNS`; for each claim one row with `check` 0, its sentence, and number and verdict of the check that decides, then
        one row per check and combination of its `by`, with a verdict of `verdicts.VERDICTS`, the verdicts on thirds of the
        trials, and the `reason` where it is not testable or undecided.

    Raises:
        ValueError: a figure that its notebook does not make, or a column that its CSV does not have.
    """
    import pandas as pd

    rows = []
    for claim in claims:
        checks = [
            {"group": claim.group, "claim": claim.id, "check": i, "source": "", "number": "", "sentence": ""} | row
            for i, check in enumerate(claim.checks, 1)
            for row in _check_rows(check, claim.measured, figures, run)
        ]
        rows += [_claim_row(claim, checks, figures), *checks]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def write_claims(claims: list[Claim], figures: Path, run: dict[str, Any]) -> Path:
    """Writes `figures`/claims.csv; returns its path. An older one is deleted if that fails.

    Raises:
        ValueError: as `evaluate_claims`.
    """
    path = figures / "claims.csv"
    path.unlink(missing_ok=True)
    table = evaluate_claims(claims, figures, run)
    data = ", ".join(run["datasets"]) or "none"
    with new_file(path) as part, open(part, "w", newline="\n") as handle:
        handle.write(f"# Claims as a {run['profile']} run finds them; check 0 is the claim as a whole. Data: {data}.\n")
        table.to_csv(handle, index=False, float_format="%.6g", lineterminator="\n")
    return path


def _claim_row(claim: Claim, rows: list[dict], figures: Path) -> dict:
    """The claim's own row: its sentence, and the number and verdict of the needed check that decides."""
    needed = [row for row in rows if row["needed"]]
    words = [row["verdict"] for row in needed]
    verdict = OTHER if OTHER in words and NOT_TESTABLE not in words else worst(set(words) - {OTHER})
    decides = needed[words.index(verdict)]
    data = dict.fromkeys(name for row in rows for name in row["data"].split(", ") if name)
    missing = [pattern for pattern in claim.datasets if not any(fnmatchcase(name, pattern) for name in data)]
    absent = f"not run here: {', '.join(name.rstrip('*/') for name in missing)}" if missing else ""
    by = ", ".join(filter(None, (decides["what"], decides["where"])))
    decided = f"the check that decides: {by}" if len(set(words)) > 1 else ""
    reason = "; ".join(filter(None, (decided, decides["reason"], absent)))
    notebooks = dict.fromkeys(row["notebook"] for row in rows)
    row = decides | {"check": 0, "what": claim.text, "where": "", "source": claim.source, "verdict": verdict}
    row |= {"reason": reason, "data": ", ".join(data), "notebook": ", ".join(notebooks), "since": ""}
    if verdict == NOT_TESTABLE:
        return row | {"number": "", "sentence": f"Not testable here: {decides['reason']}."}
    try:
        texts = {key: filled(getattr(claim, key), figures) for key in ("number", "sentence")}
    except LookupError as error:
        texts = {"number": "", "sentence": f"Not measured here: {error}."}
    return row | texts


def _check_rows(check: Check, measured: str, figures: Path, run: dict[str, Any]) -> list[dict]:
    """One row per combination of the columns in `by`; a single one where the check could not be made."""
    words = {key: getattr(check, key) for key in ("what", "expected", "reads", "notebook", "figure")}
    if (refuted := check.rule.options.get("refuted")) is not None:
        words["expected"] += (
            f"; refuted if all of it is {'within' if check.rule.kind == 'differs' else 'at most'} {number(refuted)}"
        )
    words |= {"needed": check.needed, "since": check.since + (f" ({check.after})" if check.after else "")}
    outcome = next((one for one in run["notebooks"] if one["notebook"] == check.notebook), None)
    data = ", ".join(datasets_of(outcome["parameters"])) if outcome else ""
    if outcome is None or not outcome["ok"]:
        return [words | _missing(data, f"{check.notebook} {'failed' if outcome else 'was not run'}")]
    rows = check.quantity.rows(_read(check, figures, outcome), check.place, check.table or check.figure)
    if rows.empty:
        where = ", ".join(f"{key} {value}" for key, value in check.quantity.where.items())
        return [words | _missing(data, f"no values of {where}" if where else "no values")]
    results, by = [], list(check.quantity.by)
    for name, group in rows.groupby(by, sort=False) if by else [((), rows)]:
        by_third = dict(list(group.groupby(THIRD))) if THIRD in group else {0: group}
        finding, *parts = (check.quantity.row(rows, check.place) for _, rows in sorted(by_third.items()))
        datasets = ", ".join(dict.fromkeys(", ".join(group["dataset"]).split(", "))) if "dataset" in group else data
        reason = _text(finding, "reason") or _reason(check, datasets, run)
        word, on_thirds = _verdict(check, finding), ", ".join(_verdict(check, part) for part in parts)
        n = int(finding["n"]) if finding.get("n", nan) == finding.get("n") else 1
        if map_dependent(on_thirds.split(", ")):
            word = MAP_DEPENDENT
        if reason and word != NOT_TESTABLE:
            word, reason = NOT_TESTABLE, f"{reason} (as it is: {word})"
        elif word == NOT_TESTABLE:
            reason = reason or "no interval"
        elif measured:
            word, reason = OTHER, measured
        elif word == UNDECIDED:
            needs = check.rule.needed(*(float(finding[end]) for end in ENDS), n)
            reason = f"undecided with n = {n:,}" + (f"; {needs} would decide" if needs else "")
        named = [(key, v) for key, v in zip(by, name, strict=True) if key != "dataset"]
        where = ", ".join(v if isinstance(v, str) else f"{key} {number(v)}" for key, v in named)
        row = {key: float(finding[key]) for key in ENDS} | {"n": n, "interval": _text(finding, "interval")}
        row |= {"verdict": word, "thirds": on_thirds, "reason": reason, "detail": _text(finding, "detail")}
        row |= {"where": where, "data": datasets}
        results.append(words | row | {"figure": _figure(check, datasets, outcome)})
    return results


def _verdict(check: Check, row: "pd.Series") -> str:
    """Of one finding by the check's rule."""
    if _text(row, "reason"):
        return NOT_TESTABLE
    return check.rule.verdict(*(float(row[end]) for end in ENDS))


def _text(row: "pd.Series", name: str) -> str:
    text = row.get(name, "")
    return text if isinstance(text, str) else ""


def _missing(data: str, reason: str) -> dict:
    row = {"value": nan, "low": nan, "high": nan, "n": 0, "interval": "", "verdict": NOT_TESTABLE, "thirds": ""}
    return row | {"reason": reason, "detail": "", "where": "", "data": data}


def _reason(check: Check, data: str, run: dict[str, Any]) -> str:
    """Why a check that could be made does not test the claim; empty where it does."""
    if run["profile"] not in JUDGED:
        return f"a {run['profile']} run is too small for a verdict"
    if not check.generated and any(name.startswith("synthetic-") for name in data.split(", ")):
        return "generated data"
    return ""


def _figure(check: Check, data: str, outcome: dict[str, Any]) -> str:
    """The figure of this data set: `<notebook>_<data set>_<part>` where the notebook made one, as for the second data set of
    05 and 06, else the check's own."""
    own = f"{check.notebook}_{data.partition('/')[0]}{check.figure.removeprefix(check.notebook)}"
    return own if ", " not in data and own in outcome["figures"] else check.figure


def _read(check: Check, figures: Path, outcome: dict[str, Any]) -> "pd.DataFrame":
    if check.figure not in outcome["figures"]:
        raise unknown(f"figure in {check.place}, figure", check.figure, outcome["figures"])
    path = figures / "data" / f"{check.figure}.csv"
    if check.table is not None:
        path = figures / f"{check.table}.csv"
        if not path.is_file():
            tables = sorted(other.stem for other in figures.glob(f"{outcome['notebook']}*.csv"))
            raise unknown(f"table in {check.place}, table", check.table, tables)
    return read_table(path)
