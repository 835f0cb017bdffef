"""Sparse XOR masks by index, and how they are cut, joined and packed: what every protection of memory reckons with."""

from typing import NamedTuple

import numpy as np

from drsrobust.injection.address_space import EligibleBits, TargetTensor
from drsrobust.injection.number_formats import Format


class Errors(NamedTuple):
    """What is wrong in some units of memory (words, code words, check bytes).

    Attributes:
        index: int64 [n], which units; ascending, distinct.
        mask: uint64 [n], XOR masks, none of them 0.
    """

    index: np.ndarray
    mask: np.ndarray

    @property
    def bits(self) -> int:
        """How many bits are wrong."""
        return int(np.bitwise_count(self.mask).sum())


NOTHING = Errors(np.empty(0, np.int64), np.empty(0, np.uint64))


def joined(index: np.ndarray, mask: np.ndarray) -> Errors:
    """Masks [n] in any order as `Errors`: those of one unit joined by OR, empty ones left out."""
    kept = mask != 0
    if not kept.all():
        index, mask = index[kept], mask[kept]
    if len(index) > 1 and (index[1:] < index[:-1]).any():
        order = np.argsort(index, kind="stable")
        index, mask = index[order], mask[order]
    starts = np.flatnonzero(np.append(True, index[1:] != index[:-1])) if len(index) else index
    if len(starts) == len(index):
        return Errors(index, mask)
    return Errors(index[starts], np.bitwise_or.reduceat(mask, starts))


def aligned(*several: Errors) -> tuple[np.ndarray, ...]:
    """All units that any of some errors hit (int64 [n], ascending), and for each of the errors its masks there [n]."""
    hit = [one.index for one in several if len(one.index)]
    index = hit[0] if len(hit) == 1 else distinct(np.sort(np.concatenate([NOTHING.index, *hit]), kind="stable"))
    masks = []
    for one in several:
        if len(one.index) == len(index):
            masks.append(one.mask)
            continue
        mask = np.zeros(len(index), np.uint64)
        mask[np.searchsorted(index, one.index)] = one.mask
        masks.append(mask)
    return index, *masks


def distinct(ascending: np.ndarray) -> np.ndarray:
    """The distinct ones of ascending numbers. (NumPy's `unique` is many times slower on millions of them.)"""
    return ascending[np.append(True, ascending[1:] != ascending[:-1])] if len(ascending) else ascending


def flips(errors: Errors) -> tuple[np.ndarray, np.ndarray]:
    """Unit and bit number (int64 [m]) of every wrong bit, ascending by unit, then bit."""
    if not len(errors.index):
        return NOTHING.index, NOTHING.index
    units, bits = [], []
    for bit in range(int(np.bitwise_or.reduce(errors.mask)).bit_length()):
        here = np.flatnonzero(errors.mask & np.uint64(1 << bit))
        units.append(here)
        bits.append(np.full(len(here), bit))
    unit, bit = np.concatenate(units), np.concatenate(bits)
    order = np.argsort(unit, kind="stable")
    return errors.index[unit[order]], bit[order]


def to_blocks(errors: Errors, width: int, block: int) -> Errors:
    """Errors in words of `width` bits as errors in blocks of `block` bits of the same memory (little-endian, as words lie in
    it): several words a block, or several blocks a word."""
    if width == block:
        return errors
    if width < block:
        per = block // width
        shift = (errors.index % per * width).astype(np.uint64)
        return joined(errors.index // per, errors.mask << shift)
    per = width // block
    part = np.arange(per)
    mask = (errors.mask[:, None] >> (part * block).astype(np.uint64)) & ones(block)
    return joined((errors.index[:, None] * per + part).ravel(), mask.ravel())


def to_words(errors: Errors, width: int, block: int) -> Errors:
    """The reverse of `to_blocks`."""
    return to_blocks(errors, block, width)


def ones(bits: int) -> np.uint64:
    """The mask of the lowest bits."""
    return np.uint64((1 << bits) - 1)


class Area:
    """The protected words of one tensor, numbered on from 0 in the order in which they lie there.

    Args:
        tensor: which, and which of its rows.
    """

    def __init__(self, tensor: TargetTensor) -> None:
        self.tensor = tensor

    @property
    def name(self) -> str:
        """Of the tensor."""
        return self.tensor.name

    @property
    def format(self) -> Format:
        """Of its words."""
        return self.tensor.format

    @property
    def width(self) -> int:
        """Bits of a word."""
        return self.tensor.format.width

    @property
    def words(self) -> int:
        """How many there are."""
        return self.tensor.targeted

    @property
    def unit(self) -> int:
        """Words of a row; of a vector or a single number, all of them."""
        return max(1, self.tensor.row_words if len(self.tensor.shape) > 1 else self.words)

    def local(self, word: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The numbers of words given by flat index [n], and which of these are protected at all (bool [n]; None: all)."""
        rows, size = self.tensor.rows, self.tensor.row_words
        if rows is None:
            return word, None
        row = word // size
        place = np.minimum(np.searchsorted(rows, row), len(rows) - 1)
        return place * size + (word - row * size), rows[place] == row

    def flat(self, local: np.ndarray) -> np.ndarray:
        """Flat indices of words by their numbers."""
        rows, size = self.tensor.rows, self.tensor.row_words
        if rows is None:
            return local
        row = local // size
        return rows[row] * size + (local - row * size)

    def read(self, local: np.ndarray) -> np.ndarray:
        """The words by their numbers [n], uint64, as they are in the model now."""
        from drsrobust.injection.address_space import WordView

        return WordView(self.tensor.memory).read_uint64(self.flat(local))

    def read_blocks(self, block: np.ndarray, bits: int) -> np.ndarray:
        """Blocks of `bits` bits by their numbers [n], uint64; behind the last word there are zeros."""
        if self.width >= bits:
            per = self.width // bits
            return (self.read(block // per) >> (block % per * bits).astype(np.uint64)) & ones(bits)
        per = bits // self.width
        found = np.zeros(len(block), np.uint64)
        for part in range(per):
            local = block * per + part
            there = local < self.words
            found[there] |= self.read(local[there]) << np.uint64(part * self.width)
        return found

    def hit_rows(self, rows: np.ndarray | None) -> np.ndarray | None:
        """Which protected words lie in some rows of the tensor: their numbers, or None for all of them."""
        own = self.tensor.rows
        if rows is None or (own is not None and np.isin(own, rows, assume_unique=True).all()):
            return None
        common = rows if own is None else np.searchsorted(own, np.intersect1d(own, rows, assume_unique=True))
        return (common[:, None] * self.tensor.row_words + np.arange(self.tensor.row_words)).ravel()


class Packed:
    """Some bits of each word of an area, numbered on: words ascending, in a word from the lowest.

    Args:
        area: whose.
        bits: which, as in `BitFlip`.
    """

    def __init__(self, area: Area, bits: tuple[int | str, ...]) -> None:
        self.area, self.region = area, EligibleBits(area.tensor, bits)
        self.masks = self.region.masks
        counts = np.bitwise_count(self.masks).astype(np.int64)
        self._first, self._counts = np.cumsum(counts) - counts, counts
        self._per_unit = int(counts.sum())

    @property
    def bits(self) -> int:
        """How many there are."""
        return self.region.bits

    def positions(self, errors: Errors) -> np.ndarray:
        """Numbers (ascending) of wrong bits, which must be among them. Errors are by the area's word numbers."""
        local, bit = flips(errors)
        place = local % len(self.masks)
        below = self.masks[place] & ((np.uint64(1) << bit.astype(np.uint64)) - np.uint64(1))
        return local // len(self.masks) * self._per_unit + self._first[place] + np.bitwise_count(below)

    def ends(self, local: np.ndarray) -> np.ndarray:
        """The number of the first and of the last of them in each word, of words that have any: int64 [n, 2]."""
        place = local % len(self.masks)
        first = local // len(self.masks) * self._per_unit + self._first[place]
        count = self._counts[place]
        return np.stack((first, first + count - 1), axis=1)[count > 0]

    def errors(self, positions: np.ndarray) -> Errors:
        """The reverse of `positions`."""
        word, bit = self.region.locate(positions)
        local, _ = self.area.local(word)
        return joined(local, np.left_shift(np.uint64(1), bit.astype(np.uint64)))
