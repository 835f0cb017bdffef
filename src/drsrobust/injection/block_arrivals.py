"""Arrivals in blocks, "counts first": version 2 of the error clock. Integers alone, so places are equal on every machine.

The n places are cut into blocks of B = 2**s places, s = bit_length(n - 1), from 1 to 20. Block b has a Poisson number of
arrivals K_b of mean B L, L = -log1p(-rate); each has a uniform place in the block, and places from n on count as none. So a
place is hit with probability `rate`, independently (to 2**-64 a block). K_b does not fall as the rate rises, and arrival i of a
block is the same at all rates: the places of a lower rate are among those of a higher one. A block needs no other block.

Raw words are those of NumPy's Philox4x64-10 with key (seed, summand << 32 | stream), counted from its first output of
counter 0:

- stream 0: word b decides K_b = low + the number of thresholds of the rate (`thresholds`) that are not larger.
- stream 1 + q: words w_q b to w_q b + w_q - 1 hold the arrivals s_q to s_q + 3 w_q - 1 of block b, where s_0 = 0,
  s_(q+1) = s_q + 3 w_q and w_q = max(4, s_q // 96 * 4). Each word r holds three places of 20 bits, of which the s highest
  count: arrival s_q + p w_q + j has bits 44 - 20 p to 63 - 20 p of word w_q b + j.
- stream 2**31 + q: values; arrival s_q + j of block b, that owns m words, has words (3 w_q b + j) m to
  (3 w_q b + j) m + m - 1."""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np

LARGEST = 20  # bits of a place in its block, at most
PARTS = 3  # places in a word
_WORDS = 4  # of a block in the first streams: one step of Philox
_VALUES = 1 << 31  # streams from here on are values
_FRACTION = 160  # bits of fixed-point numbers
_TINY = 1 << 40  # of a weight in fixed point: 2**-120 of the largest one
_MARKED = 0.12  # rate above which marking every place takes less time than sorting the arrivals
_SPARSE = 12  # arrivals in a block, on average: up to here those that there are are picked, above a block's are sorted in a row
_GROUP = 1 << 16  # arrivals that are sorted at once: they fit into a core's cache
_SKIP = 1000  # raw words that are drawn in the time that another start takes
_NONE = np.iinfo(np.int32).max  # sorts after all places of a block

Numbered = tuple[np.ndarray, np.ndarray]  # places, and the number of each one's first arrival: block << 32 | i


@lru_cache(maxsize=64)
def thresholds(rate: float, bits: int) -> tuple[int, np.ndarray]:
    """The smallest number of arrivals in a block of 2**bits places, and the thresholds uint64 [m], ascending, of larger ones:
    floor(2**64 P(K <= low + j)) of the Poisson distribution, by integers of 160 bits after the point, each product and quotient
    rounded down.

    Args:
        rate: over 0 and under 1.
        bits: of a place.
    """
    mean = _log_of_rest(Fraction(rate)) << bits
    mode = mean >> _FRACTION
    weights = [1 << _FRACTION]  # relative to that of the mode
    count = mode
    while weights[-1] > _TINY:
        count += 1
        weights.append((weights[-1] * mean >> _FRACTION) // count)
    below, count = [1 << _FRACTION], mode
    while count > 0 and below[-1] > _TINY:
        below.append(((below[-1] * count) << _FRACTION) // mean)
        count -= 1
    weights = below[:0:-1] + weights
    total, up_to, ends = sum(weights), 0, []
    for weight in weights[:-1]:
        up_to += weight
        ends.append(min((up_to << 64) // total, (1 << 64) - 1))
    return count, np.array(ends, np.uint64)


def _log_of_rest(rate: Fraction) -> int:
    """-log(1 - rate) in fixed point, of the series of log(1 - x) after 1 - rate was doubled to over 1/2."""
    doublings, rest = 0, 1 - rate
    while rest <= Fraction(1, 2):
        rest, doublings = rest * 2, doublings + 1
    one = 1 << _FRACTION
    x = int(one * (1 - rest))
    return _series(x, lambda term: (term * x) >> _FRACTION) + doublings * _series(one >> 1, lambda term: term >> 1)


def _series(term: int, following) -> int:
    """The sum of term_k / k, from k = 1 until a term is 0."""
    total, k = 0, 1
    while term:
        total += term // k
        term, k = following(term), k + 1
    return total


def streams(most: float) -> Iterator[tuple[int, int, int]]:
    """Stream (without its offset), first arrival and words a block of the streams that hold arrivals below `most`."""
    start = stream = 0
    while start < most:
        words = max(_WORDS, start // (8 * PARTS * _WORDS) * _WORDS)
        yield stream, start, words
        start, stream = start + PARTS * words, stream + 1


class BlockArrivals:
    """Arrivals at `n` places; arguments as of `ErrorClock`.

    Attributes:
        bits: of a place in its block.
        size: places of a block.
        blocks: how many there are.
    """

    def __init__(self, n: int, seed: int, summand: int) -> None:
        self.n, self._seed, self._summand = n, seed, summand
        self.bits = min(max((n - 1).bit_length(), 1), LARGEST)
        self.size = 1 << self.bits
        self.blocks = -(-n >> self.bits)
        self._shifts = (64 - self.bits - LARGEST * np.arange(PARTS)).astype(np.uint64)[:, None]  # of a word's places
        self._philox = np.random.Philox(0)
        self._state = self._philox.state  # set for each draw: a new generator takes ten times as long

    def until_in_parts(self, rate: float, first: int, end: int) -> Iterator[np.ndarray]:
        """Places that are hit at a rate over 0 and under 1, of blocks `first` to `end` - 1: int64, ascending, distinct, in
        parts."""
        mean = -math.log1p(-rate) * self.size  # decides how, not what
        group = max(1, int(_GROUP / (mean + _WORDS)))  # blocks
        # Freed memory would come back as page faults, which take half of the time of many arrivals. glibc keeps blocks as large
        # as the largest one that was ever freed, up to 32 MiB; this block is never touched, so it costs a microsecond.
        np.empty(31 << 20, np.uint8)
        places_of = self._marked if rate > _MARKED else self._sorted if mean > _SPARSE else self._picked
        for start in range(first, end, group):
            stop = min(start + group, end)
            places = places_of(start, stop, self._counts(rate, start, stop))
            places += start << self.bits
            yield places if stop < self.blocks else places[: np.searchsorted(places, self.n)]

    def _picked(self, first: int, end: int, counts: np.ndarray) -> np.ndarray:
        """Places of few arrivals, counted from the first block's start: int64, ascending, distinct."""
        block = np.repeat(np.arange(end - first), counts)
        arrival = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = block << self.bits
        for stream, start, words in streams(int(counts.max())):
            raw = self._raw(1 + stream, words * first, words * (end - first))
            inside = (arrival >= start) & (arrival < start + PARTS * words)
            part, word = np.divmod(arrival[inside] - start, words)
            places[inside] += self._place(raw[block[inside] * words + word], part)
        places.sort()
        return _distinct(places)

    def _sorted(self, first: int, end: int, counts: np.ndarray) -> np.ndarray:
        """As `_picked`, of more arrivals: sorting each block's takes less time than sorting all."""
        matrix = self._matrix(first, end, counts)
        matrix.sort(axis=1)
        keep = np.empty(matrix.shape, bool)
        np.not_equal(matrix[:, 1:], matrix[:, :-1], out=keep[:, 1:])
        keep[:, 0] = True
        fewest = int(counts.min())
        keep[:, fewest:] &= matrix[:, fewest:] != _NONE
        starts = np.repeat(np.arange(end - first, dtype=np.int64) << self.bits, keep.sum(axis=1))
        starts += matrix[keep]
        return starts

    def _marked(self, first: int, end: int, counts: np.ndarray) -> np.ndarray:
        """As `_picked`, of so many arrivals that marking every place takes less time than sorting: of one block, which has more
        of them than are sorted at once."""
        hit = np.zeros(self.size, bool)
        hit[self._matrix(first, end, counts)[0, : counts[0]]] = True
        return np.flatnonzero(hit)

    def _matrix(self, first: int, end: int, counts: np.ndarray) -> np.ndarray:
        """The places of arrivals in their blocks, int32 [blocks, arrivals]; `_NONE` after the last one of a block."""
        ranges = list(streams(max(1, int(counts.max()))))
        _, start, words = ranges[-1]
        matrix = np.empty((end - first, start + PARTS * words), np.int32)
        for stream, start, words in ranges:
            raw = self._raw(1 + stream, words * first, words * (end - first)).reshape(end - first, 1, words)
            places = matrix[:, start : start + PARTS * words].reshape(end - first, PARTS, words)  # a view
            np.bitwise_and(raw >> self._shifts, np.uint64(self.size - 1), out=places, casting="unsafe")
        fewest = int(counts.min())
        matrix[:, fewest:][np.arange(fewest, matrix.shape[1]) >= counts[:, None]] = _NONE
        return matrix

    def _place(self, raw: np.ndarray, part: np.ndarray | int) -> np.ndarray:
        """Places of parts of raw words: int64."""
        return (raw >> self._shifts[part, 0]).view(np.int64) & (self.size - 1)

    def arrivals(self, rate: float) -> Numbered:
        """Places that are hit at a rate over 0 and up to 1, and for each the number of its first arrival (int64). Rate 1 takes
        about n log n draws."""
        if rate == 1:
            return self._everywhere()
        counts = self._counts(rate, 0, self.blocks)
        matrix = self._matrix(0, self.blocks, counts)
        block = np.arange(self.blocks)[:, None]
        place = (block << self.bits) + matrix
        chosen = (matrix != _NONE) & (place < self.n)
        number = (block << 32) + np.arange(matrix.shape[1])
        distinct, index = np.unique(place[chosen], return_index=True)
        return distinct, number[chosen][index]

    def _everywhere(self) -> Numbered:
        """All places, with the number of each one's first arrival."""
        number = np.full((self.blocks, self.size), -1, np.int64)
        for block, row in enumerate(number):
            inside = min(self.n - (block << self.bits), self.size)
            for stream, start, words in streams(math.inf):
                raw = self._raw(1 + stream, words * block, words)
                places = np.concatenate([self._place(raw, part) for part in range(PARTS)])
                new = np.flatnonzero(row[places] < 0)
                reached, index = np.unique(places[new], return_index=True)
                row[reached] = (block << 32) + start + new[index]
                if (row[:inside] >= 0).all():
                    break
        return np.arange(self.n), number.ravel()[: self.n]

    def values(self, numbers: np.ndarray, words: int, first: int) -> np.ndarray:
        """The first `first` of the `words` raw words that each arrival with a number in [n] owns: uint64 [n, first]."""
        raw = np.empty((len(numbers), first), np.uint64)
        block, arrival = numbers >> 32, numbers & 0xFFFFFFFF
        for stream, start, width in streams(int(arrival.max(initial=-1)) + 1):
            width *= PARTS
            chosen = np.flatnonzero((arrival >= start) & (arrival < start + width))
            if not len(chosen):
                continue
            position = width * block[chosen] + arrival[chosen] - start
            begin, end = int(position.min()), int(position.max()) + 1
            if (end - begin) * words <= _SKIP * len(chosen):
                dense = self._raw(_VALUES + stream, begin * words, (end - begin) * words)
                raw[chosen] = dense.reshape(end - begin, words)[position - begin, :first]
                continue
            for index, place in zip(chosen, position.tolist(), strict=True):
                raw[index] = self._raw(_VALUES + stream, place * words, first)
        return raw

    def _counts(self, rate: float, first: int, end: int) -> np.ndarray:
        """K_b of blocks `first` to `end` - 1: int64."""
        low, ends = thresholds(rate, self.bits)
        raw = self._raw(0, first, end - first)
        return low + np.searchsorted(ends, raw, side="right")

    def _raw(self, stream: int, first: int, count: int) -> np.ndarray:
        """Raw words `first` to `first` + `count` - 1 of a stream: uint64."""
        before, skip = divmod(first, 4)
        # NumPy adds 1 to the counter before its first output, so counter c - 1 (of 256 bits) gives the words of counter c.
        counter = before - 1
        state = self._state["state"]
        state["counter"][:] = [counter >> shift & 0xFFFFFFFFFFFFFFFF for shift in range(0, 256, 64)]
        state["key"][:] = self._seed, self._summand << 32 | stream
        self._philox.state = self._state
        return self._philox.random_raw(count + skip)[skip:]


def _distinct(places: np.ndarray) -> np.ndarray:
    """Ascending places without repeats."""
    repeated = places[1:] == places[:-1]
    return places[np.append(True, ~repeated)] if repeated.any() else places
