"""Where tensors lie in a memory of DRAM chips: ranks, banks, rows and columns, and the bits that each chip holds.

The targeted tensors lie in memory one after the other, each from a new line of 64 bytes. A rank has 18 chips of 4 bits: chip k
holds bits 4k to 4k + 3 of each 64-bit word (of two float32: chips 7 and 15 hold bits 28 to 31), chips 16 and 17 hold the check
bits of codes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from drsrobust.extend import check_choice, check_whole
from drsrobust.injection import AddressSpace

WORD, LINE = 64, 8  # bits of a memory word; words of a line of 64 bytes
DATA_CHIPS, CHIPS, CHIP_BITS = 16, 18, 4
CHECK_BITS = CHIP_BITS * (CHIPS - DATA_CHIPS)  # of a word
MAPS = ("in order", "spread")
_BLOCK = 1 << 16  # words at a time, whose copies stay in the processor's cache


@dataclass(frozen=True)
class Geometry:
    """Places of a memory: ranks of banks of rows of columns; a column of a row is a 64-bit word over the 16 data chips.

    Args:
        ranks: of the memory; 4 by default.
        banks, rows, columns: of each rank, of each bank, of each row. The defaults are those of devices of 1 Gb: a row of
            16 KiB, a bank of 256 MiB, a rank of 2 GiB.
        mapping: `in order`: words fill the columns of a row, the rows of a bank, the banks of a rank; `spread`: neighbouring
            lines of 64 bytes lie in different banks of a rank, as servers interleave.

    Raises:
        ValueError: a number under 1, columns that are no whole lines, another mapping.
    """

    ranks: int = 4
    banks: int = 8
    rows: int = 16384
    columns: int = 2048
    mapping: str = "in order"

    def __post_init__(self) -> None:
        for name in ("ranks", "banks", "rows", "columns"):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), 1))
        check_choice("mapping", self.mapping, MAPS)
        if self.mapping == "spread" and self.columns % LINE:
            raise ValueError(f"columns is {self.columns}; with mapping='spread' it must be a multiple of {LINE}")

    @property
    def bank_words(self) -> int:
        """64-bit words of a bank."""
        return self.rows * self.columns

    @property
    def words(self) -> int:
        """64-bit words of the memory."""
        return self.ranks * self.banks * self.bank_words

    def held(self, words: int) -> np.ndarray:
        """How many of the first `words` words lie in each bank: int64 [ranks, banks]. They are the bank's first ones.

        Raises:
            ValueError: more words than the memory has.
        """
        if words > self.words:
            raise ValueError(
                f"the targeted tensors need {words * WORD // 8:,} bytes, and the memory has {self.words * WORD // 8:,}; give "
                "MemoryFault(geometry=Geometry(ranks=...)) more ranks"
            )
        in_rank = np.clip(words - np.arange(self.ranks) * self.banks * self.bank_words, 0, self.banks * self.bank_words)
        banks = np.arange(self.banks)
        if self.mapping == "in order":
            return np.clip(in_rank[:, None] - banks * self.bank_words, 0, self.bank_words)
        lines, in_line = np.divmod(in_rank[:, None], LINE)
        lines_each, extra = np.divmod(lines, self.banks)
        return LINE * (lines_each + (banks < extra)) + np.where(banks == extra, in_line, 0)

    def address(self, rank: int, bank: int, offset: np.ndarray) -> np.ndarray:
        """Numbers of words (int64 [n]) by their places in a bank, which it may overwrite."""
        first = rank * self.banks * self.bank_words
        if self.mapping == "in order":
            return np.add(offset, first + bank * self.bank_words, out=offset)
        line, within = np.divmod(offset, LINE)
        return first + (line * self.banks + bank) * LINE + within


def mapping_of(geometry: Geometry, kind: str | None) -> str:
    """The address map of trials, with the memory where one is named: `error_mapping` of their table."""
    return geometry.mapping if kind is None else f"{geometry.mapping}, {kind}"


def exponent_chips(space: AddressSpace) -> tuple[int, ...]:
    """The chips that hold signs, exponents and the three highest mantissa bits of the floats of a space, whose faults change
    numbers by an eighth of themselves or more; none if there are other formats.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> exponent_chips(dr.resolve(nn.Linear(2, 2)))
        (5, 6, 7, 13, 14, 15)
    """
    chips: set[int] = set()
    for tensor in space.tensors:
        if not {"sign", "exponent"} <= set(tensor.format.fields):
            return ()
        sign, exponent, mantissa = (int(tensor.format.fields[name][0]) for name in ("sign", "exponent", "mantissa"))
        high = sign | exponent | (mantissa & ~mantissa >> 3)
        per = tensor.format.width // CHIP_BITS
        chips |= {chip for chip in range(DATA_CHIPS) if int(high) >> (CHIP_BITS * (chip % per)) & 15}
    return tuple(sorted(chips))


class Layout:
    """Tensors of a space in memory: where each begins, in 64-bit words.

    Attributes:
        words: of all.
    """

    def __init__(self, space: AddressSpace) -> None:
        self._space = space
        sizes = [tensor.size * tensor.format.dtype.itemsize for tensor in space.tensors]
        self._ends = np.cumsum([LINE * -(-size // (LINE * WORD // 8)) for size in sizes])
        self.words = int(self._ends[-1]) if len(sizes) else 0

    def by_tensor(self, address: np.ndarray) -> Iterator[tuple[int, slice, int]]:
        """For each tensor that some words (ascending) lie in: its index, these words, and its first word."""
        bounds = np.searchsorted(address, [0, *self._ends]).tolist()
        for index, (start, end) in enumerate(pairwise(bounds)):
            if end > start:
                yield index, slice(start, end), int(self._ends[index - 1]) if index else 0

    def place(self, part: AddressSpace, number: int) -> tuple[int, int, int]:
        """Address, chip and number in the chip of a bit, given by its number in a space of some of the tensors."""
        tensor, word, bit = (int(column[0]) for column in part.locate(np.array([number])))
        names, width = [one.name for one in self._space.tensors], part.tensors[tensor].format.width
        index = names.index(part.tensors[tensor].name)
        address, within = divmod(word * width + bit, WORD)
        return (int(self._ends[index - 1]) if index else 0) + address, *divmod(within, CHIP_BITS)

    def bits_of(self, part: AddressSpace, address: int, chip: int) -> int:
        """Which of a chip's 4 bits in a word are eligible in a space of some of the tensors."""
        index, word, mask = self.located(np.array([address]), np.array([15], np.uint8), chip)
        name = self._space.tensors[index[0]].name if len(index) else None
        masks = [bits.mask_of(word)[0] & mask[0] for bits in part.eligible if bits.tensor.name == name]
        return int(masks[0]) >> CHIP_BITS * chip % self._space.tensors[index[0]].format.width if masks else 0

    def located(self, address: np.ndarray, wrong: np.ndarray, chip: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tensor index, word and mask of the wrong bits of a chip, without empty masks; ascending as addresses are."""
        n, end = int(np.count_nonzero(wrong)), 0
        tensors, words, masks = np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.uint64)
        for index, entries, first in self.by_tensor(address):
            eligible = self._space.eligible[index]
            width = eligible.tensor.format.width
            per, shift = divmod(CHIP_BITS * chip, width)
            for start in range(entries.start, entries.stop, _BLOCK):
                block = slice(start, min(start + _BLOCK, entries.stop))
                hit = np.flatnonzero(wrong[block])
                word = (address[block][hit] - first) * (WORD // width) + per
                word = word[: np.searchsorted(word, eligible.tensor.size)]  # the tensor's last line may not be full
                mask = wrong[block][hit[: len(word)]].astype(np.uint64) << np.uint64(shift)
                if not eligible.everything or eligible.tensor.rows is not None or eligible.tensor.format.period > 1:
                    mask &= eligible.mask_of(word)
                    word, mask = word[mask != 0], mask[mask != 0]
                part = slice(end, end + len(word))
                tensors[part], words[part], masks[part] = index, word, mask
                end = part.stop
        return tensors[:end], words[:end], masks[:end]
