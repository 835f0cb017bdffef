"""The claims of the study as data (`claims.toml`), and the verdicts of a run on them (`claims.csv`).

A verdict follows from numbers of a figure's CSV, or of a table of findings, by a rule of `drsrobust.study.findings`.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drsrobust._environment import unknown
from drsrobust._files import new_file
from drsrobust.study.findings import NOT, NOT_TESTED, PARTLY, REPRODUCED, RULES, Finding, number, rule_options, verdict
from drsrobust.study.notebook import datasets_of
from reproduce.publish import PROFILES

if TYPE_CHECKING:
    import pandas as pd

FILE = Path(__file__).resolve().parent / "claims.toml"
COLUMNS = (
    "claim",
    "check",
    "what",
    "where",
    "expected",
    "reads",
    "value",
    "low",
    "high",
    "n",
    "verdict",
    "reason",
    "detail",
)
COLUMNS += ("counts", "data", "notebook", "figure", "source")


@dataclass(frozen=True)
class Quantity:
    """The numbers of a CSV that a check reads.

    Attributes:
        value, low, high: columns, or expressions of columns as `auc_golden - auc`; without ends the value is taken for both.
            Where none of the three is given, they are the columns of these names, if there.
        where: column -> a value, a list of values, or a text with `*`.
        by: columns; the check is made for each of their combinations.
        over: as `where`, of the rows to divide by, which are found by equal values in `match`. The quotient has an interval if
            `low` and `high` are given, else none.
        match: columns.
    """

    value: str = ""
    low: str = ""
    high: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    over: dict[str, Any] = field(default_factory=dict)
    match: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One condition of a claim.

    Attributes:
        place: `claims.toml, C3, check 1`, for messages.
        what: in words.
        notebook: that makes the figure.
        figure: that shows it.
        table: the CSV to read, `figures/<table>.csv`; None: `figures/data/<figure>.csv`.
        quantity: its numbers.
        reads: what the number is, in words.
        expected: in words.
        kind: in `findings.RULES`, with its `options`.
        counts: whether the claim's verdict depends on it; a check of `counts = false` is only shown.
        generated: whether the study's own data are generated, so that no real ones are needed.
    """

    place: str
    what: str
    notebook: str
    figure: str
    table: str | None
    quantity: Quantity
    reads: str
    expected: str
    kind: str
    options: dict[str, Any]
    counts: bool = True
    generated: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim: its checks, its source, and the data sets of the study (patterns; on fewer it is `partly` at best)."""

    id: str
    text: str
    source: str
    checks: tuple[Check, ...]
    datasets: tuple[str, ...] = ()


def load_claims(notebooks: Iterable[str], path: Path = FILE) -> list[Claim]:
    """Reads `claims.toml`.

    Args:
        notebooks: names of the notebooks.
        path: of the file.

    Raises:
        ValueError: an unknown or missing key, rule or option, or a figure of no notebook; file and key are named.
    """
    tables = tomllib.loads(path.read_text())
    _check_keys(path.name, tables, {"claim"})
    notebooks, claims = list(notebooks), []
    for position, table in enumerate(tables["claim"], 1):
        place = f"{path.name}, {table.get('id', f'claim {position}')}"
        _check_keys(place, table, {"id", "text", "source", "check"}, {"datasets"})
        checks = [_check(f"{place}, check {i}", entry, notebooks) for i, entry in enumerate(table["check"], 1)]
        datasets = tuple(table.get("datasets", ()))
        claims.append(Claim(table["id"], table["text"], table["source"], tuple(checks), datasets))
    if duplicates := [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]:
        raise ValueError(f"{path.name}: duplicate claim {', '.join(duplicates)}")
    return claims


def _check(place: str, entry: dict[str, Any], notebooks: list[str]) -> Check:
    words = {"what", "figure", "reads", "expected"}
    _check_keys(place, entry, words | {"quantity", "rule"}, {"table", "counts", "generated"})
    notebook = notebook_of(entry["figure"], notebooks)
    if notebook is None:
        raise unknown(f"notebook in {place}, figure", entry["figure"], notebooks)
    quantity = entry["quantity"]
    _check_keys(f"{place}, quantity", quantity, set(), set(Quantity.__dataclass_fields__))
    if bool(quantity.get("over")) != bool(quantity.get("match")):
        raise ValueError(
            f"{place}, quantity: give both `over` (the rows to divide by) and `match` (equal columns), or neither"
        )
    options = dict(entry["rule"])
    kind = options.pop("kind", None)
    if kind not in RULES:
        raise unknown(f"kind in {place}, rule", kind, RULES)
    needed = rule_options(kind)
    _check_keys(f"{place}, rule {kind}", options, needed, {"along"} if RULES[kind].worst else set())
    lists = {key: tuple(quantity.get(key, ())) for key in ("by", "match")}
    rest = {key: entry[key] for key in (*words, "counts", "generated", "table") if key in entry}
    return Check(
        place,
        notebook=notebook,
        quantity=Quantity(**(quantity | lists)),
        kind=kind,
        options=options,
        **{"table": None} | rest,
    )


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
        `COLUMNS`; for each claim one row with `check` 0, its verdict and the number of its first check, then one row per
        check and combination of its `by`, with a verdict of `findings.VERDICTS` and the `reason` where it is not tested.

    Raises:
        ValueError: a figure that its notebook does not make, a column that its CSV does not have.
    """
    import pandas as pd

    rows = []
    for claim in claims:
        checks = [
            {"claim": claim.id, "check": i, "source": ""} | row
            for i, check in enumerate(claim.checks, 1)
            for row in _check_rows(check, figures, run)
        ]
        rows += [_claim_row(claim, checks), *checks]
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


def _claim_row(claim: Claim, rows: list[dict]) -> dict:
    """The claim's own row: `reproduced` where all checks are, `not` where no check that was tested holds, `not tested` where
    none was tested, `partly` otherwise."""
    counted = [row for row in rows if row["counts"]]
    tested = [row for row in counted if row["verdict"] != NOT_TESTED]
    data = dict.fromkeys(name for row in tested or counted for name in row["data"].split(", ") if name)
    missing = [pattern for pattern in claim.datasets if not any(fnmatchcase(name, pattern) for name in data)]
    words = {row["verdict"] for row in tested}
    whole = words == {REPRODUCED} and len(tested) == len(counted) and not missing
    word = NOT_TESTED if not tested else NOT if words == {NOT} else REPRODUCED if whole else PARTLY
    reasons = [] if word == REPRODUCED else _tally(counted)
    if missing and tested and word != NOT:
        reasons.append(
            f"data sets of the study that are missing here: {', '.join(name.rstrip('*/') for name in missing)}"
        )
    first = rows[0]
    row = {key: first[key] for key in ("where", "expected", "reads", "value", "low", "high", "n", "detail", "figure")}
    row |= {"claim": claim.id, "check": 0, "what": claim.text, "source": claim.source, "verdict": word}
    row |= {"reason": "; ".join(reasons), "counts": True, "data": ", ".join(data)}
    return row | {"notebook": ", ".join(dict.fromkeys(row["notebook"] for row in counted))}


def _tally(counted: list[dict]) -> list[str]:
    """How many checks are reproduced, and which are not: `4 of 6 checks reproduced; partly: “how large” (2 of 3)`."""
    if all(row["verdict"] == NOT_TESTED for row in counted):
        return list(dict.fromkeys(row["reason"] for row in counted))
    if len(counted) == 1:
        return [] if counted[0]["verdict"] == REPRODUCED else [f"expected: {counted[0]['expected']}"]
    parts = [f"{sum(row['verdict'] == REPRODUCED for row in counted)} of {len(counted)} checks reproduced"]
    totals = Counter(row["what"] for row in counted)
    for word in (PARTLY, NOT, NOT_TESTED):
        counts = Counter(row["what"] for row in counted if row["verdict"] == word)
        names = [f"“{name}”" + ("" if n == totals[name] else f" ({n} of {totals[name]})") for name, n in counts.items()]
        if names:
            parts.append(f"{word}: {', '.join(names)}")
    return parts


def _check_rows(check: Check, figures: Path, run: dict[str, Any]) -> list[dict]:
    """One row per combination of the columns in `by`; a single one where the check could not be made."""
    words = {key: getattr(check, key) for key in ("what", "expected", "reads", "counts", "notebook", "figure")}
    outcome = next((one for one in run["notebooks"] if one["notebook"] == check.notebook), None)
    data = ", ".join(datasets_of(outcome["parameters"])) if outcome else ""
    if outcome is None or not outcome["ok"]:
        return [words | _missing(data, f"{check.notebook} {'failed' if outcome else 'was not run'}")]
    rows = _rows(check, _read(check, figures, outcome))
    if rows.empty:
        where = ", ".join(f"{key} {value}" for key, value in check.quantity.where.items())
        return [words | _missing(data, f"no values of {where}" if where else "no values")]
    results, by = [], list(check.quantity.by)
    for name, group in rows.groupby(by, sort=False) if by else [((), rows)]:
        try:
            word, finding = verdict(group.reset_index(drop=True), check.kind, **check.options)
        except KeyError as error:
            raise _unknown_column(check, f"rule {check.kind}", error.args[0], group) from error
        except ValueError as error:
            raise ValueError(f"{check.place}, {check.kind}: {error}") from error
        datasets = ", ".join(dict.fromkeys(group["dataset"])) if "dataset" in group else data
        parts = dict(zip(by, name, strict=True))
        where = [v if isinstance(v, str) else f"{key} {number(v)}" for key, v in parts.items() if key != "dataset"]
        reason = _reason(check, datasets, run) if word != NOT_TESTED else finding.text
        row = _result(word, finding, reason) | {"where": ", ".join(where), "data": datasets}
        results.append(words | row | {"figure": _figure(check, datasets, outcome)})
    return results


def _missing(data: str, reason: str) -> dict:
    return _result(NOT_TESTED, Finding(nan, nan, nan, 0, reason), reason) | {"where": "", "data": data}


def _result(word: str, finding: Finding, reason: str) -> dict:
    """A finding with a reservation is not tested; its value is reported."""
    row = {"value": finding.value, "low": finding.low, "high": finding.high, "n": finding.n, "reason": reason}
    if word == NOT_TESTED:
        return row | {"verdict": word, "detail": ""}
    if reason:
        return row | {"verdict": NOT_TESTED, "detail": "; ".join(filter(None, (f"as it is: {word}", finding.text)))}
    return row | {"verdict": word, "detail": finding.text}


def _reason(check: Check, data: str, run: dict[str, Any]) -> str:
    """Why a check that could be made does not test the claim; empty where it does."""
    if run["profile"] not in PROFILES:
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
    import pandas as pd

    if check.figure not in outcome["figures"]:
        raise unknown(f"figure in {check.place}, figure", check.figure, outcome["figures"])
    path = figures / "data" / f"{check.figure}.csv"
    if check.table is not None:
        path = figures / f"{check.table}.csv"
        if not path.is_file():
            tables = sorted(other.stem for other in figures.glob(f"{outcome['notebook']}*.csv"))
            raise unknown(f"table in {check.place}, table", check.table, tables)
    with open(path) as handle:
        header = sum(1 for _ in takewhile(lambda line: line.startswith("#"), handle))
    return pd.read_csv(path, skiprows=header)


def _rows(check: Check, table: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of the check with `value`, `low` and `high`; for a rule of several rows, those with a value. The ends of a
    quotient are the extremes over its two intervals; NaN where one has none."""
    import pandas as pd

    quantity, ends = check.quantity, ("value", "low", "high")
    for key in (*quantity.by, *quantity.match):
        if key not in table:
            raise _unknown_column(check, "quantity", key, table)
    columns = {name: getattr(quantity, name) for name in ends if getattr(quantity, name)}
    columns = columns or {name: name for name in ends if name in table}
    numbers = {name: _column(check, table, name, expression) for name, expression in columns.items()}
    if "value" in numbers:
        numbers = {end: numbers["value"] for end in ends} | numbers
    table = table.assign(**numbers)
    rows = _where(check, table, quantity.where)
    if quantity.over:
        match = list(quantity.match)
        under = _where(check, table, quantity.over).set_index(match)[list(ends)]
        rows = rows.join(under.add_suffix("_under"), on=match)
        quotients = [rows[one] / rows[f"{other}_under"] for one in ends[1:] for other in ends[1:]]
        rows["value"] /= rows["value_under"]
        bounded = (rows["low_under"] * rows["high_under"] > 0) & ({"low", "high"} <= set(columns))
        rows["low"] = pd.concat(quotients, axis=1).min(axis=1).where(bounded)
        rows["high"] = pd.concat(quotients, axis=1).max(axis=1).where(bounded)
    return rows[rows["value"].notna()] if RULES[check.kind].many else rows


def _column(check: Check, table: "pd.DataFrame", name: str, expression: str) -> "pd.Series":
    if expression in table:
        return table[expression].astype(float)
    try:
        return table.eval(expression).astype(float)
    except Exception as error:  # pandas raises many kinds, of its own and of Python's parser
        raise _unknown_column(check, f"quantity.{name}", expression, table) from error


def _where(check: Check, table: "pd.DataFrame", conditions: dict[str, Any]) -> "pd.DataFrame":
    for key, value in conditions.items():
        if key not in table:
            raise _unknown_column(check, "quantity.where", key, table)
        if isinstance(value, str) and "*" in value:
            table = table[table[key].map(lambda text, pattern=value: fnmatchcase(str(text), pattern))]
        else:
            table = table[table[key].isin(value if isinstance(value, list) else [value])]
    return table


def _unknown_column(check: Check, where: str, name: str, table: "pd.DataFrame") -> Exception:
    return unknown(f"column of {check.table or check.figure}.csv in {check.place}, {where}", name, table.columns)
