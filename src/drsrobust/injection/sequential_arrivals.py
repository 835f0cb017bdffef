"""Arrivals one after the other: version 1 of the error clock, and its first arrivals in both versions.

All arrivals are a Poisson stream of rate N over N uniform places, of which only the first arrival at a place counts. Raw words
are the 64-bit outputs r of `PCG64(SeedSequence(seed, spawn_key=(summand, use)))`:

- gaps (use 0): -log(((r >> 12) + 0.5) * 2**-52) / N, summed from left to right in float64;
- positions (use 1): r >> (64 - bit_length(N - 1)), drawn again while >= N (N = 1: always 0);
- values (use 2): arrival i (from 0; repeated ones count) owns raw words i * m to i * m + m - 1, whatever the rate.

Positions are integers and so equal on every machine. Whether an arrival within one rounding of the time limit counts depends on
the last bit of a logarithm, in which C libraries may differ."""

import math
from collections.abc import Iterator

import numpy as np
import torch

GAP, POSITION, VALUE, HOOK, SCREEN = range(5)  # uses of raw words
_CHUNK = 1 << 15  # raw words drawn at once: they fit into a core's cache
_MANY = 10_000  # arrivals
PART = 1 << 20  # places per part


class SequentialArrivals:
    """Arrivals at `n` places; arguments as of `ErrorClock`. They are one block."""

    blocks = 1

    def __init__(self, n: int, seed: int, summand: int) -> None:
        self.n, self.size = n, n
        self._seed, self._summand = seed, summand

    def stream(self, use: int) -> np.random.PCG64:
        """Raw words of a use."""
        return np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=(self._summand, use)))

    def until_in_parts(self, rate: float, first: int, end: int) -> Iterator[np.ndarray]:
        """Places that are hit at a rate over 0 and under 1, of blocks `first` to `end` - 1: int64, ascending, distinct, in
        parts."""
        if first == end:
            return
        arrivals = self._count(rate)
        if arrivals > self.n // 8:  # marking every place takes less time than sorting the arrivals
            hit = np.zeros(self.n, bool)
            for part in self._positions(arrivals, np.int64):
                hit[part] = True
            yield from marked(hit)
            return
        yield self._sorted(arrivals)

    def _sorted(self, arrivals: int) -> np.ndarray:
        if arrivals > _MANY:
            # Freed memory would come back as page faults, which take half of the time. glibc keeps blocks as large as the
            # largest one that was ever freed, up to 32 MiB; this block is never touched, so it costs nothing.
            np.empty(31 << 20, np.uint8)
        small = np.int32 if self.n <= 2**31 else np.int64  # half the bytes sort in half the time
        positions = np.empty(arrivals, small)
        filled = 0
        for part in self._positions(arrivals, small):
            positions[filled : filled + len(part)] = part
            filled += len(part)
        if arrivals < 2048:
            return np.unique(positions).astype(np.int64)
        # PyTorch's radix sort is three times faster than NumPy's sort.
        return torch.unique(torch.from_numpy(positions)).numpy().astype(np.int64)

    def first_in_parts(self, k: int) -> Iterator[np.ndarray]:
        """As `first`, in parts."""
        if k > self.n // 8:
            yield from marked(self._reach(k, None))
        else:
            yield self._first(k)[0]

    def arrivals(self, rate: float) -> tuple[np.ndarray, np.ndarray]:
        """The places of `until`, and for each the number of its first arrival (int64 [n]). Rate 1 takes about n log n draws."""
        if rate == 1:
            return self._first(self.n)
        positions = np.concatenate([np.empty(0, np.int64), *self._positions(self._count(rate), np.int64)])
        return np.unique(positions, return_index=True)

    def values(self, order: np.ndarray, words: int, first: int) -> np.ndarray:
        """The first `first` of the `words` raw words that each arrival with a number in [n] owns: uint64 [n, first]."""
        stream = self.stream(VALUE)
        if first == words and len(order) and int(order.max()) < 4 * len(order):  # nearly all arrivals: draw all
            return stream.random_raw(words * (int(order.max()) + 1)).reshape(-1, words)[order]
        raw, position = np.empty((len(order), first), np.uint64), 0
        for index in np.argsort(order):
            stream.advance(int(order[index]) * words - position)
            raw[index] = stream.random_raw(first)
            position = int(order[index]) * words + first
        return raw

    def _reach(self, k: int, order: np.ndarray | None) -> np.ndarray:
        """Marks (bool [n]) the first k distinct places; writes the number of each one's first arrival to `order` [n]."""
        stream, hit, n_hit, n_arrivals = self.stream(POSITION), np.zeros(self.n, bool), 0, 0
        while n_hit < k:
            part = self._next_positions(stream, _CHUNK)
            new = np.flatnonzero(~hit[part])
            places, first = np.unique(part[new], return_index=True)
            if n_hit + len(places) > k:  # keep the earliest ones
                early = np.sort(first)[k - n_hit - 1]
                places, first = places[first <= early], first[first <= early]
            hit[places] = True
            if order is not None:
                order[places] = n_arrivals + new[first]
            n_hit += len(places)
            n_arrivals += len(part)
        return hit

    def _first(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The first k distinct places, ascending, and the number of each one's first arrival."""
        if k > self.n // 8:
            order = np.empty(self.n, np.int64)
            place = np.flatnonzero(self._reach(k, order))
            return place, order[place]
        stream, positions = self.stream(POSITION), np.empty(0, np.int64)
        place, order = positions, positions
        while len(place) < k:
            positions = np.concatenate((positions, self._next_positions(stream, max(16, k))))
            place, order = np.unique(positions, return_index=True)
        early = np.sort(np.argpartition(order, k - 1)[:k]) if k else order[:0]
        return place[early], order[early]

    def _count(self, rate: float) -> int:
        """How many arrivals there are before the time limit of a rate below 1."""
        limit = -math.log1p(-rate)
        stream, now, count = self.stream(GAP), 0.0, 0
        mean = self.n * limit
        size = int(min(_CHUNK, mean + 5 * math.sqrt(mean) + 16))
        while True:
            raw = stream.random_raw(size)
            raw >>= np.uint64(12)
            times = raw + 0.5
            times *= 2.0**-52
            np.log(times, out=times)
            times /= -self.n
            times[0] += now  # one sum from left to right, however the stream is cut
            np.cumsum(times, out=times)
            before = int(np.searchsorted(times, limit, side="left"))
            count += before
            if before < size:
                return count
            now = float(times[-1])

    def _positions(self, size: int, dtype: type) -> Iterator[np.ndarray]:
        """The first `size` positions, in parts."""
        stream = self.stream(POSITION)
        while size:
            part = self._next_positions(stream, min(size, _CHUNK), dtype)
            yield part
            size -= len(part)

    def _next_positions(self, stream: np.random.PCG64, size: int, dtype: type = np.int64) -> np.ndarray:
        """The next positions of a stream: at most `size`, because draws beyond the last place are discarded."""
        if self.n == 1:
            return np.zeros(size, dtype)
        positions = stream.random_raw(size)
        positions >>= np.uint64(64 - (self.n - 1).bit_length())
        small = positions.astype(dtype)  # the shift makes every number fit
        return small[small < self.n]


def marked(hit: np.ndarray) -> Iterator[np.ndarray]:
    """The true places of a boolean array [n], in parts."""
    for start in range(0, len(hit), PART):
        yield np.flatnonzero(hit[start : start + PART]) + start
