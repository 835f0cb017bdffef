"""What a run finds of each claim: the rows of `claims.csv`."""

from collections import Counter
from fnmatch import fnmatchcase
from itertools import takewhile
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drsrobust._environment import unknown
from drsrobust._files import new_file
from drsrobust.study.notebook import datasets_of
from reproduce.checks import KINDS, NOT, NOT_TESTED, PARTLY, REPRODUCED, Finding, number
from reproduce.claims import Check, Claim
from reproduce.publish import PROFILES

if TYPE_CHECKING:
    import pandas as pd

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
    "verdict",
    "reason",
    "detail",
)
COLUMNS += ("counts", "data", "notebook", "figure", "source")


def judge_claims(claims: list[Claim], figures: Path, run: dict[str, Any]) -> "pd.DataFrame":
    """Makes all checks of all claims on the CSVs of a run.

    Args:
        claims: as `load_claims` returns them.
        figures: the folder with the run's figures, and `data/` in it.
        run: as in its run.json.

    Returns:
        `COLUMNS`; for each claim one row with `check` 0, its verdict and the number of its first check, then one row per
        check and combination of its `by`, with the verdict `reproduced`, `partly`, `not` or `not tested` (and the `reason`).

    Raises:
        ValueError: a figure that its notebook does not make, a column that its CSV does not have.
    """
    import pandas as pd

    rows = []
    for claim in claims:
        found = [
            {"claim": claim.id, "check": i, "source": ""} | row
            for i, check in enumerate(claim.checks, 1)
            for row in _judged(check, figures, run)
        ]
        rows += [_whole(claim, found), *found]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def write_claims(claims: list[Claim], figures: Path, run: dict[str, Any]) -> Path:
    """Judges the claims and writes `figures`/claims.csv; gives its path. An older one is gone if that fails.

    Raises:
        ValueError: as `judge_claims`.
    """
    path = figures / "claims.csv"
    path.unlink(missing_ok=True)
    table = judge_claims(claims, figures, run)
    data = ", ".join(run["datasets"]) or "none"
    with new_file(path) as part, open(part, "w", newline="\n") as handle:
        handle.write(f"# Claims as a {run['profile']} run finds them; check 0 is the claim as a whole. Data: {data}.\n")
        table.to_csv(handle, index=False, float_format="%.6g", lineterminator="\n")
    return path


def _whole(claim: Claim, found: list[dict]) -> dict:
    """The claim's own row: `reproduced` where all checks are, `not` where none of those that could be made holds, `partly`
    between, `not tested` where none could be made."""
    counted = [row for row in found if row["counts"]]
    tested = [row for row in counted if row["verdict"] != NOT_TESTED]
    data = dict.fromkeys(name for row in tested or counted for name in row["data"].split(", ") if name)
    lacking = [name for name in claim.datasets if not any(fnmatchcase(one, name) for one in data)]
    words = {row["verdict"] for row in tested}
    whole = words == {REPRODUCED} and len(tested) == len(counted) and not lacking
    verdict = NOT_TESTED if not tested else NOT if words == {NOT} else REPRODUCED if whole else PARTLY
    reasons = [] if verdict == REPRODUCED else _tally(counted)
    if lacking and tested and verdict != NOT:
        reasons.append(f"of the study's data sets {', '.join(name.rstrip('*/') for name in lacking)} are not here")
    first = found[0]
    row = {key: first[key] for key in ("where", "expected", "reads", "value", "low", "high", "detail", "figure")}
    row |= {"claim": claim.id, "check": 0, "what": claim.text, "source": claim.source, "verdict": verdict}
    row |= {"reason": "; ".join(reasons), "counts": True, "data": ", ".join(data)}
    return row | {"notebook": ", ".join(dict.fromkeys(one["notebook"] for one in counted))}


def _tally(counted: list[dict]) -> list[str]:
    """How many checks are reproduced, and which are not: `4 of 6 checks reproduced; partly: “how large” (2 of 3)`."""
    if all(row["verdict"] == NOT_TESTED for row in counted):
        return list(dict.fromkeys(row["reason"] for row in counted))
    if len(counted) == 1:
        return [] if counted[0]["verdict"] == REPRODUCED else [f"expected: {counted[0]['expected']}"]
    good = sum(row["verdict"] == REPRODUCED for row in counted)
    told = [f"{good} of {len(counted)} checks reproduced"]
    of = Counter(row["what"] for row in counted)
    for word in (PARTLY, NOT, NOT_TESTED):
        here = Counter(row["what"] for row in counted if row["verdict"] == word)
        names = [f"“{name}”" + ("" if n == of[name] else f" ({n} of {of[name]})") for name, n in here.items()]
        if names:
            told.append(f"{word}: {', '.join(names)}")
    return told


def _judged(check: Check, figures: Path, run: dict[str, Any]) -> list[dict]:
    """One row per combination of the columns in `by`; a single one where the check could not be made."""
    about = {key: getattr(check, key) for key in ("what", "expected", "reads", "counts", "notebook", "figure")}
    missing = Finding(nan, nan, nan, NOT_TESTED)
    outcome = next((one for one in run["notebooks"] if one["notebook"] == check.notebook), None)
    if outcome is None:
        return [about | _row(missing, "", "", f"{check.notebook} was not run")]
    data = ", ".join(datasets_of(outcome["parameters"]))
    if not outcome["ok"]:
        return [about | _row(missing, "", data, f"{check.notebook} failed")]
    table = _read(check, figures, outcome)
    rows = _rows(check, table)
    if rows.empty:
        wanted = ", ".join(f"{key} {value}" for key, value in check.quantity.where.items())
        return [about | _row(missing, "", data, f"no values of {wanted}" if wanted else "no values")]
    found = []
    by = list(check.quantity.by)
    for name, group in rows.groupby(by, sort=False) if by else [((), rows)]:
        try:
            finding = KINDS[check.kind](group.reset_index(drop=True), **check.options)
        except (KeyError, ValueError) as error:
            raise _wrong(check, group, error) from error
        here = ", ".join(dict.fromkeys(group["dataset"])) if "dataset" in group else data
        row = _row(finding, _place(check, name), here, _reason(check, here, run, finding))
        found.append(about | row | {"figure": _figure(check, here, outcome)})
    return found


def _row(finding: Finding, where: str, data: str, reason: str) -> dict:
    """A finding that there is a reason not to rely on is not a test; its number stays."""
    row = {"where": where, "value": finding.value, "low": finding.low, "high": finding.high}
    detail = "" if reason == finding.detail else finding.detail
    if reason and finding.verdict != NOT_TESTED:
        detail = "; ".join(filter(None, (f"as it stands: {finding.verdict}", detail)))
    row |= {"verdict": NOT_TESTED if reason else finding.verdict, "reason": reason, "detail": detail}
    return row | {"data": data}


def _reason(check: Check, data: str, run: dict[str, Any], finding: Finding) -> str:
    """Why a check that could be made is no test of the claim; empty where it is one."""
    if finding.verdict == NOT_TESTED:
        return finding.detail
    if run["profile"] not in PROFILES:
        return f"a {run['profile']} run is too small to judge by"
    if not check.generated and any(name.startswith("synthetic-") for name in data.split(", ")):
        return "generated data"
    return ""


def _figure(check: Check, data: str, outcome: dict[str, Any]) -> str:
    """The figure that shows the check on this data set: `<notebook>_<data set>_<part>` where the notebook made one, as for the
    second data set of 05 and 06, else the check's own."""
    own = f"{check.notebook}_{data.partition('/')[0]}{check.figure.removeprefix(check.notebook)}"
    return own if ", " not in data and own in outcome["figures"] else check.figure


def _place(check: Check, name: tuple) -> str:
    """What tells this combination apart from the others of the check; the data set has a column of its own."""
    parts = zip(check.quantity.by, name, strict=True)
    return ", ".join(f"{key} {number(v)}" if not isinstance(v, str) else v for key, v in parts if key != "dataset")


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
        above = sum(1 for _ in takewhile(lambda line: line.startswith("#"), handle))  # caption, title, what is seen
    return pd.read_csv(path, skiprows=above)


def _rows(check: Check, table: "pd.DataFrame") -> "pd.DataFrame":
    """The rows that the check is about, with `value`, `low` and `high`; those without a value are left out. The ends of a
    quotient are those of its two intervals at their worst; NaN where one has none."""
    import pandas as pd

    quantity = check.quantity
    for key in (*quantity.by, *quantity.match):
        if key not in table:
            raise unknown(f"column of {check.table or check.figure}.csv in {check.place}, quantity", key, table.columns)
    numbers = {name: _column(check, table, name) for name in ("value", "low", "high") if getattr(quantity, name)}
    full = table.assign(**numbers)
    full = full.assign(**{end: full["value"] for end in ("low", "high") if end not in numbers})
    rows = _where(check, full, quantity.where)
    if quantity.over:
        match = list(quantity.match)
        under = _where(check, full, quantity.over).set_index(match)[["value", "low", "high"]]
        rows = rows.join(under.add_suffix("_under"), on=match)
        quotients = [rows[one] / rows[f"{other}_under"] for one in ("low", "high") for other in ("low", "high")]
        rows["value"] /= rows["value_under"]
        # Else nothing bounds the quotient.
        known = (rows["low_under"] * rows["high_under"] > 0) & ({"low", "high"} <= set(numbers))
        rows["low"] = pd.concat(quotients, axis=1).min(axis=1).where(known)
        rows["high"] = pd.concat(quotients, axis=1).max(axis=1).where(known)
    return rows[rows["value"].notna()] if check.kind != "stated" else rows


def _column(check: Check, table: "pd.DataFrame", name: str) -> "pd.Series":
    expression = getattr(check.quantity, name)
    if expression in table:
        return table[expression].astype(float)
    try:
        return table.eval(expression).astype(float)
    except Exception as error:  # pandas raises many kinds, of its own and of Python's parser
        place = f"column of {check.table or check.figure}.csv in {check.place}, quantity.{name}"
        raise unknown(place, expression, table.columns) from error


def _where(check: Check, table: "pd.DataFrame", wanted: dict[str, Any]) -> "pd.DataFrame":
    for key, value in wanted.items():
        if key not in table:
            place = f"column of {check.table or check.figure}.csv in {check.place}, quantity.where"
            raise unknown(place, key, table.columns)
        if isinstance(value, str) and "*" in value:
            table = table[table[key].map(lambda text, pattern=value: fnmatchcase(str(text), pattern))]
        else:
            table = table[table[key].isin(value if isinstance(value, list) else [value])]
    return table


def _wrong(check: Check, rows: "pd.DataFrame", error: Exception) -> Exception:
    """A kind of check met columns or rows that it cannot work with."""
    if isinstance(error, KeyError):
        name = f"column of {check.table or check.figure}.csv in {check.place}, {check.kind}"
        return unknown(name, error.args[0], rows.columns)
    return ValueError(f"{check.place}, {check.kind}: {error}")
