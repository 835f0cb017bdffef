"""Sparse bit errors, and the protected words of a tensor: the arithmetic that all protections of memory share."""

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from drsrobust.injection.address_space import TargetTensor
from drsrobust.injection.number_formats import Format


class Errors(NamedTuple):
    """Wrong bits of some units of memory (words, code words, check bytes).

    Attributes:
        index: int64 [n], number of each unit; ascending, distinct.
        mask: uint64 [n], XOR masks, none of them 0.
    """

    index: np.ndarray
    mask: np.ndarray

    @classmethod
    def merged(cls, index: np.ndarray, mask: np.ndarray, combine: np.ufunc = np.bitwise_or) -> "Errors":
        """Masks [n] in any order as errors: empty ones are dropped, then those of one unit are combined."""
        nonzero = mask != 0
        if not nonzero.all():
            index, mask = index[nonzero], mask[nonzero]
        is_next = index[1:] > index[:-1]
        if is_next.all():
            return cls(index, mask)
        if (index[1:] < index[:-1]).any():
            order = np.argsort(index, kind="stable")
            index, mask = index[order], mask[order]
            is_next = index[1:] > index[:-1]
        starts = np.flatnonzero(np.concatenate(([True], is_next)))
        return cls(index[starts], combine.reduceat(mask, starts))

    @staticmethod
    def aligned(*several: "Errors") -> tuple[np.ndarray, ...]:
        """All units with an error in any argument (int64 [n], ascending), then the masks of each argument there [n]."""
        hit = [errors.index for errors in several if len(errors.index)]
        index = hit[0] if len(hit) == 1 else distinct(np.sort(np.concatenate([NO_ERRORS.index, *hit]), kind="stable"))
        masks = []
        for errors in several:
            if len(errors.index) == len(index):
                masks.append(errors.mask)
                continue
            mask = np.zeros(len(index), np.uint64)
            mask[np.searchsorted(index, errors.index)] = errors.mask
            masks.append(mask)
        return index, *masks

    def wrong_bits(self) -> tuple[np.ndarray, np.ndarray]:
        """Unit and bit number (int64 [m]) of every wrong bit, ascending by unit, then bit."""
        bits = np.unpackbits(np.ascontiguousarray(self.mask, "<u8").view(np.uint8), bitorder="little")
        place = np.flatnonzero(bits.view(bool))  # counted in units of 64 bits
        return self.index[place >> 6], place & 63

    def regrouped(self, width: int, new_width: int) -> "Errors":
        """The errors in units of `width` bits as errors in units of `new_width` bits of the same memory (little-endian).

        One width is a multiple of the other."""
        if width == new_width:
            return self
        if width < new_width:
            per = new_width // width
            shift = (self.index % per * width).astype(np.uint64)
            return Errors.merged(self.index // per, self.mask << shift)
        part = np.arange(width // new_width)
        mask = (self.mask[:, None] >> (part * new_width).astype(np.uint64)) & ones(new_width)
        return Errors.merged((self.index[:, None] * len(part) + part).ravel(), mask.ravel())


NO_ERRORS = Errors(np.empty(0, np.int64), np.empty(0, np.uint64))


def distinct(ascending: np.ndarray) -> np.ndarray:
    """The distinct values of an ascending array. (NumPy's `unique` is many times slower on millions of values.)"""
    return ascending[np.append(True, ascending[1:] != ascending[:-1])] if len(ascending) else ascending


def units_of(words: np.ndarray, width: int, new_width: int) -> np.ndarray:
    """The units of `new_width` bits (ascending) that contain some words of `width` bits (ascending)."""
    if width <= new_width:
        return distinct(words // (new_width // width))
    return (words[:, None] * (width // new_width) + np.arange(width // new_width)).ravel()


def ones(bits: int) -> np.uint64:
    """The mask of the lowest bits."""
    return np.uint64((1 << bits) - 1)


def bit_mask(bit: np.ndarray) -> np.ndarray:
    """Masks uint64 [n] of one bit each, by bit number."""
    return np.left_shift(np.uint64(1), bit.astype(np.uint64))


# Words from the first of a joined tensor to the first of the next: for a code over k bits of each word, and so over 64 // k
# words, whole code words at every k, and 64 of them, so that their check bits fill whole words.
_APART = 64 * 20_160


class ProtectedWords:
    """The protected words of one tensor, numbered from 0 in memory order; or of several (`joined`), with gaps between them.

    Attributes:
        parts: the words of each tensor.
        starts, ends: int64 [parts], number of the first word of each, and after its last one.

    Args:
        tensor: the tensor with its protected rows.
    """

    def __init__(self, tensor: TargetTensor) -> None:
        self.tensor = tensor
        self.name: str = tensor.name
        self.format: Format = tensor.format
        self.width: int = tensor.format.width  # bits of a word
        self.words: int = tensor.targeted  # how many
        self.parts: tuple[ProtectedWords, ...] = (self,)
        self.starts, self.ends = np.zeros(1, np.int64), np.array([self.words])

    @classmethod
    def joined(cls, parts: "Sequence[ProtectedWords]") -> "ProtectedWords":
        """Words of several whole tensors of one format as if of one, which has the name of the first: so arithmetic is done
        once, not for each tensor. Together they have a million words at most."""
        if len(parts) == 1:
            return parts[0]
        joined = copy(parts[0])
        joined.parts, joined.starts = tuple(parts), _APART * np.arange(len(parts))
        joined.ends = joined.starts + [part.words for part in parts]
        joined.words = int(joined.ends[-1])
        return joined

    def by_part(self, index: np.ndarray, starts: np.ndarray) -> Iterator[tuple["ProtectedWords", np.ndarray]]:
        """The parts that ascending numbers int64 [n] belong to, and these, counted from `starts`, the parts' first ones."""
        bounds = pairwise([*index.searchsorted(starts).tolist(), len(index)])
        for part, start, (first, end) in zip(self.parts, starts, bounds, strict=True):
            if end > first:
                yield part, index[first:end] - start

    @property
    def row_words(self) -> int:
        """Words of a row; of a vector or a scalar, all words."""
        return max(1, self.tensor.row_words if len(self.tensor.shape) > 1 else self.words)

    def local(self, word: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Numbers of words given by flat index [n], and which of them are protected (bool [n]; None: all)."""
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
        """The present words by their numbers [n] (of several tensors ascending), uint64."""
        if len(self.parts) > 1:
            return np.concatenate(
                [NO_ERRORS.mask, *(part.read(words) for part, words in self.by_part(local, self.starts))]
            )
        return self.tensor.stored.words().read_uint64(self.flat(local))

    def read_blocks(self, block: np.ndarray, bits: int) -> np.ndarray:
        """Blocks of `bits` bits by their numbers [n], uint64, zero-padded after the last word."""
        if len(self.parts) > 1:
            by_part = self.by_part(block, self.starts * self.width // bits)
            return np.concatenate([NO_ERRORS.mask, *(part.read_blocks(blocks, bits) for part, blocks in by_part)])
        if self.width >= bits:
            per = self.width // bits
            return (self.read(block // per) >> (block % per * bits).astype(np.uint64)) & ones(bits)
        per = bits // self.width
        values = np.zeros(len(block), np.uint64)
        for part in range(per):
            local = block * per + part
            exists = local < self.words
            values[exists] |= self.read(local[exists]) << np.uint64(part * self.width)
        return values

    def in_rows(self, rows: np.ndarray | None) -> np.ndarray | None:
        """The protected words in some rows of the tensor: their numbers, or None for all of them."""
        tensor_rows = self.tensor.rows
        if rows is None or (tensor_rows is not None and np.isin(tensor_rows, rows, assume_unique=True).all()):
            return None
        common = (
            rows
            if tensor_rows is None
            else np.searchsorted(tensor_rows, np.intersect1d(tensor_rows, rows, assume_unique=True))
        )
        return (common[:, None] * self.tensor.row_words + np.arange(self.tensor.row_words)).ravel()
