"""The statements of the study and the verdicts of a run on them, by the rules of `rules.toml`.

Rules are frozen before the run whose verdicts they give: its record holds their SHA-256, and the run's commit this very file.
The words of the statements are in `statements.toml`, which may be mended.
"""

import hashlib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drsrobust._choices import unknown
from drsrobust._files import new_file
from drsrobust_study.statements import interval

if TYPE_CHECKING:
    import pandas as pd

RULES = Path(__file__).with_name("rules.toml")
WORDS = Path(__file__).with_name("statements.toml")
TABLE = "statements.csv"
# Verdicts of the first run after the rules were frozen, of this commit: later runs are published next to them.
JUDGED_RUN, JUDGED_COMMIT = Path(__file__).with_name("judged.csv"), "2f9961867620"
VERDICTS = REPRODUCED, CONTRADICTED, UNDECIDED, NOT_RUN = "reproduced", "contradicted", "undecided", "not run"
EXACT = "checked exactly"  # of arithmetic
YES, NO, MAYBE = "clearly", "clearly not", "unclear"


@dataclass(frozen=True)
class Condition:
    """What the mean of a quantity over trained or drawn models must be.

    Attributes:
        what: the quantity, as in the tables of values.
        above, below: bounds of the mean.
        log: whether the quantity is a ratio, whose logarithms are averaged.
        share: whether it lies within [0, 1].
        spread, true, false: for the rules' simulation: the standard deviation of a value over units (of log10 of a ratio), and
            means where the statement holds and where it does not.
    """

    what: str
    above: float = -math.inf
    below: float = math.inf
    log: bool = False
    share: bool = False
    spread: float = math.nan
    true: float = math.nan
    false: float = math.nan

    def says(self, low: float, high: float) -> str:
        """Whether the condition holds, by an interval of the mean."""
        if not (low <= high):  # NaN: no interval
            return MAYBE
        if low > self.above and high < self.below:
            return YES
        return NO if high < self.above or low > self.below else MAYBE


@dataclass(frozen=True)
class Rule:
    """How a verdict follows from items, such as curves or cells.

    Attributes:
        statement: `S6`.
        part: of a statement that has several verdicts; else empty.
        figure: the notebook's table of values.
        conditions: all must hold for an item.
        reproduced: the least share of the items of which all conditions hold clearly.
        contradicted: the greatest share of the items of which all conditions may hold.
        items, units: for the rule's simulation: how many items there are, and trained or drawn models of each.
        known_before: what was known of the answer before the judged run.
        by_construction: what of the answer follows from how the thing is made, whatever is measured; empty: nothing.
    """

    statement: str
    part: str
    figure: str
    conditions: tuple[Condition, ...]
    reproduced: float
    contradicted: float
    items: int
    units: int = 5
    known_before: str = ""
    by_construction: str = ""

    def verdict(self, items: Iterable[str]) -> str:
        """The word for items that are `YES`, `NO` or `MAYBE`."""
        said = list(items)
        if not said:
            return NOT_RUN
        clear, possible = said.count(YES), len(said) - said.count(NO)
        if clear >= math.ceil(self.reproduced * len(said) - 1e-9):
            return REPRODUCED
        return CONTRADICTED if possible <= math.floor(self.contradicted * len(said) + 1e-9) else UNDECIDED


def load_rules(path: Path = RULES) -> list[Rule]:
    """The rules of a file.

    Raises:
        ValueError: an unknown or missing key, or bounds that no value can meet; file and rule are named.
    """
    of_condition = {one.name for one in fields(Condition)}
    needed = {"statement", "figure", "reproduced", "contradicted", "items", "condition"}
    rules = []
    for number, entry in enumerate(tomllib.loads(path.read_text())["rule"], 1):
        place = f"{path.name}, {entry.get('statement', f'rule {number}')}"
        _check_keys(place, entry, needed, needed | {"part", "units", "known_before", "by_construction"})
        for one in entry["condition"]:
            _check_keys(f"{place}, condition", one, {"what", "spread", "true", "false"}, of_condition)
            if not one.get("above", -math.inf) < one.get("below", math.inf) or not {"above", "below"} & set(one):
                raise ValueError(f"{place}: {one['what']} needs `above`, `below`, or both with the first the lower one")
        conditions = tuple(Condition(**one) for one in entry.pop("condition"))
        rules.append(Rule(**{"part": "", "conditions": conditions} | entry))
    return rules


def _check_keys(place: str, entry: Mapping[str, Any], needed: set[str], allowed: set[str]) -> None:
    for key in entry:
        if key not in allowed:
            raise unknown(f"key in {place}", key, sorted(allowed))
    if missing := sorted(needed - set(entry)):
        raise ValueError(f"{place}: no {', '.join(missing)}")


def rules_digest(path: Path = RULES) -> str:
    """SHA-256 (hex) of the rules."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Statement:
    """The words of a statement: as in `statements.toml`."""

    name: str
    text: str
    published: str
    figure: str
    measured: str
    exact: bool = False
    units: str = ""


def load_statements(path: Path = WORDS) -> dict[str, Statement]:
    """The words of all statements, by their names.

    Raises:
        ValueError: an unknown or missing key; file and statement are named.
    """
    needed, found = {"text", "published", "figure", "measured"}, {}
    for name, entry in tomllib.loads(path.read_text()).items():
        _check_keys(f"{path.name}, {name}", entry, needed, needed | {"exact", "units"})
        found[name] = Statement(name, **entry)
    return found


def statements_of(notebook: str) -> list[str]:
    """Names of the statements that a notebook's figures answer."""
    return [name for name, words in load_statements().items() if words.figure.startswith(notebook)]


def verdicts_of(rules: Iterable[Rule], values: Mapping[str, "pd.DataFrame"], *, judged: bool = True) -> "pd.DataFrame":
    """The verdicts of a run.

    Args:
        rules: as `load_rules` returns them.
        values: figure -> its table of values, as `drsrobust_study.statements.values` makes it.
        judged: whether the run is large enough for verdicts; else, and of generated data, all are `not run`.

    Returns:
        one row per rule and data set, and under it one per item and condition: `statement`, `part`, `dataset`, `item`, `what`
        (of a rule, of how many items it holds clearly), `value`, `low`, `high` (95 % over units), `n` (units), `verdict`, of an
        item and condition whether it holds, and of a rule `known_before` and `by_construction`. A rule without values is one
        row, `not run`.

    Raises:
        ValueError: a unit that is there twice.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for rule in rules:
        table, about = values.get(rule.figure), {"statement": rule.statement, "part": rule.part}
        known = {"known_before": rule.known_before, "by_construction": rule.by_construction}
        if table is not None:
            table = table.assign(
                **{key: table[key].astype(object).where(table[key].notna(), "") for key in ("part", "dataset")}
            )
            table = table[(table["statement"] == rule.statement) & (table["part"] == rule.part)]
        if table is None or table.empty:
            rows.append(about | known | {"dataset": "", "item": "", "what": "", "n": 0, "verdict": NOT_RUN})
            continue
        for dataset, of_dataset in table.groupby("dataset", sort=False):
            of_items = [about | {"dataset": dataset} | row for row in _of_items(rule, of_dataset)]
            said = pd.DataFrame(of_items).groupby("item", sort=False)["verdict"].agg(together)
            whole = {"dataset": dataset, "item": "", "what": _counted(said), "n": max(row["n"] for row in of_items)}
            verdict = rule.verdict(said) if judged and "synthetic-" not in dataset else NOT_RUN
            rows += [about | known | whole | {"verdict": verdict}, *of_items]
    columns = ["statement", "part", "dataset", "item", "what", "value", "low", "high", "n", "verdict", *known]
    return pd.DataFrame(rows, columns=columns)


def write_statements(figures: Path, run: Mapping[str, Any], *, judged: bool) -> Path:
    """Writes `figures`/statements.csv, the verdicts of a run; returns its path. An older one is deleted if that fails.

    Args:
        figures: the run's, with the tables of values of its notebooks.
        run: as in its run.json.
        judged: as of `verdicts_of`.
    """
    from reproduce.tables import read_table

    path = figures / TABLE
    path.unlink(missing_ok=True)
    good = [outcome["notebook"] for outcome in run["notebooks"] if outcome["ok"]]
    files = {name: figures / f"{name}_statements.csv" for name in good}
    values = {name: read_table(file) for name, file in files.items() if file.is_file()}
    table = verdicts_of(load_rules(), values, judged=judged)
    with new_file(path) as part:
        table.to_csv(part, index=False, float_format="%.6g", lineterminator="\n")
    return path


def _of_items(rule: Rule, table: "pd.DataFrame") -> Iterable[dict[str, Any]]:
    for item, of_item in table.groupby("item", sort=False):
        for condition in rule.conditions:
            units = of_item[of_item["what"] == condition.what]
            if units["unit"].duplicated().any():
                raise ValueError(f"{rule.statement}, {item}, {condition.what}: a unit is there twice")
            value, low, high = interval(units["value"], units["error"], log=condition.log, share=condition.share)
            numbers = {"value": value, "low": low, "high": high, "n": len(units)}
            yield {"item": item, "what": condition.what} | numbers | {"verdict": condition.says(low, high)}


def together(words: Iterable[str]) -> str:
    """Whether all of some conditions hold: clearly, clearly not, or neither."""
    said = set(words)
    return NO if NO in said else MAYBE if MAYBE in said else YES


def _counted(said: "pd.Series") -> str:
    clear = int((said == YES).sum())
    return f"{clear} of {len(said)}"
