"""The eligible bits of one targeted tensor, numbered on: rows ascending, words in row-major order, bits from the lowest."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import torch

from drsrobust.injection.clock import scaled
from drsrobust.injection.formats import Format, plain
from drsrobust.injection.storage import Stored


@dataclass(frozen=True)
class TargetTensor:
    """One targeted tensor.

    Attributes:
        name: in the model.
        component: that it belongs to.
        shape: in words.
        format: of its words.
        rows: int64 ascending, which rows (of the first dimension) are targeted; None: all.
        stored: the tensor as it lies in its model's memory; None where a space is not of a model at hand.
    """

    name: str
    component: str
    shape: tuple[int, ...]
    format: Format
    rows: np.ndarray | None = field(default=None, compare=False)
    stored: Stored | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, name: str, component: str, dtype: torch.dtype, shape: tuple[int, ...]) -> "TargetTensor":
        """A tensor of plain numbers, all rows of it."""
        return cls(name, component, tuple(shape), plain(dtype))

    @property
    def memory(self) -> torch.Tensor | None:
        """The tensor itself."""
        return None if self.stored is None else self.stored.tensor

    @property
    def size(self) -> int:
        """Words of the whole tensor."""
        return prod(self.shape)

    @property
    def row_words(self) -> int:
        """Words of one row."""
        return prod(self.shape[1:])

    @property
    def targeted(self) -> int:
        """Words in the targeted rows."""
        return self.size if self.rows is None else len(self.rows) * self.row_words


class Region:
    """The eligible bits of one tensor. Its words come in units of the format's period (one word, or a quantized row).

    Attributes:
        masks: uint64 [period], the eligible bits of the words of one unit.

    Args:
        tensor: which.
        bits: eligible bits by number or field; None: all but padding.

    Raises:
        ValueError: a bit number that the format does not have.
    """

    def __init__(self, tensor: TargetTensor, bits: tuple[int | str, ...] | None) -> None:
        self.tensor = tensor
        self._period = tensor.format.period
        layout = _layout(tensor.format, bits)
        self.masks, self._word, self._bit, self._live, self._counts = layout
        self._units = tensor.targeted // self._period
        self._whole = self._period == 1 and len(self._bit) == tensor.format.width and tensor.rows is None
        self.bits = self._units * len(self._bit)
        self.words = self._units * len(self._live)

    @property
    def everything(self) -> bool:
        """Whether all bits but padding are eligible."""
        return self.masks is _layout(self.tensor.format, None).masks or self._whole

    def locate(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Flat word index and bit number of eligible bits [n], by their number in this region."""
        if self._whole:
            # All bits of a word: their number is a power of two, and shifting is several times faster than dividing.
            width = len(self._bit)
            return position >> (width.bit_length() - 1), position & (width - 1)
        unit = position // len(self._bit)
        which = position - unit * len(self._bit)
        return self._start(unit) + self._word[which], self._bit[which]

    def locate_word(self, position: np.ndarray) -> np.ndarray:
        """Flat word index of the n-th words that have an eligible bit."""
        if len(self._live) == 1 and self._period == 1:
            return self._start(position)
        unit = position // len(self._live)
        return self._start(unit) + self._live[position - unit * len(self._live)]

    def run_end(self, position: np.ndarray) -> np.ndarray:
        """Where the run of neighbouring rows ends that an eligible bit lies in (the tensor's end, when all are targeted)."""
        if self.tensor.rows is None:
            return np.full_like(position, self.bits)
        row_bits = self.bits // len(self.tensor.rows)
        ends = self._run_ends
        return ends[np.searchsorted(ends, position // row_bits, side="right")] * row_bits

    def runs(self) -> np.ndarray:
        """Eligible bits in each run of neighbouring rows."""
        if self.tensor.rows is None:
            return np.array([self.bits])
        return np.diff(self._run_ends, prepend=0) * (self.bits // len(self.tensor.rows))

    @cached_property
    def _run_ends(self) -> np.ndarray:
        """Numbers (among the targeted rows) of the first rows behind each run."""
        rows = self.tensor.rows
        return np.append(np.flatnonzero(np.diff(rows) != 1) + 1, len(rows))

    def eligible(self, word: np.ndarray) -> np.ndarray:
        """Masks uint64 [n] of the eligible bits of words given by flat index; 0 for words that are not targeted."""
        masks = self.masks[word % self._period] if self._period > 1 else np.full(len(word), self.masks[0])
        rows = self.tensor.rows
        if rows is not None:
            row = word // self.tensor.row_words
            place = np.minimum(np.searchsorted(rows, row), len(rows) - 1)
            masks = np.where(rows[place] == row, masks, np.uint64(0))
        return masks

    def count(self, word: np.ndarray) -> np.ndarray:
        """How many eligible bits words have (int64 [n]), as if all rows were targeted."""
        return self._counts[word % self._period]

    def bit_at(self, word: np.ndarray, number: np.ndarray) -> np.ndarray:
        """The bit (0 the lowest) that is eligible bit `number` (0 .. count - 1) of each word."""
        first = np.cumsum(self._counts) - self._counts
        return self._bit[first[word % self._period] + number]

    @property
    def fewest(self) -> int:
        """Eligible bits of the word that has the fewest (of those that have any)."""
        return int(self._counts[self._live].min(initial=self.tensor.format.width))

    def expected_flips(self, bits_per_word: int | None) -> float:
        """Expected flips when every word has this many distinct eligible bits flipped (none, if it has fewer), or each of
        them with probability 1/2 (None)."""
        if bits_per_word is None:
            return self.bits / 2
        return float(self._units * bits_per_word * (self._counts >= bits_per_word).sum())

    def subset(self, word: np.ndarray, raw: np.ndarray) -> np.ndarray:
        """For each word a uniform set of its eligible bits, as masks uint64 [n], by Floyd's algorithm (Bentley and Floyd, CACM
        30, 1987): of b eligible bits, numbered from the lowest, step j = 0 .. k - 1 takes number
        floor(raw_j * (b - k + j + 1) / 2**64), or number b - k + j if that was taken.

        Args:
            word: int64 [n], flat indices; each has at least k eligible bits.
            raw: uint64 [n, k], a raw word for each bit to draw.
        """
        count = self.count(word)
        chosen = np.zeros(len(word), np.uint64)  # by number among the eligible bits
        drawn = np.zeros(len(word), np.uint64)  # by bit
        for step in range(raw.shape[1]):
            last = count - raw.shape[1] + step
            number = scaled(raw[:, step], last + 1)
            taken = (chosen >> number) & np.uint64(1) != 0
            number = np.where(taken, last.astype(np.uint64), number)
            chosen |= np.uint64(1) << number
            drawn |= np.uint64(1) << self.bit_at(word, number.astype(np.int64)).astype(np.uint64)
        return drawn

    def storage_rows(self, row_bytes: int) -> int:
        """How many rows of `row_bytes` the tensor's words fill; of a tensor of which only some rows are targeted, how many of
        those storage rows hold some of them."""
        if self.tensor.rows is None:
            return -(-self.tensor.size * self.tensor.format.dtype.itemsize // row_bytes)
        return len(self._touched(row_bytes))

    def locate_storage_row(self, position: np.ndarray, row_bytes: int) -> np.ndarray:
        """Number in the tensor of the n-th of these storage rows."""
        return position if self.tensor.rows is None else self._touched(row_bytes)[position]

    def _touched(self, row_bytes: int) -> np.ndarray:
        """Which storage rows hold words of the targeted rows: int64, ascending."""
        length = self.tensor.row_words * self.tensor.format.dtype.itemsize
        first, last = self.tensor.rows * length // row_bytes, ((self.tensor.rows + 1) * length - 1) // row_bytes
        every = first[:, None] + np.arange(int((last - first).max(initial=0)) + 1)
        return np.unique(every[every <= last[:, None]])

    def _start(self, unit: np.ndarray) -> np.ndarray:
        """Flat index of the first word of each unit."""
        rows = self.tensor.rows
        if rows is None:
            return unit * self._period if self._period > 1 else unit
        per_row = self.tensor.row_words // self._period
        row = unit // per_row
        return rows[row] * self.tensor.row_words + (unit - row * per_row) * self._period


class _Layout(NamedTuple):
    """Of one unit of a format: masks uint64 [period] of the eligible bits; of each of these its word and its bit; the words
    that have any; how many each word has."""

    masks: np.ndarray
    word: np.ndarray
    bit: np.ndarray
    live: np.ndarray
    counts: np.ndarray


@lru_cache(maxsize=256)
def _layout(form: Format, bits: tuple[int | str, ...] | None) -> _Layout:
    masks = form.eligible(bits)
    held = (masks[:, None] >> np.arange(form.width, dtype=np.uint64)) & np.uint64(1)
    return _Layout(masks, *np.nonzero(held), np.flatnonzero(masks), held.sum(axis=1).astype(np.int64))
