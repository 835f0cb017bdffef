"""How often each rule gives the right word: `python -m reproduce.simulation` prints the table.

Values are drawn for a rule's items and units with the spread of a development run, with means where the statement holds, where
it does not, and at the bound; intervals and verdicts are those of a run.
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from drsrobust_study.statements import interval
from reproduce.statements import CONTRADICTED, REPRODUCED, UNDECIDED, Condition, Rule, load_rules, together

if TYPE_CHECKING:
    import pandas as pd

TABLES = 200
CASES = TRUE, FALSE, BORDER = "true", "false", "border"


def simulated(rule: Rule, case: str, *, wider: float = 1.0) -> list[str]:
    """The verdicts on `TABLES` made tables.

    Args:
        rule: with spreads and means.
        case: of `CASES`.
        wider: by which intervals are wider than those of a run.
    """
    random, verdicts = np.random.default_rng(0), []
    for _ in range(TABLES):
        words = []
        for _ in range(rule.items):
            words.append(together(_said(one, _mean(one, case), rule.units, random, wider) for one in rule.conditions))
        verdicts.append(rule.verdict(words))
    return verdicts


def _mean(condition: Condition, case: str) -> float:
    bound = condition.above if np.isfinite(condition.above) else condition.below
    if case == BORDER:
        return np.log10(bound) if condition.log else bound
    return condition.true if case == TRUE else condition.false


def _said(condition: Condition, mean: float, units: int, random: np.random.Generator, wider: float) -> str:
    values = random.normal(mean, condition.spread, units)
    values = 10.0**values if condition.log else values.clip(0, 1) if condition.share else values
    value, low, high = interval(values, log=condition.log, share=condition.share)
    if condition.log:
        return condition.says(value * (low / value) ** wider, value * (high / value) ** wider)
    return condition.says(value - wider * (value - low), value + wider * (high - value))


def simulation_table(rules: Iterable[Rule]) -> "pd.DataFrame":
    """One row per rule: shares of tables with each word where the statement holds, does not, and at the bound."""
    import pandas as pd

    rows = []
    for rule in rules:
        row = {"statement": rule.statement, "part": rule.part, "items": rule.items, "units": rule.units}
        for case in CASES:
            found = simulated(rule, case)
            row |= {f"{case}: {word}": found.count(word) / len(found) for word in (REPRODUCED, CONTRADICTED, UNDECIDED)}
        rows.append(row)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    print(simulation_table(load_rules()).round(2).to_string(index=False))
    sys.exit(0)
