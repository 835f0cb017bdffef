"""Errors with an extent in memory: bursts of neighbouring bits, whole rows of storage, strided words."""

from dataclasses import dataclass

import numpy as np

from drsrobust._storage import canonical_json
from drsrobust.injection.base import NONE, Before, ErrorModel, from_bits, from_words, reach_words, whole
from drsrobust.injection.clock import check_rate, uniform
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.space import AddressSpace


@dataclass(frozen=True)
class Burst(ErrorModel):
    """From every eligible bit a burst starts with probability `rate`, independently, and flips that bit and those behind it,
    `length` in all: eligible neighbours in memory order, across words. A burst ends where its tensor (or its run of
    neighbouring targeted rows) ends. Bits hit by several bursts flip once.

    A bit with j eligible bits before it flips with probability 1 - (1 - rate)^min(j + 1, length). Source: adjacent-bit bursts
    as in arXiv:2405.01741.

    Args:
        rate: per start bit.
        length: bits of a burst.
    """

    RATE = "rate"

    rate: float
    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_rate("rate", self.rate))
        object.__setattr__(self, "length", whole("length", self.length, 1, "a number of bits"))

    def expected_share(self, space: AddressSpace) -> float:
        """The mean of that probability over all bits."""
        runs = np.concatenate([region.runs() for region in space.regions])
        length = min(self.length, int(runs.max()))
        hit = -np.expm1(np.arange(1, length + 1) * np.log1p(-self.rate)) if self.rate < 1 else np.ones(length)
        ramp = np.append(0.0, np.cumsum(hit))
        flips = ramp[np.minimum(runs, length)] + np.maximum(runs - length, 0) * hit[-1]
        return float(flips.sum() / space.bits)

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        starts = self.clock(space.bits, seed, before).until(self.rate)
        about = {"requested_rate": self.expected_share(space), "places": space.bits, "events": len(starts)}
        return from_bits(self, space, [space.extend(starts, self.length)], seed, **about)


@dataclass(frozen=True)
class RowError(ErrorModel):
    """A row of storage fails with probability `rate`, independently; then each of its eligible bits flips with probability
    `density`. Each tensor begins with a row of its own; its last row may be short.

    A bit flips with probability rate * density. An arrival of the error clock brings 8 * row_bytes raw words r, one for each
    bit of the row from the lowest of its first word, eligible or not (also behind a short row's end); the bit flips when
    (r >> 11) * 2**-53 < density. Source: row failures of DRAM (47 % of DRAM faults in the field hit single
    bits, 22.5 % one row or column: Sridharan and Liberty, SC 2012). Where a model's tensors really lie in DRAM is not
    modelled: rows are counted from each tensor's first word.

    Args:
        rate: per row.
        row_bytes: bytes of a row, a multiple of 8.
        density: 0 to 1. For one seed the flips of a lower density are among those of a higher one of the same `row_bytes`.
    """

    RATE = "rate"

    rate: float
    row_bytes: int = 8192
    density: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_rate("rate", self.rate))
        object.__setattr__(self, "density", check_rate("density", self.density))
        object.__setattr__(self, "row_bytes", whole("row_bytes", self.row_bytes, 8, "a number of bytes"))
        if self.row_bytes % 8:
            raise ValueError(f"row_bytes is {self.row_bytes}; it must be a multiple of 8")

    def canonical(self) -> str:
        """Without rate and density."""
        return canonical_json({"error_model": "RowError", "row_bytes": self.row_bytes})

    def expected_share(self, space: AddressSpace) -> float:
        """rate * density."""
        return self.rate * self.density

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        clock = self.clock(space.rows(self.row_bytes), seed, before)
        arrivals = clock.arrivals(self.rate)
        tensors, rows = space.locate_rows(arrivals.place, self.row_bytes)
        bits = 8 * self.row_bytes
        parts = []
        for order, index, row in zip(arrivals.order, tensors.tolist(), rows.tolist(), strict=True):
            region = space.regions[index]
            width = region.tensor.format.width
            first = row * bits // width
            word = np.arange(first, min(first + bits // width, region.tensor.size))
            raw = clock.values(np.array([order]), bits, first=width * len(word))[0]
            flips = np.packbits(uniform(raw) < self.density, bitorder="little").view(f"<u{width // 8}")
            mask = flips.astype(np.uint64) & region.eligible(word)
            parts.append((np.full(len(word), index, np.int32), word, mask))
        empty = (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64))
        tensor, word, mask = (np.concatenate(column) for column in zip(empty, *parts, strict=True))
        about = {"requested_rate": self.rate * self.density, "places": clock.n, "events": len(rows)}
        return from_words(self, space, tensor, word, mask, seed, **about)


@dataclass(frozen=True)
class Strided(ErrorModel):
    """From every word a strided error starts with probability `rate`, independently: `count` words of its tensor, `period`
    words apart, have one bit each flipped, any of its eligible bits. Words behind the tensor's end, and words that are not
    targeted, are left out. Bits hit twice flip once. An arrival of the error clock brings `count` raw words, the j-th for the
    j-th word struck (also when that is left out): of b eligible bits, number floor(raw_j * b / 2**64) from the lowest flips.

    Source: addresses of corrupted results are periodic, aligned with warps of threads (arXiv:2605.04213).

    Args:
        rate: per start word.
        period: words from one to the next.
        count: how many words.
    """

    RATE = "rate"

    rate: float
    period: int
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_rate("rate", self.rate))
        object.__setattr__(self, "period", whole("period", self.period, 1, "a number of words"))
        object.__setattr__(self, "count", whole("count", self.count, 1, "a number of words"))

    def expected_share(self, space: AddressSpace) -> float | None:
        """The mean over eligible bits of 1 - (1 - rate / bits of the word)^(words from which an error reaches it); None where
        some rows or padding are left out, for then it is not counted."""
        flips = 0.0
        for region in space.regions:
            width, size = region.tensor.format.width, region.tensor.size
            if region.bits != size * width:
                return None
            count = min(self.count, -(-size // self.period))
            reach, period = np.arange(1, count + 1), min(self.period, size)
            words = np.minimum(reach * period, size) - np.minimum((reach - 1) * period, size)
            words[-1] += size - min(count * period, size)
            flips += float((words * width * -np.expm1(reach * np.log1p(-self.rate / width))).sum())
        return flips / space.bits

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        start = reach_words(self, space, seed, before)
        largest = max(tensor.size for tensor in space.tensors)
        count = min(self.count, -(-largest // self.period))  # those further on lie behind any tensor's end
        raw = start.clock.values(start.arrivals.order, self.count, first=count).ravel()
        steps = min(self.period, largest) * np.arange(count)
        tensor = np.repeat(start.tensor, count)
        word = (start.word[:, None] + steps).ravel()
        mask = np.zeros(len(word), np.uint64)
        for region, here in space.by_tensor(tensor):
            inside = np.flatnonzero(here)[word[here] < region.tensor.size]
            inside = inside[region.eligible(word[inside]) != 0]
            mask[inside] = region.subset(word[inside], raw[inside][:, None])
        about = {"requested_rate": self.expected_share(space), **start.about}
        return from_words(self, space, tensor, word, mask, seed, **about)
