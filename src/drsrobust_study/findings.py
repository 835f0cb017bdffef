"""Numbers in words, exact shares, and ratios of two numbers with intervals."""

from collections.abc import Iterable
from math import isinf
from numbers import Real

from drsrobust.statistics import CONFIDENCE

EXACT = "exact binomial (Clopper-Pearson)"


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


def exact_share(count: int, n: int) -> dict[str, float]:
    """The share count / n with its exact 95 % interval (C. J. Clopper and E. S. Pearson, Biometrika 26, 1934).

    Returns:
        `value`, `low`, `high`; NaN when n is 0.

    Example:
        >>> exact_share(0, 100)
        {'value': 0.0, 'low': 0.0, 'high': 0.036...}
    """
    from scipy.stats import binomtest

    if not n:
        return dict.fromkeys(("value", "low", "high"), float("nan"))
    ends = binomtest(int(count), int(n)).proportion_ci(CONFIDENCE, method="exact")
    return {"value": count / n, "low": float(ends.low), "high": float(ends.high)}


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
