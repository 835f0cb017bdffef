"""Bit error rates from failure rates of memory and the time that words stay in it, and back.

Errors reach a bit as a Poisson process of rate lambda = FIT/Mbit * 1e-9 / 2**20 per hour. FIT counts failures in 10**9 device
hours, and a Mbit is 2**20 bits. A word stays for the residency time: until it is written again with the right
content (the next push of the model, a scrub, a reload; DRAM refresh keeps errors). A bit that was hit stays
wrong until then, so after t hours it is wrong with probability 1 - exp(-lambda t): lambda t is the time of the error clock.

These are rates before ECC; mitigations compute what ECC leaves.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

from drsrobust.extend import check_number, unknown, wrong

if TYPE_CHECKING:
    import pandas as pd

MBIT = 2**20  # bits
APART = "faults and logged events count different things and do not add"
_TB_DAY = 24e-9 * 2**43 / MBIT  # of 1 FIT/Mbit, in 2**40 bytes


def ber(fit_per_mbit: float, hours: float) -> float:
    """Bit error rate at the end of a residency time: 1 - exp(-lambda t).

    Args:
        fit_per_mbit: failures in 10**9 hours per 2**20 bits, 0 or more.
        hours: residency time, 0 or more.

    Raises:
        ValueError: a negative number, or NaN.

    Example:
        >>> f"{ber(25_000, 24):.3g}"
        '5.72e-10'
    """
    return -math.expm1(-_exposure(fit_per_mbit, hours))


def mean_ber(fit_per_mbit: float, interval_hours: float) -> float:
    """Bit error rate at a random moment of an interval after which memory is rewritten (a push, a scrub): the mean of
    `ber` over the interval, 1 - (1 - exp(-lambda T)) / (lambda T), which is half of `ber` at its end where errors are rare.

    Example:
        >>> f"{mean_ber(25_000, 24) / ber(25_000, 24):.6f}"
        '0.500000'
    """
    exposure = _exposure(fit_per_mbit, interval_hours)
    if exposure < 1e-5:  # the formula would take the difference of two numbers that are nearly 1
        return exposure / 2 - exposure**2 / 6
    return 1 + math.expm1(-exposure) / exposure


def fit_per_mbit(ber: float, hours: float) -> float:
    """The failure rate that gives a bit error rate after a residency time: the inverse of `ber`.

    Raises:
        ValueError: a rate outside of [0, 1), or a time that is not positive.

    Example:
        >>> f"{fit_per_mbit(1e-9, 24):,.0f}"
        '43,691'
    """
    return _clock(ber) / _positive("hours", hours) * 1e9 * MBIT


def hours(ber: float, fit_per_mbit: float) -> float:
    """After how many hours a bit error rate is reached: how often to push or scrub for an error rate that a model bears.

    Raises:
        ValueError: a rate outside of [0, 1), or a failure rate that is not positive.

    Example:
        >>> f"{hours(1e-7, 70_000) / 24:.1f} days"
        '62.4 days'
    """
    return _clock(ber) / _positive("fit_per_mbit", fit_per_mbit) * 1e9 * MBIT


class Fit(NamedTuple):
    """Failures in 10**9 hours of one DRAM device: faults that a rewrite cures, and faults that stay."""

    transient: float
    permanent: float

    @property
    def total(self) -> float:
        """Both."""
        return self.transient + self.permanent


# Sridharan and Liberty, "A study of DRAM failures in the field", SC 2012: devices of 1 Gb, DDR2 (19.2 and 46.9 in sum).
FIT = {
    "bit": Fit(14.2, 18.6),
    "word": Fit(1.4, 0.3),
    "column": Fit(1.4, 5.6),
    "row": Fit(0.2, 8.2),
    "bank": Fit(0.8, 10.0),
    "banks": Fit(0.3, 1.4),
    "ranks": Fit(0.9, 2.8),
}


@dataclass(frozen=True)
class FieldRate:
    """A published failure rate: FIT/Mbit from `low` to `high`, what it counts, and its source.

    Attributes:
        kind: `events` that were logged, each of some wrong bits, repeats of one bad place among them; or `faults`, which are
            counted once, and reach one to many millions of bits (`dr.MemoryFault`).
        modes: of faults the rates of a device by mode; None for events.

    Example:
        >>> [mode for mode in FAULTS if FAULTS.modes[mode].total > 10]
        ['bit', 'bank']
    """

    kind: str
    memory: str
    low: float
    high: float
    counts: str
    source: str
    modes: Mapping[str, Fit] | None = None

    def __iter__(self) -> Iterator[str]:
        """The names of the modes.

        Raises:
            TypeError: rates of events.
        """
        if self.modes is None:
            raise TypeError(f"a FieldRate of {self.kind} has no modes; those of dr.rates.FAULTS are {', '.join(FIT)}")
        return iter(self.modes)


EVENTS = FieldRate(
    "events",
    "DRAM in servers, 2006 to 2008",
    25_000,
    70_000,
    "error events that ECC saw, repeated reads of one faulty place among them; more than 8 % of DIMMs had any in a year",
    'B. Schroeder, E. Pinheiro, W.-D. Weber, "DRAM Errors in the Wild: A Large-Scale Field Study", SIGMETRICS 2009',
)
FAULTS = FieldRate(
    "faults",
    "DRAM devices of 1 Gb (DDR2), 2009 to 2010",
    sum(rates.total for rates in FIT.values()) / 1024,
    sum(rates.total for rates in FIT.values()) / 1024,
    "distinct faults of a device, of which half reach more than one bit; 66.1 FIT a device, whatever its capacity is",
    'V. Sridharan, D. Liberty, "A study of DRAM failures in the field", SC 2012',
    FIT,
)
FIELD = (EVENTS, FAULTS)

# Share of processors that corrupt data silently: H. D. Dixit et al., arXiv:2203.08989; S. Wang et al., "Understanding Silent
# Data Corruptions in a Large Production CPU Population", SOSP 2023.
CORRUPTING = {"arXiv:2203.08989": 1e-3, "SOSP 2023": 361e-6}
# Stops of a training job by silent data corruption, an hour and GPU: 6 in 54 days on 16,384 GPUs (Llama 3, arXiv:2407.21783).
GPU_STOPS = 6 / (54 * 24 * 16_384)


def fits_by_mode(rates: "FieldRate | Mapping[str, Fit]", name: str = "rates") -> dict[str, Fit]:
    """The failure rates of a device by fault mode, checked.

    Args:
        rates: `FAULTS`, or mode -> `Fit` or (transient, permanent).
        name: of the argument, for messages.

    Raises:
        TypeError: rates of events among them, or something else.
        ValueError: an unknown mode, or rates that are negative or not finite.
    """
    if isinstance(rates, FieldRate) and rates.modes is not None:
        rates = rates.modes
    if not isinstance(rates, Mapping):
        if isinstance(rates, FieldRate):
            raise TypeError(
                f"{name} is a FieldRate of {rates.kind}; {APART}: give dr.rates.FAULTS, or a mapping of modes to Fit"
            )
        raise wrong(name, "dr.rates.FAULTS, or a mapping of modes to Fit", rates)
    found = {}
    for mode, one in rates.items():
        if mode not in FIT:
            raise unknown("mode", mode, FIT)
        if isinstance(one, FieldRate):
            raise TypeError(f"rates of {mode!r} are {one.kind} of FieldRate; {APART}: give Fit(transient, permanent)")
        if not (isinstance(one, tuple) and len(one) == 2 and all(map(_is_rate, one))):
            raise ValueError(f"rates of {mode!r} are {one!r}; they must be (transient, permanent), 0 or more each")
        found[mode] = Fit(*map(float, one))
    return found


def field_rates(residency_hours: float = 24.0) -> "pd.DataFrame":
    """Published failure rates with the bit error rates that they give.

    Few DIMMs have most of the errors, so these are means over a fleet: most machines see none, some see far more. Rates of
    whole devices (about one in a thousand corrupts data silently: H. D. Dixit et al., arXiv:2203.08989) cannot be turned into
    a rate per bit.

    Args:
        residency_hours: how long words stay.

    Returns:
        columns kind, memory, fit_low, fit_high (FIT/Mbit), per_tb_day_low, per_tb_day_high (per TB of 2**40 bytes and day),
        ber_low, ber_high (of events; blank for faults, which start at so many places but reach more bits), counts, source.
    """
    import pandas as pd

    return pd.DataFrame(
        {
            "kind": rate.kind,
            "memory": rate.memory,
            "fit_low": rate.low,
            "fit_high": rate.high,
            "per_tb_day_low": rate.low * _TB_DAY,
            "per_tb_day_high": rate.high * _TB_DAY,
            "ber_low": ber(rate.low, residency_hours) if rate.kind == "events" else math.nan,
            "ber_high": ber(rate.high, residency_hours) if rate.kind == "events" else math.nan,
            "counts": rate.counts,
            "source": rate.source,
        }
        for rate in FIELD
    )


def _is_rate(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= value < math.inf


def _exposure(fit_per_mbit: float, hours: float) -> float:
    """lambda t: expected errors per bit."""
    for name, value in (("fit_per_mbit", fit_per_mbit), ("hours", hours)):
        check_number(name, value, "a finite number, 0 or more", lambda value: value >= 0)
    return fit_per_mbit * 1e-9 / MBIT * hours


def _clock(ber: float) -> float:
    """The error clock's time at which a bit error rate is reached."""
    return -math.log1p(-check_number("ber", ber, "a number from 0 to 1, and less than 1", lambda rate: 0 <= rate < 1))


def _positive(name: str, value: float) -> float:
    return check_number(name, value, "a finite number over 0", lambda value: value > 0)
