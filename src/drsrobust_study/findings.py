"""Findings, and the rules that turn them into verdicts on claims: for the tables of notebooks and for `reproduce/claims.toml`.

A finding is a number with an interval: columns `value`, `low` and `high`; `detail` in words, and `reason` where it tests
nothing. A table of findings may have a column `third` (`drsrobust_study.thirds`).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from inspect import signature
from math import isinf
from numbers import Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

VERDICTS = ("reproduced", "in part", "contradicted", "not testable here", "seed-dependent")
REPRODUCED, IN_PART, CONTRADICTED, NOT_TESTABLE, SEED_DEPENDENT = VERDICTS


def _above(low: float, high: float, bound: float) -> tuple[bool, bool]:
    return low > bound, high <= bound


def _below(low: float, high: float, bound: float) -> tuple[bool, bool]:
    return high <= bound, low > bound


def _within(low: float, high: float, least: float, greatest: float) -> tuple[bool, bool]:
    return low >= least and high <= greatest, high < least or low > greatest


def _up_to(low: float, high: float, bound: float) -> tuple[bool, bool]:
    return low > 0 and high >= bound, high < bound


def _differs(low: float, high: float, bound: float) -> tuple[bool, bool]:
    return low > bound or high < bound, False


def _all(low: float, high: float) -> tuple[bool, bool]:
    return low >= 1, high <= 0


# Of an interval: whether it shows the claim, and whether it contradicts it.
RULES: dict[str, Callable[..., tuple[bool, bool]]] = {
    "above": _above,
    "below": _below,
    "within": _within,
    "differs": _differs,
    "up_to": _up_to,  # the best of several reaches the bound
    "all": _all,  # of a share of parts: all hold; low: the share that clearly holds, high: that is not clearly wrong
}


def rule_options(kind: str) -> set[str]:
    """Names of the options of a rule."""
    return set(signature(RULES[kind]).parameters) - {"low", "high"}


def verdict(low: float, high: float, kind: str, **options: float) -> str:
    """What an interval says of a claim: `reproduced` if the claim holds in all of it, `contradicted` if in none of it, else `in
    part`.

    Args:
        low, high: ends of the interval; both the number where it is exact.
        kind: in `RULES`.
        options: as `rule_options`.

    Returns:
        one of the first four of `VERDICTS`; `not testable here` without an interval.

    Example:
        >>> [verdict(low, high, "above", bound=1.0) for low, high in ((1.5, 2.0), (0.5, 2.0), (0.5, 0.9))]
        ['reproduced', 'in part', 'contradicted']
    """
    if low != low or high != high:
        return NOT_TESTABLE
    is_shown, wrong = RULES[kind](low, high, **options)
    return REPRODUCED if is_shown else CONTRADICTED if wrong else IN_PART


def verdicts(table: "pd.DataFrame", kind: str, **options: float) -> list[str]:
    """The verdict on each row of a table of findings; `not testable here` where it has a reason."""
    reasons = table["reason"].fillna("") if "reason" in table else [""] * len(table)
    ends = zip(table["low"], table["high"], reasons, strict=True)
    return [NOT_TESTABLE if reason else verdict(low, high, kind, **options) for low, high, reason in ends]


def seed_dependent(words: Iterable[str]) -> bool:
    """Whether the verdicts on the thirds contradict each other: one is `reproduced` and another `contradicted`."""
    return {REPRODUCED, CONTRADICTED} <= set(words)


def with_verdicts(table: "pd.DataFrame", kind: str, **options: float) -> "pd.DataFrame":
    """A table of findings with a column `verdict`."""
    return table.assign(verdict=verdicts(table, kind, **options))


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


def ratio(top: Iterable[float], bottom: Iterable[float]) -> dict[str, float]:
    """The ratio of two independent numbers with intervals, whose ends are the extremes over both intervals.

    Args:
        top, bottom: value, low, high each.

    Returns:
        `value`, `low`, `high`; NaN where the bottom may be 0 or is negative.
    """
    (value, low, high), (under, under_low, under_high) = top, bottom
    if not under_low > 0:
        return {"value": value / under if under > 0 else float("nan"), "low": float("nan"), "high": float("nan")}
    ends = [end / other for end in (low, high) for other in (under_low, under_high)]
    return {"value": value / under, "low": min(ends), "high": max(ends)}


def conclusion(claim: str, text: str, places: str | Iterable[str], words: Iterable[str]) -> str:
    """The paragraph that ends a notebook: the claim, what was found, and how often which verdict.

    Example:
        >>> conclusion("C8", "bit 30 dominates", ["most in 9 of 9 parts", "|w| is 1e37"], ["reproduced", "in part"])
        'C8. Claim: bit 30 dominates. Here: most in 9 of 9 parts; |w| is 1e37. Findings: 1 reproduced, 1 in part.'
    """
    places, counts = [places] if isinstance(places, str) else list(places), Counter(words)
    counted = ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])
    return f"{claim}. Claim: {text}. Here: {'; '.join(places) or 'no finding'}. Findings: {counted or 'none'}."
