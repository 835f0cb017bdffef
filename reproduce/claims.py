"""The claims of the study, as data (`claims.toml`), and what a run finds of each."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from drsrobust._environment import unknown
from reproduce.checks import KINDS

FILE = Path(__file__).resolve().parent / "claims.toml"


@dataclass(frozen=True)
class Quantity:
    """Which numbers of a CSV a check is about.

    Attributes:
        value, low, high: columns, or expressions of columns as `auc_golden - auc`; without ends the value is taken for both.
            Where none of the three is given, they are the columns of these names.
        where: column -> what it must hold: a value, a list of values, or a text with `*`.
        by: columns; the check is made for each of their combinations.
        over: as `where`, of the rows to divide by; they are found by equal values in `match`. The quotient has an interval if
            `low` and `high` are given, else none: then a bound holds by the values alone.
        match: columns.
    """

    value: str = "value"
    low: str | None = None
    high: str | None = None
    where: dict[str, Any] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    over: dict[str, Any] = field(default_factory=dict)
    match: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One thing that must be so for a claim to hold.

    Attributes:
        place: `claims.toml, C3, check 1`, for messages.
        what: in words.
        notebook: that makes the figure.
        figure: that shows it.
        table: the CSV to read, `figures/data/<figure>.csv` or `figures/<table>.csv`.
        quantity: which numbers.
        reads: what the number is, in words.
        expected: in words.
        kind: of `checks.KINDS`, with its `options`: what is expected, and the tolerance.
        counts: whether the claim's verdict follows from it; a check beside the claim is only shown.
        generated: whether the study's own data are generated here, so that no real ones are needed.
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
    """A claim: its checks, where it was made, and the data sets that the study made it about (patterns; a claim that was
    tested on fewer is `partly` reproduced at best)."""

    id: str
    text: str
    source: str
    checks: tuple[Check, ...]
    datasets: tuple[str, ...] = ()


def load_claims(notebooks: Iterable[str], path: Path = FILE) -> list[Claim]:
    """Reads `claims.toml`.

    Args:
        notebooks: the names of those there are.
        path: of the file.

    Raises:
        ValueError: an unknown or missing key, kind of check or option, or a figure of no notebook; file and key are named.
    """
    tables = tomllib.loads(path.read_text())
    _keys(path.name, tables, {"claim"}, {"claim"})
    known = list(notebooks)
    claims = []
    for number, given in enumerate(tables["claim"], 1):
        place = f"{path.name}, {given.get('id', f'claim {number}')}"
        _keys(place, given, _CLAIM | {"datasets"}, _CLAIM)
        checks = [_check(f"{place}, check {i}", one, known) for i, one in enumerate(given["check"], 1)]
        datasets = tuple(given.get("datasets", ()))
        claims.append(Claim(given["id"], given["text"], given["source"], tuple(checks), datasets))
    if doubles := {one.id for one in claims if sum(one.id == other.id for other in claims) > 1}:
        raise ValueError(f"{path.name}: {', '.join(sorted(doubles))} stands twice")
    return claims


_CLAIM = {"id", "text", "source", "check"}
_NEEDED = {"what", "figure", "quantity", "reads", "expected", "expect"}


def _check(place: str, given: dict[str, Any], notebooks: list[str]) -> Check:
    _keys(place, given, _NEEDED | {"table", "tolerance", "counts", "generated"}, _NEEDED)
    notebook = notebook_of(given["figure"], notebooks)
    if notebook is None:
        raise unknown(f"notebook in {place}, figure", given["figure"], notebooks)
    quantity = given["quantity"]
    _keys(f"{place}, quantity", quantity, set(Quantity.__dataclass_fields__), set())
    if bool(quantity.get("over")) != bool(quantity.get("match")):
        raise ValueError(f"{place}, quantity: `over` says which rows to divide by, `match` by what; give both or none")
    if not {"value", "low", "high"} & set(quantity):
        quantity = quantity | {"low": "low", "high": "high"}
    lists = {key: tuple(quantity.get(key, ())) for key in ("by", "match")}
    options = dict(given["expect"])
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise unknown(f"kind of check in {place}, expect.kind", kind, KINDS)
    options |= given.get("tolerance", {})
    taken = {name: one for name, one in signature(KINDS[kind]).parameters.items() if one.kind is Parameter.KEYWORD_ONLY}
    _keys(f"{place}, expect and tolerance of {kind}", options, set(taken), _without_default(taken))
    rest = {key: given[key] for key in ("what", "figure", "reads", "expected")}
    rest |= {key: given[key] for key in ("counts", "generated") if key in given}
    whole = Quantity(**(quantity | lists))
    return Check(place, notebook=notebook, table=given.get("table"), quantity=whole, kind=kind, options=options, **rest)


def _without_default(parameters: Mapping[str, Parameter]) -> set[str]:
    return {name for name, one in parameters.items() if one.default is Parameter.empty}


def _keys(place: str, given: Mapping[str, Any], known: set[str], needed: set[str]) -> None:
    for key in given:
        if key not in known:
            raise unknown(f"key in {place}", key, sorted(known))
    if missing := sorted(needed - set(given)):
        raise ValueError(f"{place}: no {', '.join(missing)}")


def notebook_of(figure: str, notebooks: Iterable[str]) -> str | None:
    """The notebook that makes a figure: the one with whose name the figure's begins."""
    return next((name for name in notebooks if figure == name or figure.startswith(f"{name}_")), None)
