"""The error clock: one sampler, exact at every rate, whose cost is the number of errors.

Each of N bits gets an arrival time T ~ Exp(1); at rate p a bit is wrong when T < L = -log1p(-p). So bits are wrong
independently of each other with probability exactly p; for one seed the errors at a lower rate are among those at a
higher one; and the first k bits to arrive are a uniform k-subset, nested in k.

All arrivals together are a Poisson stream of rate N, each hitting a uniform bit, of which a bit's first alone counts.
Raw words are 64-bit outputs r of `PCG64(SeedSequence(seed, spawn_key=(summand, use)))`:

- gaps (use 0): -log(((r >> 12) + 0.5) * 2**-52) / N, summed from left to right in float64;
- positions (use 1): r >> (64 - bit_length(N - 1)), drawn again while >= N (N = 1: always 0).

Positions are integers throughout and so equal on every machine. Whether an arrival within one rounding of L counts rests
on the last bit of a logarithm, which C libraries may differ in.
"""

import math
from collections.abc import Iterator

import numpy as np

GAP, POSITION = 0, 1  # of what an arrival's raw words are used for
_CHUNK = 1 << 20


class ErrorClock:
    """Arrivals at `n` bits.

    Args:
        n: how many bits there are, at least 1.
        seed: 0 .. 2**64 - 1.
        summand: 0 .. 2**32 - 1; tells apart several clocks of one seed.

    Example:
        >>> clock = ErrorClock(1000, seed=7)
        >>> clock.until(0.004), clock.first(3)
        (array([111, 332, 893]), array([111, 332, 893]))
    """

    def __init__(self, n: int, *, seed: int, summand: int = 0) -> None:
        if n < 1:
            raise ValueError(f"an error clock needs at least 1 bit, got {n}")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
            raise ValueError(f"seed is {seed!r}; it must be an integer from 0 to 2**64 - 1")
        self.n, self._seed, self._summand = n, int(seed), summand

    def until(self, rate: float) -> np.ndarray:
        """Positions of the bits that are wrong at a rate in [0, 1]: int64, ascending, distinct."""
        check_rate("rate", rate)
        if rate == 1:
            return np.arange(self.n)
        arrivals = self._count(-math.log1p(-rate)) if rate > 0 else 0
        stream = self._stream(POSITION)
        if arrivals > self.n // 8:  # so many that marking every bit takes less than sorting the arrivals
            hit = np.zeros(self.n, bool)
            for part in self._parts(stream, arrivals):
                hit[part] = True
            return np.flatnonzero(hit)
        small = np.uint32 if self.n <= 2**32 else np.int64  # half the bytes sort in half the time
        ordered = np.empty(arrivals, small)
        filled = 0
        for part in self._parts(stream, arrivals):
            ordered[filled : filled + len(part)] = part
            filled += len(part)
        ordered.sort()
        return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]].astype(np.int64)

    def first(self, k: int) -> np.ndarray:
        """Positions of the first k distinct bits to arrive, 0 <= k <= n: int64, ascending."""
        if not 0 <= k <= self.n:
            raise ValueError(f"{k} errors were asked for among {self.n} bits")
        if k == self.n:
            return np.arange(self.n)
        stream, seen, order = self._stream(POSITION), np.empty(0, np.int64), np.empty(0, np.int64)
        while len(order) < k:
            seen = np.concatenate((seen, self._positions(stream, max(16, k))))
            _, first = np.unique(seen, return_index=True)
            order = seen[np.sort(first)]
        return np.sort(order[:k])

    def _stream(self, use: int) -> np.random.PCG64:
        return np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=(self._summand, use)))

    def _count(self, limit: float) -> int:
        """How many arrivals there are before time `limit`."""
        stream, now, count = self._stream(GAP), 0.0, 0
        mean = self.n * limit
        size = int(min(_CHUNK, mean + 5 * math.sqrt(mean) + 16))
        while True:
            gaps = -np.log(((stream.random_raw(size) >> np.uint64(12)) + 0.5) * 2.0**-52) / self.n
            gaps[0] += now  # the sum goes on from left to right, wherever it was cut
            times = np.cumsum(gaps)
            before = int(np.searchsorted(times, limit, side="left"))
            count += before
            if before < size:
                return count
            now = float(times[-1])

    def _parts(self, stream: np.random.PCG64, size: int) -> Iterator[np.ndarray]:
        """The next `size` positions of a stream, in parts."""
        while size:
            part = self._positions(stream, min(size, _CHUNK))
            yield part
            size -= len(part)

    def _positions(self, stream: np.random.PCG64, size: int) -> np.ndarray:
        """The next positions of a stream, about `size` and never more; what is drawn and too large is left out."""
        if self.n == 1:
            return np.zeros(size, np.int64)
        drawn = stream.random_raw(size) >> np.uint64(64 - (self.n - 1).bit_length())
        return drawn[drawn < self.n].astype(np.int64)


def check_rate(name: str, rate: float) -> None:
    """Raises ValueError unless `rate` is a number in [0, 1]."""
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not 0 <= rate <= 1:
        raise ValueError(f"{name} is {rate!r}; it must be a number from 0 to 1")
