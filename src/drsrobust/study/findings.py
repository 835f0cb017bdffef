"""Findings, and the rules that turn them into verdicts on claims: for the tables of notebooks and for `reproduce/claims.toml`.

A table of findings has columns `value`, `low` and `high` (NaN where there is none), those that its rule reads, `detail` in
words, and `reason` where a row tests nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import isinf, nan
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

REPRODUCED, PARTLY, NOT, NOT_TESTED = VERDICTS = ("reproduced", "partly", "not", "not tested")


@dataclass(frozen=True)
class Finding:
    """A number with its 95 % interval, the number of cases behind it (0: not tested), and a sentence."""

    value: float
    low: float
    high: float
    n: int
    text: str


@dataclass(frozen=True)
class Rule:
    """When a claim is reproduced.

    Attributes:
        reproduced: expression of columns and options (`@bound`) that must be true in all rows.
        partly: the same, true in at least one row.
        worst: `idxmin` or `idxmax`: the row whose `value` is reported; empty: there is one row.
        many: whether the rule takes several rows.
    """

    reproduced: str
    partly: str = ""
    worst: str = ""
    many: bool = False

    @property
    def options(self) -> set[str]:
        """Names of the options."""
        return set(re.findall(r"@(\w+)", f"{self.reproduced} {self.partly}"))


RULES = {
    "at_least": Rule("low >= @bound", "value >= @bound", "idxmin", many=True),
    "at_most": Rule("high <= @bound", "value <= @bound", "idxmax", many=True),
    "largest_is": Rule("low > next_high", "value > next_value", many=True),
    "power": Rule("low > 0 or high < 0", many=True),
    "above": Rule("low > @bound"),
    "falls": Rule("change_low > 0 and down == 0", "change_low > 0"),  # C1: the deviation rises with the factor
    "depends": Rule("differs"),  # C1
    "more_in_all": Rule("more == cells", "more > 0"),  # C2
    "most_and_least": Rule("right == 2 and apart", "right > 0"),  # C2, C9
    "knee": Rule("held > 0 and value > 0", "held > 0 or value > 0"),  # C3
    "recovers": Rule("low >= @bound", "low > 0"),  # C4
    "keeps": Rule("kept == rates_lost", "kept > 0"),  # C5
    "detects": Rule(  # C6: an upper bound of 0 alarms has no interval below it
        "low > @noticed and time < @time and (alarms_high < @alarms or alarms == 0 and @alarms == 0)",
        "noticed > @noticed and (alarm_share < @alarms or alarms == 0 and @alarms == 0)",
    ),
    "about": Rule(  # C7
        "least >= @claimed / @factor and greatest <= @claimed * @factor",
        "value >= @claimed / @factor and value <= @claimed * @factor",
    ),
    "dominates": Rule("value >= 0.5 and beaten == 0", "value > 0"),  # C8
    "large": Rule("value >= @bound", "greatest >= @bound"),  # C8
}
_OPTIONS = {
    "largest_is": {"column", "named"},
    "power": {"along"},
}  # of rules that compute the finding from several rows


def rule_options(kind: str) -> set[str]:
    """The options that a rule needs; rules of many rows take `along` too."""
    return RULES[kind].options | _OPTIONS.get(kind, set())


def verdict(rows: "pd.DataFrame", kind: str, *, along: str | None = None, **options: Any) -> tuple[str, Finding]:
    """Applies a rule to findings.

    Args:
        rows: of a table of findings; one, or for the rules `at_least`, `at_most`, `largest_is`, `power` any number.
        kind: in `RULES`.
        along: column that says where the worst value is, or of which `power` is taken.
        options: as `rule_options`.

    Returns:
        one of `VERDICTS`, and the finding.

    Raises:
        ValueError: several rows for a rule of one.
        KeyError: a column that the rule reads is missing.

    Example:
        >>> import pandas as pd
        >>> verdict(pd.DataFrame({"value": [0.4], "low": [0.2], "high": [0.6], "detail": ["at 1e-3"]}), "recovers", bound=0.3)
        ('partly', Finding(value=0.4, low=0.2, high=0.6, n=1, text='at 1e-3'))
    """
    rule = RULES[kind]
    if kind == "power":
        rows = _power(rows, along)
    elif kind == "largest_is":
        rows = _largest(rows, options.pop("column"), options.pop("named"))
    if not rule.worst and len(rows) != 1:
        raise ValueError(f"{len(rows)} rows for a rule of one row; `where` and `by` must leave one")
    row = rows.loc[getattr(rows["value"], rule.worst)()] if rule.worst else rows.iloc[0]
    value, low, high = (float(row.get(name, nan)) for name in ("value", "low", "high"))
    if reason := _text(row, "reason"):
        return NOT_TESTED, Finding(value, low, high, 0, reason)
    clear, partly = (_holds(rows, expression, options) for expression in (rule.reproduced, rule.partly))
    word = REPRODUCED if clear.all() else PARTLY if partly.any() else NOT
    text = _text(row, "detail")
    if rule.worst:
        where = f"at {along} {number(row[along])}" if along else ""
        share = f"{int(partly.sum())} of {len(rows)} hold" if not partly.all() and len(rows) > 1 else ""
        if word == PARTLY and partly.all():
            measured = rows[["low", "high"]].notna().all(axis=None)
            share = "the values hold, " + ("their intervals do not" if measured else "their intervals are not known")
        text = ", ".join(filter(None, (where, share)))
    n = len(rows) if rule.worst else int(row.get("n", 1))
    return word, Finding(value, low, high, n, text)


def verdicts(table: "pd.DataFrame", kind: str, **options: Any) -> list[str]:
    """The verdict on each row of a table of findings. Arguments as of `verdict`."""
    return [verdict(table.iloc[[row]], kind, **options)[0] for row in range(len(table))]


def _holds(rows: "pd.DataFrame", expression: str, options: dict[str, Any]) -> np.ndarray:
    from pandas.errors import UndefinedVariableError

    try:
        result = rows.eval(expression, local_dict=options, engine="python") if expression else False
    except UndefinedVariableError as error:
        raise KeyError(re.search(r"'(.*)'", str(error))[1]) from error
    return np.broadcast_to(np.asarray(result, bool), len(rows))


def _text(row: "pd.Series", name: str) -> str:
    text = row.get(name, "")
    return text if isinstance(text, str) else ""


def _one(value: float, low: float, high: float, **others: Any) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame([{"value": value, "low": low, "high": high} | others])


def _power(rows: "pd.DataFrame", along: str) -> "pd.DataFrame":
    """The power of `along` with which the value grows, by a fit through the logarithms; interval by Student's t."""
    from scipy.stats import linregress, t

    above = rows[(rows["value"] > 0) & (rows[along] > 0)]
    if above[along].nunique() < 3:
        return _one(nan, nan, nan, reason=f"{along} has fewer than 3 values")
    fit = linregress(np.log10(above[along].astype(float)), np.log10(above["value"].astype(float)))
    half = float(t.ppf(0.975, len(above) - 2) * fit.stderr)
    ends = [number(end) for name in ("value", along) for end in (above[name].min(), above[name].max())]
    detail = f"{ends[0]} to {ends[1]} in {len(above)}, {along} {ends[2]} to {ends[3]}"
    return _one(float(fit.slope), fit.slope - half, fit.slope + half, n=len(above), detail=detail)


def _largest(rows: "pd.DataFrame", column: str, named: object) -> "pd.DataFrame":
    """The row that has `named` in `column`, with the largest of the others."""
    ordered = rows.sort_values("value", ascending=False, kind="stable")
    own, others = ordered[ordered[column] == named], ordered[ordered[column] != named]
    if len(own) != 1 or others.empty:
        return _one(nan, nan, nan, reason=f"{len(own)} rows of {column} {named}, {len(ordered)} in all")
    row, other = own.iloc[0], others.iloc[0]
    words = "then" if row["value"] > other["value"] else "less than"
    detail = f"{words} {number(other[column])}: {interval(other['value'], other['low'], other['high'])}"
    return _one(
        *row[["value", "low", "high"]], next_value=other["value"], next_high=others["high"].max(), detail=detail
    )


def number(value: object) -> str:
    """A number with three digits; `100` and `1e-5` rather than `1e+02` and `1e-05`; text as it is."""
    if not isinstance(value, Real):
        return str(value)
    if value != value:
        return "none"
    if isinf(value):
        return "infinite"
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return f"{value:.3g}"
    if 1e3 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def interval(value: float, low: float, high: float) -> str:
    """`0.3 [0.2, 0.4]`; the value alone where there is no interval, nothing where there is no number."""
    if value != value:
        return ""
    if (low != low and high != high) or low == value == high:
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"


def conclusion(claim: str, paper: str, here: str | Iterable[str], verdicts: Iterable[str]) -> str:
    """The paragraph that ends a notebook: what the paper says, what was found, and the verdict.

    Args:
        claim: its number, as `C8`.
        paper: what the paper says.
        here: one or more findings in words.
        verdicts: on the findings, each of `VERDICTS`.

    Returns:
        one line. The verdict is `reproduced` where all are, `not reproduced` where all that were tested are `not`, `partly
        reproduced` otherwise; without any test, `not tested`.

    Example:
        >>> conclusion("C8", "bit 30 dominates", ["most in 9 of 9 parts", "|w| is 1e37"], ["reproduced", "not"])
        'C8. The paper: bit 30 dominates. Here: most in 9 of 9 parts; |w| is 1e37. Partly reproduced (1 of 2 findings in full).'
    """
    verdicts, here = list(verdicts), [here] if isinstance(here, str) else list(here)
    tested = [word for word in verdicts if word in VERDICTS[:3]]
    clear = tested.count(REPRODUCED)
    whole = clear == len(verdicts)
    words = "Reproduced" if whole else "Not reproduced" if set(tested) == {NOT} else "Partly reproduced"
    words = f"{words} ({clear} of {len(verdicts)} findings in full)" if tested else "Not tested"
    return f"{claim}. The paper: {paper}. Here: {'; '.join(here) or 'no finding'}. {words}."
