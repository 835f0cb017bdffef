"""Stopping by precision: trials are added until the interval of the mean is narrow enough, checked on a fixed schedule.

The interval is `bounded_interval`, which holds at all numbers of trials at once, so it covers the mean with its confidence at
the number of trials where it stops. It needs bounds of the metric: most trials leave an AUC as it is and a few ruin it, so 32
equal trials say nothing of outcomes of 1 in 100. Student's t would stop there, and cover the mean in 8 % of campaigns where an
error in 300 takes 0.15 AUC.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from drsrobust.statistics.intervals import CONFIDENCE, bounded_interval

UNIT = (0.0, 1.0)  # an AUC's bounds


def checkpoints(first: int = 32, max_trials: int = 4096, growth: float = 2.0) -> list[int]:
    """The numbers of trials at which intervals are checked: first, growth times as many, and so on; the last is max_trials.

    Args:
        first: at least 1.
        max_trials: at least 1; if it is less than `first`, the only checkpoint.
        growth: more than 1. Frequent checks cost no confidence, so less than 2 saves trials.

    Raises:
        ValueError: an argument out of its range.

    Example:
        >>> checkpoints(32, 1000)
        [32, 64, 128, 256, 512, 1000]
    """
    for name, value in (("first", first), ("max_trials", max_trials)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    if not growth > 1:
        raise ValueError(f"growth is {growth!r}; it must be more than 1")
    numbers, n = [], float(first)
    while round(n) < max_trials:
        numbers.append(round(n))
        n = max(n * growth, n + 1)
    return [*numbers, int(max_trials)]


def stopping_interval(
    values: np.ndarray, bounds: tuple[float, float] = UNIT, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Mean of the values and its interval, which holds for any rule that chose the number of trials. NaN (raised trials) are
    dropped.

    Args:
        values: [n], NaN where a trial has none.
        bounds: least and greatest possible value.
        confidence: of the intervals at all numbers of trials together.

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
    """Whether half the width of every condition's interval is at most `precision`. Conditions with the same error maps stop
    together, so that they stay paired.

    Args:
        values: for each condition [n], as for `stopping_interval`. A condition in which every trial raised is never precise.
        precision: as 0.005 AUC.
        bounds, confidence: as for `stopping_interval`.

    Raises:
        ValueError: a precision that is not positive, or values outside the bounds.
    """
    if not precision > 0:
        raise ValueError(f"precision must be more than 0, got {precision!r}")
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
    """The number of trials that conditions which stop together need, as far as is known.

    It is the first checkpoint at which all intervals are narrow enough, else the first one that is not reached yet. It depends
    on the first n trials alone, so an interrupted campaign decides as an uninterrupted one.

    Args:
        values: for each condition its trials in their order, as for `stopping_interval`; the shortest counts.
        checkpoints: ascending, as of `checkpoints()`; at the last one trials end in any case.
        precision, bounds, confidence: as for `is_precise`.

    Raises:
        ValueError: no condition, no checkpoint, or as `is_precise`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> values = rng.normal(0.65, 0.1, (2, 600)).clip(0, 1)
        >>> [required_trials([one[:n] for one in values], checkpoints(), precision=0.02) for n in (0, 32, 256, 512, 600)]
        [32, 64, 512, 512, 512]
    """
    if not len(values) or not len(checkpoints):
        raise ValueError(
            f"{len(values)} conditions and {len(checkpoints)} checkpoints; there must be at least one of each"
        )
    done = min(len(trials) for trials in values)
    for n in checkpoints[:-1]:
        if n > done or is_precise([trials[:n] for trials in values], precision, bounds, confidence):
            return int(n)
    return int(checkpoints[-1])
