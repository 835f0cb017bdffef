"""The claims of the study as data (`claims.toml`), and the verdicts of a run on them (`claims.csv`).

A verdict follows from numbers of a figure's CSV, or of a table of findings, by a rule of `drsrobust_study.findings`. One check
of each claim is the main one: its number and verdict are the claim's.
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

from drsrobust._choices import unknown
from drsrobust._files import new_file
from drsrobust_study.findings import (
    NOT_TESTABLE,
    RULES,
    SEED_DEPENDENT,
    interval,
    number,
    rule_options,
    seed_dependent,
    verdict,
)
from drsrobust_study.notebook import datasets_of
from drsrobust_study.thirds import THIRD
from reproduce.profiles import JUDGED

if TYPE_CHECKING:
    import pandas as pd

FILE = Path(__file__).resolve().parent / "claims.toml"
COLUMNS = (
    *("claim", "check", "main", "what", "where", "expected", "reads", "value", "low", "high", "n", "verdict", "thirds"),
    *("reason", "detail", "sentence", "data", "notebook", "figure", "source"),
)


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
        worst: `max` or `min` of `value`: the row that is taken where several are left.
    """

    value: str = ""
    low: str = ""
    high: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    over: dict[str, Any] = field(default_factory=dict)
    match: tuple[str, ...] = ()
    worst: str = ""


@dataclass(frozen=True)
class Check:
    """One number of a claim, and the rule for its verdict.

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
        why: of the main check, why it is that one; empty of the others.
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
    why: str = ""
    generated: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim: its checks, the main one first; a sentence with their numbers; its source; and the data sets of the study
    (patterns)."""

    id: str
    text: str
    source: str
    sentence: str
    checks: tuple[Check, ...]
    datasets: tuple[str, ...] = ()


def load_claims(notebooks: Iterable[str], path: Path = FILE) -> list[Claim]:
    """Reads `claims.toml`.

    Args:
        notebooks: names of the notebooks.
        path: of the file.

    Raises:
        ValueError: an unknown or missing key, rule or option, a figure of no notebook, or a claim with no main check or with
            several; file and key are named.
    """
    tables = tomllib.loads(path.read_text())
    _check_keys(path.name, tables, {"claim"})
    notebooks, claims = list(notebooks), []
    for position, table in enumerate(tables["claim"], 1):
        place = f"{path.name}, {table.get('id', f'claim {position}')}"
        _check_keys(place, table, {"id", "text", "source", "sentence", "check"}, {"datasets"})
        checks = tuple(_check(f"{place}, check {i}", entry, notebooks) for i, entry in enumerate(table["check"], 1))
        if [bool(check.why) for check in checks] != [True] + [False] * (len(checks) - 1):
            raise ValueError(f"{place}: the first check, and no other, must have main = true and a reason, why = ...")
        datasets = tuple(table.get("datasets", ()))
        claims.append(Claim(*(table[key] for key in ("id", "text", "source", "sentence")), checks, datasets))
    if duplicates := [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]:
        raise ValueError(f"{path.name}: duplicate claim {', '.join(duplicates)}")
    return claims


def _check(place: str, entry: dict[str, Any], notebooks: list[str]) -> Check:
    words = {"what", "figure", "reads", "expected"}
    main = {"main", "why"} if entry.get("main") else set()
    _check_keys(place, entry, words | {"quantity", "rule"} | main, {"table", "generated"})
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
    _check_keys(f"{place}, rule {kind}", options, rule_options(kind))
    lists = {key: tuple(quantity.get(key, ())) for key in ("by", "match")}
    rest = {key: entry[key] for key in (*words, "why", "generated", "table") if key in entry}
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
        `COLUMNS`; for each claim one row with `check` 0, its sentence, and the number and verdict of its main check, then one
        row per check and combination of its `by`, with a verdict of `findings.VERDICTS`, the verdicts on thirds of the trials,
        and the `reason` where it is not testable.

    Raises:
        ValueError: a figure that its notebook does not make, a column that its CSV does not have, a main check with several
            numbers.
    """
    import pandas as pd

    rows = []
    for claim in claims:
        checks = [
            {"claim": claim.id, "check": i, "source": "", "sentence": ""} | row
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


def read_table(path: Path, **options: Any) -> "pd.DataFrame":
    """A CSV of a run, without the comments before its header; with options of `pandas.read_csv`."""
    import pandas as pd

    with open(path) as handle:
        comments = sum(1 for _ in takewhile(lambda line: line.startswith("#"), handle))
    return pd.read_csv(path, skiprows=comments, **options)


def _claim_row(claim: Claim, rows: list[dict]) -> dict:
    """The claim's own row: its sentence, and the number and verdict of its main check."""
    main = [row for row in rows if row["main"]]
    if len(main) != 1:
        raise ValueError(f"{claim.checks[0].place}: the main check has {len(main)} numbers; `where` must leave one")
    data = dict.fromkeys(name for row in rows for name in row["data"].split(", ") if name)
    missing = [pattern for pattern in claim.datasets if not any(fnmatchcase(name, pattern) for name in data)]
    absent = f"not run here: {', '.join(name.rstrip('*/') for name in missing)}" if missing else ""
    row = main[0] | {"check": 0, "what": claim.text, "source": claim.source, "sentence": _sentence(claim, rows)}
    notebooks = dict.fromkeys(row["notebook"] for row in rows)
    reason = "; ".join(filter(None, (main[0]["reason"], absent)))
    return row | {"reason": reason, "data": ", ".join(data), "notebook": ", ".join(notebooks)}


class _Told:
    """The numbers of a check in a claim's sentence: `{1}`, `{1:%}` per cent, `{1:x}` the number alone. Of a check with `by` it
    is the range of all its numbers, or the number with the widest of their intervals where all are equal; `{1[SECDED]}` is of
    those whose `where` is or begins with that name."""

    def __init__(self, rows: list[dict]) -> None:
        self.rows, self.detail = rows, "; ".join(dict.fromkeys(row["detail"] for row in rows))

    def __getitem__(self, name: str) -> "_Told":
        return _Told([row for row in self.rows if name in (row["where"], row["where"].partition(", ")[0])])

    def __format__(self, spec: str) -> str:
        known = [row for row in self.rows if row["value"] == row["value"]]
        if not known:
            return "an unknown number of"
        scale, unit = (100, " %") if "%" in spec else (1, "")
        least, greatest = (number(scale * choose(row["value"] for row in known)) for choose in (min, max))
        missing = (
            f" (unknown in {len(self.rows) - len(known)} of {len(self.rows)})" if len(known) < len(self.rows) else ""
        )
        if least != greatest:
            return f"{least} to {greatest}{unit}{missing}"
        low, high = min(row["low"] for row in known), max(row["high"] for row in known)
        _, _, ends = interval(scale * known[0]["value"], scale * low, scale * high).partition(" ")
        return f"{least}{unit}" + (f" {ends}" if ends and "x" not in spec else "") + missing


def _sentence(claim: Claim, rows: list[dict]) -> str:
    """The claim's sentence with the numbers of its checks; why not, where the main check has none."""
    main = rows[0]
    if main["value"] != main["value"]:
        return f"Not testable here: {main['reason']}."
    by_check = [[row for row in rows if row["check"] == check] for check in range(1, len(claim.checks) + 1)]
    return claim.sentence.format(None, *map(_Told, by_check))


def _check_rows(check: Check, figures: Path, run: dict[str, Any]) -> list[dict]:
    """One row per combination of the columns in `by`; a single one where the check could not be made."""
    words = {key: getattr(check, key) for key in ("what", "expected", "reads", "notebook", "figure")}
    words |= {"main": bool(check.why)}
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
        by_third = dict(list(group.groupby(THIRD))) if THIRD in group else {0: group}
        finding, *parts = (_one_row(check, rows) for _, rows in sorted(by_third.items()))
        datasets = ", ".join(dict.fromkeys(", ".join(group["dataset"]).split(", "))) if "dataset" in group else data
        reason = _text(finding, "reason") or _reason(check, datasets, run)
        word, on_thirds = _verdict(check, finding), ", ".join(_verdict(check, part) for part in parts)
        word = SEED_DEPENDENT if seed_dependent(on_thirds.split(", ")) else word
        detail = _text(finding, "detail")
        if reason and word != NOT_TESTABLE:
            word, reason = NOT_TESTABLE, f"{reason} (as it is: {word})"
        if word == NOT_TESTABLE:
            reason = reason or "no interval"
        named = [(key, v) for key, v in zip(by, name, strict=True) if key != "dataset"]
        where = ", ".join(v if isinstance(v, str) else f"{key} {number(v)}" for key, v in named)
        row = {key: float(finding[key]) for key in ("value", "low", "high")}
        row["n"] = int(finding["n"]) if finding.get("n", nan) == finding.get("n") else 1
        row |= {"verdict": word, "thirds": on_thirds, "reason": reason, "detail": detail}
        row |= {"where": where, "data": datasets}
        results.append(words | row | {"figure": _figure(check, datasets, outcome)})
    return results


def _verdict(check: Check, row: "pd.Series") -> str:
    """Of one finding by the check's rule."""
    if _text(row, "reason"):
        return NOT_TESTABLE
    return verdict(float(row["low"]), float(row["high"]), check.kind, **check.options)


def _one_row(check: Check, rows: "pd.DataFrame") -> "pd.Series":
    """The row of a check, or the worst of several."""
    if len(rows) == 1:
        return rows.iloc[0]
    if not check.quantity.worst:
        raise ValueError(
            f"{check.place}: {len(rows)} rows; `where` and `by` must leave one, or `worst` must choose one"
        )
    return rows.loc[getattr(rows["value"], f"idx{check.quantity.worst}")()]


def _text(row: "pd.Series", name: str) -> str:
    text = row.get(name, "")
    return text if isinstance(text, str) else ""


def _missing(data: str, reason: str) -> dict:
    row = {"value": nan, "low": nan, "high": nan, "n": 0, "verdict": NOT_TESTABLE, "thirds": "", "reason": reason}
    return row | {"detail": "", "where": "", "data": data}


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


def _rows(check: Check, table: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of the check with `value`, `low` and `high`. The ends of a quotient are the extremes over its two intervals; NaN
    where one has none."""
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
        bounded = rows["low_under"] * rows["high_under"] > 0
        rows["low"] = pd.concat(quotients, axis=1).min(axis=1).where(bounded)
        rows["high"] = pd.concat(quotients, axis=1).max(axis=1).where(bounded)
    return rows.reset_index(drop=True)


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
