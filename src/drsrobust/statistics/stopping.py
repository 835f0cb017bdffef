"""When there are trials enough: until the interval of the mean is as narrow as was asked for, looked at on a fixed schedule.

The interval is `statistics.bounded_interval`, which holds at all numbers of trials at once: alpha is spent once, for all looks
together, so nothing is left to be split over them, and the interval where trials stop covers the mean with the probability it
says. It needs bounds of the metric, and it needs them for good reason: most trials leave an AUC as it was and a few ruin it, so
32 trials that are all alike, or nearly, say nothing of outcomes of 1 in 100. Student's t would stop there, and cover the mean
in 8 % of campaigns where an error in 300 takes 0.15 AUC."""

from collections.abc import Iterable, Sequence

import numpy as np

from drsrobust.statistics.intervals import CONFIDENCE, bounded_interval

UNIT = (0.0, 1.0)  # an AUC's bounds


def checkpoints(first: int = 32, max_trials: int = 4096, growth: float = 2.0) -> list[int]:
    """The numbers of trials at which intervals are looked at: first, growth times as many, and so on; the last is max_trials.

    Args:
        first: at least 1.
        max_trials: at least 1; less than `first`, it is the only look.
        growth: more than 1. Looking more often costs no confidence, so less than 2 saves trials.

    Raises:
        ValueError: an argument out of its range.

    Example:
        >>> checkpoints(32, 1000)
        [32, 64, 128, 256, 512, 1000]
    """
    for name, value in (("first", first), ("max_trials", max_trials)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more")
    if not growth > 1:
        raise ValueError(f"growth is {growth!r}; it must be more than 1")
    found, look = [], float(first)
    while round(look) < max_trials:
        found.append(round(look))
        look = max(look * growth, look + 1)
    return [*found, int(max_trials)]


def stopping_interval(
    values: np.ndarray, bounds: tuple[float, float] = UNIT, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Mean of the values that are there and its interval, which holds however the number of trials came about.

    A trial whose model raised has no value (NaN): it is left out here, and to be counted apart. The mean is that of the others.

    Args:
        values: [n], NaN where a trial has none.
        bounds: least and greatest value that can be.
        confidence: of confidence, for all numbers of trials together.

    Returns:
        mean, low, high; NaN and the bounds if no trial has a value.

    Raises:
        ValueError: values outside the bounds.

    Example:
        >>> stopping_interval(np.array([0.8, 0.8, 0.7, np.nan] * 100))
        (0.7666666666666..., 0.7508..., 0.7751...)
    """
    values = np.asarray(values, np.float64)
    return bounded_interval(values[~np.isnan(values)], bounds, confidence)


def is_precise(
    values: Iterable[np.ndarray], precision: float, bounds: tuple[float, float] = UNIT, confidence: float = CONFIDENCE
) -> bool:
    """Whether the interval of every condition is narrow enough: half of its width is at most `precision`.

    Conditions that share their error maps (mitigations, rates) stop together, so that they stay paired. Each interval covers
    its own mean with probability `confidence` whatever the others do.

    Args:
        values: for each condition [n], as for `stopping_interval`. One in which every trial raised is never narrow.
        precision: as 0.005 AUC.
        bounds, level: as for `stopping_interval`.

    Raises:
        ValueError: a precision that is not positive, or values outside the bounds.
    """
    if not precision > 0:
        raise ValueError(f"precision is {precision!r}; half of an interval's width is more than 0")
    for one in values:
        _, low, high = stopping_interval(one, bounds, confidence)
        if (high - low) / 2 > precision:
            return False
    return True


def required_trials(
    values: Sequence[np.ndarray],
    checkpoints: Sequence[int],
    precision: float,
    bounds: tuple[float, float] = UNIT,
    confidence: float = CONFIDENCE,
) -> int:
    """How many trials conditions that stop together need, as far as the trials so far can tell.

    The answer n is the first look at which all intervals are narrow enough, else the first look that has not been reached:
    if it is more than the trials there are, run up to n and ask again. It rests on the first n trials alone, so a campaign
    that was interrupted, or that finds more trials than it needs, decides as one that ran through.

    Args:
        values: for each condition its trials in their order, as for `stopping_interval`; of different lengths, the
            shortest counts.
        checkpoints: ascending, as of `checkpoints()`; at the last one trials end, narrow or not.
        precision, bounds, level: as for `is_precise`.

    Raises:
        ValueError: no condition, no look, or as `is_precise`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> values = rng.normal(0.65, 0.1, (2, 600)).clip(0, 1)
        >>> [required_trials([one[:n] for one in values], checkpoints(), precision=0.02) for n in (0, 32, 256, 512, 600)]
        [32, 64, 512, 512, 512]
    """
    if not len(values) or not len(checkpoints):
        raise ValueError(f"{len(values)} conditions and {len(checkpoints)} looks; there must be one of each at least")
    there = min(len(one) for one in values)
    for look in checkpoints[:-1]:
        if look > there or is_precise([one[:look] for one in values], precision, bounds, confidence):
            return int(look)
    return int(checkpoints[-1])
