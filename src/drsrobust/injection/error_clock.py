"""The error clock: one sampler, exact at every rate, whose cost is the number of errors.

Each of N bits gets an arrival time T ~ Exp(1); at rate p a bit is wrong when T < L = -log1p(-p). So bits are wrong
independently of each other with probability exactly p; for one seed the errors at a lower rate are among those at a
higher one; and the first k bits to arrive are a uniform k-subset, nested in k.

All arrivals together are a Poisson stream of rate N, each hitting a uniform bit, of which a bit's first alone counts. The
same holds of whatever else errors begin at: words, rows.
Raw words are 64-bit outputs r of `PCG64(SeedSequence(seed, spawn_key=(summand, use)))`:

- gaps (use 0): -log(((r >> 12) + 0.5) * 2**-52) / N, summed from left to right in float64;
- positions (use 1): r >> (64 - bit_length(N - 1)), drawn again while >= N (N = 1: always 0);
- values (use 2): what else the i-th arrival (from 0; repeated ones count) brings, m words of it: words i * m to i * m + m - 1.
  So an arrival brings the same at every rate.

Positions are integers throughout and so equal on every machine. Whether an arrival within one rounding of L counts rests
on the last bit of a logarithm, which C libraries may differ in."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

GAP, POSITION, VALUE, HOOK, SCREEN = range(5)  # of what raw words are used for
_CHUNK = 1 << 15  # raw words drawn at once: what fits into a core's cache
_MANY = 10_000  # arrivals
_PART = 1 << 20  # places given at once where there are many


class Arrivals(NamedTuple):
    """Places that were reached: `place` int64 [n], ascending and distinct, and for each the number of its first arrival,
    `order` int64 [n]."""

    place: np.ndarray
    order: np.ndarray


class ErrorClock:
    """Arrivals at `n` places: bits, words or rows.

    Args:
        n: how many places there are, at least 1.
        seed: 0 .. 2**64 - 1.
        summand: 0 .. 2**32 - 1; tells apart several clocks of one seed.

    Example:
        >>> clock = ErrorClock(1000, seed=7)
        >>> clock.until(0.004), clock.first(3)
        (array([111, 332, 893]), array([111, 332, 893]))
    """

    def __init__(self, n: int, *, seed: int, summand: int = 0) -> None:
        if n < 1:
            raise ValueError(f"an error clock needs at least 1 place, got {n}")
        check_seed(seed)
        self.n, self._seed, self._summand = n, int(seed), summand

    def until(self, rate: float) -> np.ndarray:
        """Places that are wrong at a rate in [0, 1]: int64, ascending, distinct."""
        return np.concatenate([np.empty(0, np.int64), *self.until_in_parts(rate)])

    def until_in_parts(self, rate: float) -> Iterator[np.ndarray]:
        """As `until`, in parts where there are many, since the places of all bits would take more memory than the bits."""
        rate = check_rate("rate", rate)
        if rate == 1:
            yield from (np.arange(start, min(start + _PART, self.n)) for start in range(0, self.n, _PART))
            return
        arrivals = self._count(-math.log1p(-rate)) if rate > 0 else 0
        if arrivals > self.n // 8:  # so many that marking every place takes less than sorting the arrivals
            hit = np.zeros(self.n, bool)
            for part in self._parts(arrivals, np.int64):
                hit[part] = True
            yield from _marked(hit)
            return
        yield self._sorted(arrivals)

    def _sorted(self, arrivals: int) -> np.ndarray:
        """The places of the first arrivals, ascending and distinct."""
        if arrivals > _MANY:
            # Freed memory soon comes back as page faults, which would take half of the time. glibc keeps blocks as large as
            # the largest one that was ever freed, up to 32 MiB; this one is never touched, so it costs nothing.
            np.empty(31 << 20, np.uint8)
        small = np.int32 if self.n <= 2**31 else np.int64  # half the bytes sort in half the time
        drawn = np.empty(arrivals, small)
        filled = 0
        for part in self._parts(arrivals, small):
            drawn[filled : filled + len(part)] = part
            filled += len(part)
        if arrivals < 2048:
            return np.unique(drawn).astype(np.int64)
        # PyTorch's is a radix sort, three times faster than NumPy's.
        return torch.unique(torch.from_numpy(drawn)).numpy().astype(np.int64)

    def first(self, k: int) -> np.ndarray:
        """The first k distinct places to be reached, 0 <= k <= n: int64, ascending."""
        return np.concatenate([np.empty(0, np.int64), *self.first_in_parts(k)])

    def first_in_parts(self, k: int) -> Iterator[np.ndarray]:
        """As `first`, in parts where there are many."""
        if not 0 <= k <= self.n:
            raise ValueError(f"{k} errors were asked for among {self.n} bits")
        if k == self.n:
            yield from self.until_in_parts(1.0)
        elif k > self.n // 8:
            yield from _marked(self._reach(k, None))
        else:
            yield self._first(k).place

    def arrivals(self, rate: float) -> Arrivals:
        """As `until`, with the number of each place's first arrival. At rate 1 all n places must be drawn, which takes about
        n log n draws."""
        check_rate("rate", rate)
        if rate == 1:
            return self._first(self.n)
        count = self._count(-math.log1p(-rate)) if rate > 0 else 0
        drawn = np.concatenate([np.empty(0, np.int64), *self._parts(count, np.int64)])
        return Arrivals(*np.unique(drawn, return_index=True))

    def values(self, order: np.ndarray, words: int, *, first: int | None = None) -> np.ndarray:
        """What arrivals with numbers [n] bring, each `words` raw words: the first `first` of them (None: all), uint64
        [n, first]."""
        first = words if first is None else first
        stream = self._stream(VALUE)
        if first == words and len(order) and int(order.max()) < 4 * len(order):  # nearly all of them: draw all
            return stream.random_raw(words * (int(order.max()) + 1)).reshape(-1, words)[order]
        found, at = np.empty((len(order), first), np.uint64), 0
        for place in np.argsort(order):
            stream.advance(int(order[place]) * words - at)
            found[place] = stream.random_raw(first)
            at = int(order[place]) * words + first
        return found

    def _reach(self, k: int, order: np.ndarray | None) -> np.ndarray:
        """Marks (bool [n]) the first k distinct places; writes the number of each one's first arrival to `order` [n]."""
        stream, hit, found, drawn = self._stream(POSITION), np.zeros(self.n, bool), 0, 0
        while found < k:
            part = self._positions(stream, _CHUNK)
            new = np.flatnonzero(~hit[part])
            places, first = np.unique(part[new], return_index=True)
            if found + len(places) > k:  # the earliest of them
                early = np.sort(first)[k - found - 1]
                places, first = places[first <= early], first[first <= early]
            hit[places] = True
            if order is not None:
                order[places] = drawn + new[first]
            found += len(places)
            drawn += len(part)
        return hit

    def _first(self, k: int) -> Arrivals:
        if k > self.n // 8:
            order = np.empty(self.n, np.int64)
            place = np.flatnonzero(self._reach(k, order))
            return Arrivals(place, order[place])
        stream, seen = self._stream(POSITION), np.empty(0, np.int64)
        place, order = seen, seen
        while len(place) < k:
            seen = np.concatenate((seen, self._positions(stream, max(16, k))))
            place, order = np.unique(seen, return_index=True)
        early = np.sort(np.argpartition(order, k - 1)[:k]) if k else order[:0]
        return Arrivals(place[early], order[early])

    def _stream(self, use: int) -> np.random.PCG64:
        return np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=(self._summand, use)))

    def _count(self, limit: float) -> int:
        """How many arrivals there are before time `limit`."""
        stream, now, count = self._stream(GAP), 0.0, 0
        mean = self.n * limit
        size = int(min(_CHUNK, mean + 5 * math.sqrt(mean) + 16))
        while True:
            raw = stream.random_raw(size)
            raw >>= np.uint64(12)
            times = raw + 0.5
            times *= 2.0**-52
            np.log(times, out=times)
            times /= -self.n
            times[0] += now  # the sum goes on from left to right, wherever it was cut
            np.cumsum(times, out=times)
            before = int(np.searchsorted(times, limit, side="left"))
            count += before
            if before < size:
                return count
            now = float(times[-1])

    def _parts(self, size: int, dtype: type) -> Iterator[np.ndarray]:
        """The first `size` positions, in parts."""
        stream = self._stream(POSITION)
        while size:
            part = self._positions(stream, min(size, _CHUNK), dtype)
            yield part
            size -= len(part)

    def _positions(self, stream: np.random.PCG64, size: int, dtype: type = np.int64) -> np.ndarray:
        """The next positions of a stream, about `size` and never more; what is drawn and too large is left out."""
        if self.n == 1:
            return np.zeros(size, dtype)
        drawn = stream.random_raw(size)
        drawn >>= np.uint64(64 - (self.n - 1).bit_length())
        small = drawn.astype(dtype)  # a number of 2**31 or more does not get here as int32: the shift sees to it
        return small[small < self.n]


def _marked(hit: np.ndarray) -> Iterator[np.ndarray]:
    """Where a boolean array [n] is true, in parts."""
    for start in range(0, len(hit), _PART):
        yield np.flatnonzero(hit[start : start + _PART]) + start


def check_rate(name: str, rate: float) -> float:
    """The rate as a Python float.

    Raises:
        ValueError: it is no number in [0, 1].
    """
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not 0 <= rate <= 1:
        raise ValueError(f"{name} is {rate!r}; it must be a number from 0 to 1")
    return float(rate)


def check_seed(seed: int) -> None:
    """Raises ValueError unless `seed` is an integer from 0 to 2**64 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed!r}; it must be an integer from 0 to 2**64 - 1")


def uniform(raw: np.ndarray) -> np.ndarray:
    """Raw words uint64 as numbers from 0 to below 1, float64, of their 53 highest bits."""
    return (raw >> np.uint64(11)) * 2.0**-53


def scaled(raw: np.ndarray, n: np.ndarray | int) -> np.ndarray:
    """floor(raw * n / 2**64) of raw words uint64 and 1 <= n < 2**64: an integer below n, uniform but for a bias under
    n / 2**64. Returns uint64."""
    n = np.asarray(n, np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    high = (raw >> half) * (n & low)
    middle = (raw & low) * (n >> half)
    carry = ((raw & low) * (n & low)) >> half
    carry += (high & low) + (middle & low)
    return (raw >> half) * (n >> half) + (high >> half) + (middle >> half) + (carry >> half)
