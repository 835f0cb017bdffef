"""The first places to be reached, one after the other, and the raw words of further uses.

Arrivals are at n uniform places, of which only the first arrival at a place counts. Raw words are the 64-bit outputs r of
`PCG64(SeedSequence(seed, spawn_key=(summand, use)))`:

- positions (use 1): r >> (64 - bit_length(N - 1)), drawn again while >= N (N = 1: always 0);
- values, and errors while a model runs and in check bits (uses 2 to 4). Use 0 was that of version 1 of the clock.

Positions are integers and so equal on every machine."""

from collections.abc import Iterator

import numpy as np

POSITION, VALUE, HOOK, SCREEN = range(1, 5)  # uses of raw words
_CHUNK = 1 << 15  # raw words drawn at once: they fit into a core's cache
PART = 1 << 20  # places per part


class FirstArrivals:
    """Arrivals at `n` places; arguments as of `ErrorClock`."""

    def __init__(self, n: int, seed: int, summand: int) -> None:
        self.n = n
        self._seed, self._summand = seed, summand

    def stream(self, use: int) -> np.random.PCG64:
        """Raw words of a use."""
        return np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=(self._summand, use)))

    def in_parts(self, k: int) -> Iterator[np.ndarray]:
        """The first k distinct places, fewer than n: int64, ascending, in parts."""
        if k > self.n // 8:
            yield from marked(self._reach(k))
        else:
            yield self._earliest(k)

    def _reach(self, k: int) -> np.ndarray:
        """Marks (bool [n]) the first k distinct places."""
        stream, hit, n_hit = self.stream(POSITION), np.zeros(self.n, bool), 0
        while n_hit < k:
            part = self._next_positions(stream, _CHUNK)
            new = np.flatnonzero(~hit[part])
            places, first = np.unique(part[new], return_index=True)
            if n_hit + len(places) > k:  # keep the earliest ones
                early = np.sort(first)[k - n_hit - 1]
                places = places[first <= early]
            hit[places] = True
            n_hit += len(places)
        return hit

    def _earliest(self, k: int) -> np.ndarray:
        """The first k distinct places, ascending."""
        stream = self.stream(POSITION)
        positions = self._next_positions(stream, max(16, k))
        place = np.sort(positions[:k])
        if len(place) == k and (place[1:] != place[:-1]).all():  # nearly always, of a few
            return place
        while len((distinct := np.unique(positions, return_index=True))[0]) < k:
            positions = np.concatenate((positions, self._next_positions(stream, max(16, k))))
        place, order = distinct
        return place[np.sort(np.argpartition(order, k - 1)[:k])]

    def _next_positions(self, stream: np.random.PCG64, size: int) -> np.ndarray:
        """The next positions of a stream: at most `size`, because draws beyond the last place are discarded."""
        if self.n == 1:
            return np.zeros(size, np.int64)
        positions = stream.random_raw(size)
        positions >>= np.uint64(64 - (self.n - 1).bit_length())
        found = positions.astype(np.int64)
        return found[found < self.n]


def marked(hit: np.ndarray) -> Iterator[np.ndarray]:
    """The true places of a boolean array [n], in parts."""
    for start in range(0, len(hit), PART):
        yield np.flatnonzero(hit[start : start + PART]) + start
