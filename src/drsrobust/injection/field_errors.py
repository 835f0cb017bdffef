"""Errors that hit several bits of one word: multi-bit flips, random words and values, measured mixtures.

Errors with an extent in memory: bursts of neighbouring bits, whole rows of storage, strided words."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from drsrobust._hashing import canonical_json
from drsrobust.injection.address_space import INTEGERS, AddressSpace, Region, regions
from drsrobust.injection.error_clock import check_rate, scaled, uniform
from drsrobust.injection.error_map import ErrorMap
from drsrobust.injection.error_models import (
    NONE,
    Before,
    ErrorModel,
    from_bits,
    from_words,
    reach_words,
    whole,
    with_originals,
)
from drsrobust.injection.number_formats import Bits, bit_set


@dataclass(frozen=True)
class MultiBit(ErrorModel):
    """A word is hit with probability `rate`, independently; then `bits_per_word` distinct bits of it flip, every such set
    equally likely.

    A bit flips with probability rate * bits_per_word / (bits of the word). An arrival of the error clock brings bits_per_word
    raw words, by which `Region.subset` chooses. Source: multi-bit upsets; most bit-flip events of a GPU flip more than one bit
    of a word (arXiv:2605.04213).

    Args:
        rate: per word. In quantized rows of integers a word is a byte.
        bits_per_word: how many bits of a hit word flip.
    """

    RATE = "rate"

    rate: float
    bits_per_word: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_rate("rate", self.rate))
        object.__setattr__(self, "bits_per_word", whole("bits_per_word", self.bits_per_word, 1, "a number of bits"))

    def expected_share(self, space: AddressSpace) -> float:
        """rate * bits_per_word * words / bits."""
        for region in space.regions:
            if (least := region.fewest) < self.bits_per_word:
                raise ValueError(f"{self.bits_per_word} bits per word: words of {region.tensor.name} have {least}")
        return self.rate * self.bits_per_word * space.words / space.bits

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        share = self.expected_share(space)
        hit = reach_words(self, space, seed, before)
        raw = hit.clock.values(hit.arrivals.order, self.bits_per_word)
        mask = np.zeros(len(hit.word), np.uint64)
        for region, here in space.by_tensor(hit.tensor):
            mask[here] = region.subset(hit.word[here], raw[here])
        return from_words(self, space, hit.tensor, hit.word, mask, seed, requested_rate=share, **hit.about)


@dataclass(frozen=True)
class RandomWord(ErrorModel):
    """A word is hit with probability `rate`, independently; then each eligible bit of it is drawn anew, so that it flips with
    probability 1/2 (now and then none does). A bit flips with probability rate / 2. An arrival of the error clock brings one
    raw word; its bits at the eligible places are the mask.

    Args:
        rate: per word. In quantized rows of integers a word is a byte.
    """

    RATE = "rate"

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_rate("rate", self.rate))

    def expected_share(self, space: AddressSpace) -> float:
        """rate / 2."""
        return self.rate / 2

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        hit = reach_words(self, space, seed, before)
        mask = hit.clock.values(hit.arrivals.order, 1)[:, 0]
        for region, here in space.by_tensor(hit.tensor):
            mask[here] &= region.eligible(hit.word[here])
        about = {"requested_rate": self.rate / 2, **hit.about}
        return from_words(self, space, hit.tensor, hit.word, mask, seed, **about)


@dataclass(frozen=True)
class RandomValue(ErrorModel):
    """A word is hit with probability `rate`, independently, and replaced by a number drawn uniformly from `low` to `high`.

    An arrival of the error clock brings one raw word r. Floats: with s = (r >> 11) * 2**-53, low * (1 - s) + high * s in
    float64, rounded to the format as PyTorch does (to float32 first, then ties to even; `high` itself comes where rounding
    reaches it). Integers, both ends among them: ceil(low) + floor(r * n / 2**64), n = floor(high) - ceil(low) + 1.

    The map keeps the words that it replaced, and is refused where others stand.

    Args:
        rate: per word.
        low, high: in every targeted format representable (rounded); low < high.
    """

    RATE = "rate"

    rate: float
    low: float
    high: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_rate("rate", self.rate))
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not _finite(value):
                raise ValueError(f"{name} is {value!r}; it must be a finite number")
            # Whole numbers are kept as such, of whatever type they came: equal models have one canonical form.
            object.__setattr__(self, name, int(value) if value == int(value) else float(value))
        if not self.low < self.high:
            raise ValueError(f"low is {self.low!r} and high {self.high!r}; low must be the smaller one")

    def expected_share(self, space: AddressSpace) -> None:
        """None: which bits differ depends on what the words hold."""
        for region in space.regions:
            self._check(region)

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        self.expected_share(space)
        hit = reach_words(self, space, seed, before)
        raw = hit.clock.values(hit.arrivals.order, 1)[:, 0]
        mask = space.read(hit.tensor, hit.word)
        for region, here in space.by_tensor(hit.tensor):
            mask[here] ^= self._draw(region.tensor.format.dtype, raw[here])
            mask[here] &= region.eligible(hit.word[here])
        return with_originals(from_words(self, space, hit.tensor, hit.word, mask, seed, **hit.about), space)

    def _check(self, region: Region) -> None:
        form, name = region.tensor.format, region.tensor.name
        if form.period > 1 and not form.dtype.is_floating_point:
            raise ValueError(
                f"{name} holds {form.name}, whose bytes are no numbers by themselves; RandomWord draws any bits"
            )
        if form.dtype.is_floating_point:
            reach = torch.finfo(form.dtype).max
            if max(abs(self.low), abs(self.high)) > reach:
                raise ValueError(f"{name} is {form.name}, which does not reach from {self.low} to {self.high}")
            return
        reach = torch.iinfo(form.dtype)
        if not (reach.min <= self.low and self.high <= reach.max) or math.ceil(self.low) > math.floor(self.high):
            raise ValueError(
                f"{name} is {form.name} ({reach.min} to {reach.max}); it holds no numbers from {self.low} to {self.high}"
            )

    def _draw(self, dtype: torch.dtype, raw: np.ndarray) -> np.ndarray:
        """The drawn numbers as words, uint64."""
        if dtype.is_floating_point:
            share = uniform(raw)
            value = torch.from_numpy(self.low * (1 - share) + self.high * share).to(dtype)
        else:
            low, high = math.ceil(self.low), math.floor(self.high)
            offset = raw if high - low + 1 == 2**64 else scaled(raw, high - low + 1)
            value = torch.from_numpy((offset + np.uint64(low % 2**64)).view(np.int64)).to(dtype)
        width = 8 * dtype.itemsize
        integers = value.view(INTEGERS[dtype.itemsize]).numpy()
        return integers.view(f"uint{width}").astype(np.uint64)


class Pattern(NamedTuple):
    """One way in which a word goes wrong: its share of all hits (any positive scale), how many bits flip (None: each with
    probability 1/2), and among which (numbers and fields; None: all)."""

    share: float
    bits_per_word: int | None
    bits: Bits = None


@dataclass(frozen=True)
class FieldMixture(ErrorModel):
    """A word is hit with probability `rate`, independently, and goes wrong by a pattern drawn from a given distribution.

    A pattern whose bits a word does not have (a field of another format, too few of them) leaves the word right. An arrival of
    the error clock brings 1 + m raw words, m the largest number of bits of any pattern (at least 1). The first, r, picks the
    first pattern whose cumulative share exceeds (r >> 11) * 2**-53, else the last; by the following ones `Region.subset`
    chooses k bits, or the second one's bits at the eligible places are the mask. In the canonical form a pattern is the array
    of its share (of the sum of shares), bits per word and bits.

    Args:
        rate: per word. In quantized rows of integers a word is a byte.
        patterns: (share, bits per word, bits) each, as `Pattern`.

    Example:
        >>> FieldMixture(1e-6, [(3, 1, "mantissa"), (1, 2, None)]).patterns
        (Pattern(share=0.75, bits_per_word=1, bits=('mantissa',)), Pattern(share=0.25, bits_per_word=2, bits=None))
    """

    RATE = "rate"

    rate: float
    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_rate("rate", self.rate))
        shaped = isinstance(self.patterns, Iterable) and not isinstance(self.patterns, str)
        given = list(self.patterns) if shaped else []
        if not given or not all(isinstance(pattern, tuple | list) and len(pattern) in (2, 3) for pattern in given):
            raise ValueError(f"patterns is {self.patterns!r}; it must be a list of (share, bits per word, bits)")
        given = [Pattern(*pattern) for pattern in given]
        for share, _, _ in given:
            number = isinstance(share, int | float | np.number) and not isinstance(share, bool)
            if not number or not (_finite(share) and share > 0):
                raise ValueError(f"a pattern has the share {share!r}; it must be a positive number")
        total = sum(pattern.share for pattern in given)
        checked = []
        for share, count, bits in given:
            count = None if count is None else whole("bits_per_word", count, 1, "a number of bits")
            checked.append(Pattern(float(share / total), count, bit_set(bits)))
        object.__setattr__(self, "patterns", tuple(checked))

    @classmethod
    def gpu(cls, rate: float) -> "FieldMixture":
        """A mixture after what arXiv:2605.04213 publishes of silent data corruptions by gate-level stuck-at faults in a
        data-centre GPU: single-bit flips are less than 40 % of the events in which bits flip.

        Here 40 % of hits flip one bit. How the others are distributed is not in the abstract that this was taken from: 30 %
        two bits, 15 % three or four, 15 % any (each with probability 1/2) is an assumption, as is that positions in a word
        are uniform. NaN and infinities (1.01 % of outcomes there) are not imposed, and the periodicity of corrupted
        addresses is `Strided`'s. It speaks of results that a faulty GPU computes, not of stored bits.
        """
        return cls(
            rate, (Pattern(0.40, 1), Pattern(0.30, 2), Pattern(0.075, 3), Pattern(0.075, 4), Pattern(0.15, None))
        )

    @property
    def label(self) -> str:
        """The mixture without its rate: share of each pattern, its number of bits and where they lie."""
        return f"FieldMixture({self._patterns()})"

    def __str__(self) -> str:
        return f"FieldMixture(rate={self.rate!r}, {self._patterns()})"

    def _patterns(self) -> str:
        return ", ".join(
            f"{share:g}: {'any' if k is None else k} of {bits or 'all'}" for share, k, bits in self.patterns
        )

    def expected_share(self, space: AddressSpace) -> float:
        """Sum over patterns of share * rate * (bits that flip), over all words, by bits."""
        flips = 0.0
        for pattern in self.patterns:
            for region in self._regions(space, pattern.bits):
                flips += pattern.share * region.expected_flips(pattern.bits_per_word)
        if not flips:
            formats = ", ".join(sorted({tensor.format.name for tensor in space.tensors}))
            raise ValueError(f"no pattern of {self} can hit any word of the targeted formats: {formats}")
        return self.rate * flips / space.bits

    def sample(self, space: AddressSpace, *, seed: int, before: Before = NONE) -> ErrorMap:
        share = self.expected_share(space)
        hit = reach_words(self, space, seed, before)
        most = max(pattern.bits_per_word or 1 for pattern in self.patterns)
        raw = hit.clock.values(hit.arrivals.order, 1 + most)
        ends = np.cumsum([pattern.share for pattern in self.patterns])
        which = np.searchsorted(ends[:-1], uniform(raw[:, 0]), side="right")
        mask = np.zeros(len(hit.word), np.uint64)
        for number, pattern in enumerate(self.patterns):
            for region in self._regions(space, pattern.bits):
                index = [tensor.name for tensor in space.tensors].index(region.tensor.name)
                here = np.flatnonzero((hit.tensor == index) & (which == number))
                word = hit.word[here]
                if pattern.bits_per_word is None:
                    mask[here] = raw[here, 1] & region.eligible(word)
                    continue
                enough = region.count(word) >= pattern.bits_per_word
                here, word = here[enough], word[enough]
                mask[here] = region.subset(word, raw[here, 1 : 1 + pattern.bits_per_word])
        return from_words(self, space, hit.tensor, hit.word, mask, seed, requested_rate=share, **hit.about)

    @staticmethod
    def _regions(space: AddressSpace, bits: tuple[int | str, ...] | None) -> list[Region]:
        """The space's regions with these bits eligible; those that have none of them are left out."""
        if bits is None:
            return space.regions
        return [region for region in regions(space.tensors, bits) if region.bits]


def _finite(value: float) -> bool:
    """Whether a number is finite and a float64 can hold it."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


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
        about = {"requested_rate": self.expected_share(space), "n_sites": space.bits, "n_events": len(starts)}
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
        about = {"requested_rate": self.rate * self.density, "n_sites": clock.n, "n_events": len(rows)}
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
