"""The error clock: one sampler, exact at every rate, whose cost is the number of errors.

Each of n bits gets an arrival time T ~ Exp(1); at rate p a bit is wrong if T < L = -log1p(-p). So bits are wrong independently
with probability exactly p; for one seed the errors at a lower rate are among the errors at a higher one. The same holds for
words and rows. That is so at each rate; over rates, errors of one seed are joint. The number of arrivals of a block is one
quantile of its distribution at all rates, so a map with many errors at one rate has many at the next: the correlation of the
number at 1e-6 with those that 3e-6 adds is 0.72; were times drawn bit by bit, it would be 0.
Arrivals are drawn by blocks of places (`block_arrivals`), the first k places one after the other (`first_arrivals`): a uniform
k-subset, nested in k. Maps of drsrobust 0.7 and before (version 1 of the clock) are loaded, and are not drawn again."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from drsrobust._arguments import check_seed, check_whole
from drsrobust.injection.block_arrivals import BlockArrivals
from drsrobust.injection.first_arrivals import PART, FirstArrivals

VERSION = 2


class ErrorClock:
    """Arrivals at `n` places: bits, words or rows.

    Args:
        n: number of places, at least 1.
        seed: 0 .. 2**64 - 1.
        summand: 0 .. 2**32 - 1; gives several clocks of one seed streams of their own.

    Attributes:
        n, seed, summand: as given.

    Raises:
        ValueError: no places, or a seed out of range.

    Example:
        >>> clock = ErrorClock(1000, seed=7)
        >>> clock.until(0.004), clock.first(3)
        (array([ 54,  66, 482, 489, 536, 557, 582]), array([111, 332, 893]))
    """

    def __init__(self, n: int, *, seed: int, summand: int = 0) -> None:
        n, summand = check_whole("n", n, 1), check_whole("summand", summand, 0, 2**32 - 1)
        self.n, self.seed, self.summand = n, check_seed(seed), summand
        self._first = FirstArrivals(n, self.seed, summand)

    @cached_property
    def _arrivals(self) -> BlockArrivals:  # a generator, which counts of errors do not need
        return BlockArrivals(self.n, self.seed, self.summand)

    @property
    def blocks(self) -> int:
        """Blocks of places that are drawn by themselves."""
        return self._arrivals.blocks

    def until(self, rate: float, *, blocks: tuple[int, int] | None = None) -> np.ndarray:
        """Places that are wrong at a rate in [0, 1]: int64, ascending, distinct.

        Args:
            blocks: the first block and the end of those that are drawn, so that several processes draw a part each; None: all.
        """
        return np.concatenate([np.empty(0, np.int64), *self.until_in_parts(rate, blocks=blocks)])

    def until_in_parts(self, rate: float, *, blocks: tuple[int, int] | None = None) -> Iterator[np.ndarray]:
        """As `until`, in parts, because all places of a high rate need more memory than the bits themselves."""
        first, end = (0, self.blocks) if blocks is None else blocks
        if not 0 <= first <= end <= self.blocks:
            raise ValueError(f"blocks is {blocks!r}; it must be a first block and an end, from 0 to {self.blocks}")
        if not 0 <= rate <= 1:
            raise ValueError(f"rate is {rate!r}; it must be a number from 0 to 1")
        if rate == 1:
            size = self._arrivals.size
            first, end = first * size, min(end * size, self.n)
            return (np.arange(start, min(start + PART, end)) for start in range(first, end, PART))
        return self._arrivals.until_in_parts(float(rate), first, end) if rate else iter(())

    def first(self, k: int) -> np.ndarray:
        """The first k distinct places to be reached, 0 <= k <= n: int64, ascending."""
        return np.concatenate([np.empty(0, np.int64), *self.first_in_parts(k)])

    def first_in_parts(self, k: int) -> Iterator[np.ndarray]:
        """As `first`, in parts."""
        if not 0 <= k <= self.n:
            raise ValueError(f"k is {k}; it must be from 0 to {self.n}, the number of eligible bits")
        return self.until_in_parts(1.0) if k == self.n else self._first.in_parts(k)

    def arrivals(self, rate: float) -> tuple[np.ndarray, np.ndarray]:
        """The places of `until`, and for each the number of its first arrival (int64 [n]). Rate 1 takes about n log n draws."""
        if not 0 <= rate <= 1:
            raise ValueError(f"rate is {rate!r}; it must be a number from 0 to 1")
        return self._arrivals.arrivals(float(rate)) if rate else (np.empty(0, np.int64), np.empty(0, np.int64))

    def values(self, order: np.ndarray, words: int, *, first: int | None = None) -> np.ndarray:
        """The first `first` (None: all) of the `words` raw words that each arrival with a number in [n] owns: uint64
        [n, first]."""
        return self._arrivals.values(order, words, words if first is None else first)

    def stream(self, use: int) -> np.random.PCG64:
        """Raw words of a further use (`first_arrivals`)."""
        return self._first.stream(use)


def uniform(raw: np.ndarray) -> np.ndarray:
    """Raw words uint64 as numbers from 0 to below 1, float64, of their 53 highest bits."""
    return (raw >> np.uint64(11)) * 2.0**-53


def scaled(raw: np.ndarray, n: np.ndarray | int) -> np.ndarray:
    """floor(raw * n / 2**64) of raw words uint64 and 1 <= n < 2**64: an integer below n (uint64), uniform but for a bias under
    n / 2**64."""
    n = np.asarray(n, np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    high = (raw >> half) * (n & low)
    middle = (raw & low) * (n >> half)
    carry = ((raw & low) * (n & low)) >> half
    carry += (high & low) + (middle & low)
    return (raw >> half) * (n >> half) + (high >> half) + (middle >> half) + (carry >> half)
