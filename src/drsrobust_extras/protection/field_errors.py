"""Error models of several bits: within one word, in neighbouring bits, in a row of storage."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from drsrobust.extend import (
    canonical_json,
    check_number,
    check_rate,
    check_whole,
    from_bits,
    from_words,
    scaled,
    uniform,
)
from drsrobust.injection import INTEGER_OF_BYTES, AddressSpace, ErrorMap, ErrorModel

_WIDEST = 64  # bits of a word


@dataclass(frozen=True)
class MultiBit(ErrorModel):
    """A word is hit with probability `rate`, independently; then `bits_per_word` distinct bits of it flip, every such set
    equally likely.

    A bit flips with probability rate * bits_per_word / (bits of the word). An arrival of the error clock owns bits_per_word
    raw words, from which `EligibleBits.subset` chooses. Source: multi-bit upsets; most bit-flip events of a GPU flip more than
    one bit of a word (arXiv:2605.04213).

    Args:
        rate: per word. In quantized rows of integers a word is a byte.
        bits_per_word: how many bits of a hit word flip.
    """

    RATE = "rate"

    rate: float
    bits_per_word: int

    def __post_init__(self) -> None:
        bits_per_word = check_whole("bits_per_word", self.bits_per_word, 1, _WIDEST)
        self._set(rate=check_rate("rate", self.rate), bits_per_word=bits_per_word)

    def expected_share(self, space: AddressSpace) -> float:
        """rate * bits_per_word * words / bits."""
        for eligible in space.eligible:
            if eligible.fewest < self.bits_per_word:
                raise ValueError(
                    f"bits_per_word is {self.bits_per_word}; words of {eligible.tensor.name} have {eligible.fewest} bits"
                )
        return self.rate * self.bits_per_word * space.words / space.bits

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        share = self.expected_share(space)
        tensor, word, raw, counts = draw_words(self, space, seed, copy, self.bits_per_word)
        mask = np.zeros(len(word), np.uint64)
        for eligible, entries in space.by_tensor(tensor):
            mask[entries] = eligible.subset(word[entries], raw[entries])
        return from_words(self, space, tensor, word, mask, seed, requested_rate=share, **counts)


@dataclass(frozen=True)
class RandomWord(ErrorModel):
    """A word is hit with probability `rate`, independently; then each eligible bit of it is replaced by a random one, and so
    flips with probability 1/2 (possibly none does). A bit flips with probability rate / 2. An arrival of the error clock owns
    one raw word, whose bits at the eligible places are the mask.

    Args:
        rate: per word. In quantized rows of integers a word is a byte.
    """

    RATE = "rate"

    rate: float

    def __post_init__(self) -> None:
        self._set(rate=check_rate("rate", self.rate))

    def expected_share(self, space: AddressSpace) -> float:
        """rate / 2."""
        return self.rate / 2

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        tensor, word, raw, counts = draw_words(self, space, seed, copy, 1)
        mask = raw[:, 0]
        for eligible, entries in space.by_tensor(tensor):
            mask[entries] &= eligible.mask_of(word[entries])
        return from_words(self, space, tensor, word, mask, seed, requested_rate=self.rate / 2, **counts)


@dataclass(frozen=True)
class RandomValue(ErrorModel):
    """A word is hit with probability `rate`, independently, and replaced by a number drawn uniformly from `low` to `high`.

    An arrival of the error clock owns one raw word r. Floats: with s = (r >> 11) * 2**-53, low * (1 - s) + high * s in
    float64, rounded to the format as PyTorch does (to float32 first, then ties to even; rounding may reach `high` itself).
    Integers, both ends included: ceil(low) + floor(r * n / 2**64), n = floor(high) - ceil(low) + 1.

    The map keeps the words that it replaced, and is refused where others are in memory.

    Args:
        rate: per word.
        low, high: in every targeted format representable (rounded); low < high.

    Example:
        >>> import drsrobust as dr
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> with dr.inject(model, RandomValue(rate=1, low=2, high=3), seed=0):
        ...     2 <= model.weight.item() <= 3
        True
    """

    RATE = "rate"

    rate: float
    low: float
    high: float

    def __post_init__(self) -> None:
        self._set(rate=check_rate("rate", self.rate))
        for name in ("low", "high"):
            value = getattr(self, name)
            check_number(name, value)
            # Whole numbers become int, whatever type they had, so that equal models have one canonical form.
            self._set(**{name: int(value) if value == int(value) else float(value)})
        if not self.low < self.high:
            raise ValueError(f"low is {self.low!r} and high {self.high!r}; low must be the smaller one")

    def expected_share(self, space: AddressSpace) -> None:
        """None: which bits differ depends on the words in memory."""
        for number_format, name in ((tensor.format, tensor.name) for tensor in space.tensors):
            if number_format.dtype.is_floating_point:
                largest = torch.finfo(number_format.dtype).max
                if max(abs(self.low), abs(self.high)) > largest:
                    raise ValueError(
                        f"{name} is {number_format.name}, whose range does not hold {self.low} to {self.high}"
                    )
                continue
            if number_format.period > 1:
                raise ValueError(
                    f"{name} holds {number_format.name}, whose bytes are no numbers; use RandomWord for random bits"
                )
            limits = torch.iinfo(number_format.dtype)
            in_range = limits.min <= self.low and self.high <= limits.max
            if not in_range or math.ceil(self.low) > math.floor(self.high):
                raise ValueError(
                    f"{name} is {number_format.name} ({limits.min} to {limits.max}); it holds no numbers from {self.low} to "
                    f"{self.high}"
                )

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        self.expected_share(space)
        tensor, word, raw, counts = draw_words(self, space, seed, copy, 1)
        mask = space.read(tensor, word)
        for eligible, entries in space.by_tensor(tensor):
            mask[entries] ^= self._draw(eligible.tensor.format.dtype, raw[entries, 0])
            mask[entries] &= eligible.mask_of(word[entries])
        error_map = from_words(self, space, tensor, word, mask, seed, **counts)
        return replace(error_map, original=space.read(error_map.tensor, error_map.word))

    def sample_check_bits(
        self, checks: AddressSpace, data: AddressSpace, *, seed: int, data_seed: int, copy: int = 0
    ) -> ErrorMap | None:
        """In copies as in data; check bits hold no numbers, so a hit word of them becomes random (`RandomWord`)."""
        if any(tensor.memory is None for tensor in checks.tensors):
            return RandomWord(self.rate).sample(checks, seed=seed, copy=copy)
        return super().sample_check_bits(checks, data, seed=seed, data_seed=data_seed, copy=copy)

    def _draw(self, dtype: torch.dtype, raw: np.ndarray) -> np.ndarray:
        """The drawn numbers as words, uint64."""
        if dtype.is_floating_point:
            share = uniform(raw)
            value = torch.from_numpy(self.low * (1 - share) + self.high * share).to(dtype)
        else:
            low, high = math.ceil(self.low), math.floor(self.high)
            offset = raw if high - low + 1 == 2**64 else scaled(raw, high - low + 1)
            value = torch.from_numpy((offset + np.uint64(low % 2**64)).view(np.int64)).to(dtype)
        integers = value.view(INTEGER_OF_BYTES[dtype.itemsize]).numpy()
        return integers.view(f"uint{8 * dtype.itemsize}").astype(np.uint64)


@dataclass(frozen=True)
class Burst(ErrorModel):
    """From every eligible bit a burst starts with probability `rate`, independently, and flips `length` eligible bits from
    there on, neighbours in memory order, across words. A burst ends where its tensor (or its run of neighbouring targeted
    rows) ends. Bits hit by several bursts flip once.

    A bit with j eligible bits before it flips with probability 1 - (1 - rate)^min(j + 1, length). Source: adjacent-bit bursts
    as in arXiv:2405.01741.

    Args:
        rate: per start bit.
        length: bits of a burst.
    """

    RATE = "rate"
    unit = "row"

    rate: float
    length: int

    def __post_init__(self) -> None:
        length = check_whole("length", self.length, 1)
        self._set(rate=check_rate("rate", self.rate), length=length)

    def expected_share(self, space: AddressSpace) -> float:
        """The mean of that probability over all bits."""
        runs = np.concatenate([eligible.runs() for eligible in space.eligible])
        length = min(self.length, int(runs.max()))
        hit = -np.expm1(np.arange(1, length + 1) * np.log1p(-self.rate)) if self.rate < 1 else np.ones(length)
        ramp = np.append(0.0, np.cumsum(hit))
        flips = ramp[np.minimum(runs, length)] + np.maximum(runs - length, 0) * hit[-1]
        return float(flips.sum() / space.bits)

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        starts = self.clock(space.bits, seed, copy).until(self.rate)
        counts = {"requested_rate": self.expected_share(space), "n_sites": space.bits, "n_events": len(starts)}
        return from_bits(self, space, [space.extend(starts, self.length)], seed, **counts)


@dataclass(frozen=True)
class RowError(ErrorModel):
    """A row of storage fails with probability `rate`, independently; then each of its eligible bits flips with probability
    `density`. Each tensor begins with a new row; its last row may be short.

    A bit flips with probability rate * density. An arrival of the error clock owns 8 * row_bytes raw words r, one for each
    bit of the row from the lowest of its first word, eligible or not (also beyond a short row's end); the bit flips if
    (r >> 11) * 2**-53 < density. Source: row failures of DRAM (47 % of DRAM faults in the field hit single
    bits, 22.5 % one row or column: Sridharan and Liberty, SC 2012). The physical place of tensors in DRAM is not modelled:
    rows are counted from each tensor's first word.

    Args:
        rate: per row.
        row_bytes: bytes of a row, a multiple of 8.
        density: 0 to 1. For one seed the flips of a lower density are among those of a higher one of the same `row_bytes`.
    """

    RATE = "rate"
    unit = "row"

    rate: float
    row_bytes: int = 8192
    density: float = 0.5

    def __post_init__(self) -> None:
        self._set(rate=check_rate("rate", self.rate), density=check_rate("density", self.density))
        self._set(row_bytes=check_whole("row_bytes", self.row_bytes, 8))
        if self.row_bytes % 8:
            raise ValueError(f"row_bytes is {self.row_bytes}; it must be a multiple of 8")

    def canonical(self) -> str:
        """Without rate and density."""
        return canonical_json({"error_model": "RowError", "row_bytes": self.row_bytes})

    def expected_share(self, space: AddressSpace) -> float:
        """rate * density."""
        return self.rate * self.density

    def sample(self, space: AddressSpace, *, seed: int, copy: int = 0) -> ErrorMap:
        clock = self.clock(space.rows(self.row_bytes), seed, copy)
        places, orders = clock.arrivals(self.rate)
        bits = 8 * self.row_bytes
        columns = [(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.uint64))]
        rows = [eligible.storage_rows(self.row_bytes) for eligible in space.eligible]
        ends = np.cumsum([len(numbers) for numbers in rows], dtype=np.int64)
        for order, index, place in zip(orders, np.searchsorted(ends, places, side="right"), places, strict=True):
            eligible, row = space.eligible[index], rows[index][place - ends[index]]  # counted from the end
            width = eligible.tensor.format.width
            first = row * bits // width
            word = np.arange(first, min(first + bits // width, eligible.tensor.size))
            raw = clock.values(np.array([order]), bits, first=width * len(word))[0]
            flips = np.packbits(uniform(raw) < self.density, bitorder="little").view(f"<u{width // 8}")
            columns.append(
                (np.full(len(word), index, np.int32), word, flips.astype(np.uint64) & eligible.mask_of(word))
            )
        tensor, word, mask = (np.concatenate(column) for column in zip(*columns, strict=True))
        counts = {"requested_rate": self.rate * self.density, "n_sites": clock.n, "n_events": len(places)}
        return from_words(self, space, tensor, word, mask, seed, **counts)


def draw_words(
    model: ErrorModel, space: AddressSpace, seed: int, copy: int, raw_words: int, first: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, int]]:
    """The words at which errors of a rate per word begin.

    Args:
        raw_words: raw words that each arrival of the error clock owns.
        first: how many of them to return; None: all.

    Returns:
        tensor index (int32) and flat word index (int64) [n], raw words uint64 [n, first], and the error map's `n_sites` and
        `n_events`.
    """
    clock = model.clock(space.words, seed, copy)
    position, order = clock.arrivals(model.rate)
    raw = clock.values(order, raw_words, first=first)
    return *space.locate_words(position), raw, {"n_sites": clock.n, "n_events": len(position)}
