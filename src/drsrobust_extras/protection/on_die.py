"""ECC inside of each DRAM chip, which corrects one wrong bit of 128 and does not report what it cannot correct."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drsrobust.extend import CheckBits, Errors, ProtectedWords, bit_mask, check_whole, distinct, units_of
from drsrobust.injection import Target
from drsrobust.mitigation import NO_ERRORS, DrawContext, Screened, StorageProtection
from drsrobust_extras.protection.block_codes import LinearCode
from drsrobust_extras.protection.memory_map import CHIP_BITS, DATA_CHIPS, LINE, WORD

WORDS = 32  # 64-bit words with 128 bits in each chip
_CHECK_BITS = 8
# Columns of a Hamming code (136,128): those of check bits have one 1, those of data more. Vendors' matrices are not published.
CODE_COLUMNS = np.array([column for column in range(256) if column.bit_count() > 1][: WORDS * CHIP_BITS], np.uint8)


class OnDieECC(StorageProtection):
    """A single-error-correcting code (136,128) inside of each of the 16 data chips, over 32 neighbouring words of a bank.

    It corrects one wrong bit of a code word. Several wrong bits look like one in 128 of 255 syndromes of data; then one more
    bit of the chip flips. Of double errors these are .17 to .88, by the columns (`dr.mitigation.miscorrected`): .88 with those
    of None, numbers in order. It reports nothing. Its check bits take errors as those of other codes; `MemoryFault` leaves them
    as they are, which changes nothing where all bits of a code word are wrong at random. Stored bits: +6.25 %.

    Args:
        banks: how many banks neighbouring lines lie in by turns: those of `Geometry(mapping="spread")`; 1: in order.
        target: protected tensors.
        columns: 128 of the parity check matrix, as of `LinearCode`, as `random_columns(128, 8, seed=0)` gives them. Vendors'
            own are not published.

    Raises:
        ValueError: columns of another number, or that `LinearCode` refuses.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> table = nn.Embedding(1000, 16)
        >>> space = dr.resolve(table)
        >>> maps = [dr.MemoryFault(mode).sample(space, seed=2) for mode in ("bit", "row")]
        >>> left = [OnDieECC().screen(error_map, space, seed=2).remaining for error_map in maps]
        >>> list(map(len, left)), list(map(len, maps))
        ([0, 1926], [1, 1924])
    """

    detects = False
    corrects_mode, spread = "bit", "chip"

    def __init__(self, banks: int = 1, target: str | Target = "all", columns: Sequence[int] | None = None) -> None:
        super().__init__(target)
        self.banks = check_whole("banks", banks, 1)
        self.code = LinearCode(CODE_COLUMNS.tolist() if columns is None else columns, _CHECK_BITS, name="SEC")
        if self.code.data_bits != WORDS * CHIP_BITS:
            raise ValueError(f"columns has {self.code.data_bits} numbers; it must have {WORDS * CHIP_BITS}")
        self._own = columns is not None
        of_data = self.code.columns[: self.code.data_bits].astype(np.uint8)
        self._bit_of = np.full(256, -1)  # syndrome -> data bit to flip
        self._bit_of[of_data] = np.arange(len(of_data))
        is_set = (np.arange(16)[:, None] >> np.arange(CHIP_BITS)) & 1 == 1
        # Of the 4 bits that a chip holds of a word, by the word's place.
        self._syndromes = np.bitwise_xor.reduce(
            np.where(is_set, of_data.reshape(-1, 1, CHIP_BITS), np.uint8(0)), axis=2
        )
        self.name = f"on-die ECC{'' if banks == 1 else f', {banks} banks'}{self.target_suffix()}"

    @property
    def label(self) -> str:
        return "on-die ECC"

    def settings(self) -> Any:
        own = {"columns": self.code.columns.tolist()} if self._own else {}
        return {**super().settings(), "banks": self.banks, **own}

    def decode(
        self, protected: ProtectedWords, errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Screened:
        words, wrong = errors.regrouped(protected.width, WORD)
        check = stored.get(protected.name, NO_ERRORS)
        block, place = self._places(words)
        flips = [Errors(words, wrong)]
        for chip in range(DATA_CHIPS):
            nibble = ((wrong >> np.uint64(CHIP_BITS * chip)) & np.uint64(15)).astype(np.int64)
            hit, of_chip = np.flatnonzero(nibble), check.index % DATA_CHIPS == chip
            syndrome = np.append(self._syndromes[place[hit], nibble[hit]], check.mask[of_chip].astype(np.uint8))
            unit, syndrome = Errors.merged(
                np.append(block[hit], check.index[of_chip] // DATA_CHIPS), syndrome, np.bitwise_xor
            )
            bit = self._bit_of[syndrome]
            word = self._word(unit, np.maximum(bit, 0) // CHIP_BITS)
            in_word = bit % CHIP_BITS + CHIP_BITS * chip
            # Else a check bit, none, or one after the last word of the tensor.
            is_data = (bit >= 0) & (word * WORD + in_word < protected.words * protected.width)
            if is_data.any():
                flips.append(Errors.merged(word[is_data], bit_mask(in_word[is_data])))
        index, *masks = Errors.aligned(*flips)
        remaining = np.bitwise_xor.reduce(masks)
        return Screened(Errors.merged(index, remaining).regrouped(WORD, protected.width))

    def check_bits(self, protected: ProtectedWords) -> CheckBits:
        lines = -(-protected.words * protected.width // (LINE * WORD))
        return CheckBits(-(-lines // (4 * self.banks)) * self.banks * DATA_CHIPS, _CHECK_BITS)

    def units(self, protected: ProtectedWords, words: np.ndarray) -> np.ndarray:
        block = distinct(np.sort(self._places(units_of(words, protected.width, WORD))[0]))
        return (block[:, None] * DATA_CHIPS + np.arange(DATA_CHIPS)).ravel()

    def _places(self, word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The code word of 64-bit words (the same number in all chips), and their place in it."""
        line, within = np.divmod(word, LINE)
        group, line = np.divmod(line, 4 * self.banks)
        return group * self.banks + line % self.banks, line // self.banks * LINE + within

    def _word(self, block: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The reverse of `_places`."""
        group, bank = np.divmod(block, self.banks)
        return ((group * 4 + place // LINE) * self.banks + bank) * LINE + place % LINE
