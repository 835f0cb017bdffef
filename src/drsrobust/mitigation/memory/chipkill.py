"""Chipkill: a symbol code that corrects whatever one chip of a memory returns."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from drsrobust._environment import check_choice
from drsrobust.injection import Target
from drsrobust.injection.memory_faults import CHIP_BITS, CHIPS, DATA_CHIPS, WORD
from drsrobust.mitigation.memory.check_memory import BITS, CheckBits
from drsrobust.mitigation.memory.ecc import ACTIONS, CLEAN, CORRECTED, UNCORRECTABLE, DecodedBlocks
from drsrobust.mitigation.memory.protected_words import (
    NO_ERRORS,
    Errors,
    ProtectedWords,
    align,
    distinct,
    merge,
    regroup,
    units_of,
)
from drsrobust.mitigation.memory.storage import Decoded, DrawContext, StorageProtection

_POLYNOMIAL = 0x11D  # of GF(256), with the generator 2
_NIBBLE = np.uint64(15)


@cache
def _logarithms() -> tuple[np.ndarray, np.ndarray]:
    """Powers of the generator of GF(256), uint8 [510], and logarithms, int64 [256] (of 0: 0, not to be used)."""
    powers, logs = np.zeros(510, np.uint8), np.zeros(256, np.int64)
    value = 1
    for power in range(255):
        powers[power] = powers[power + 255] = value
        logs[value] = power
        value = value << 1 ^ (_POLYNOMIAL if value & 0x80 else 0)
    return powers, logs


def multiply(symbols: np.ndarray, power: int) -> np.ndarray:
    """Symbols uint8 [n] times the generator of GF(256) to a power."""
    powers, logs = _logarithms()
    return np.where(symbols == 0, np.uint8(0), powers[logs[symbols] + power % 255])


class Chipkill(StorageProtection):
    """Memory with the Reed-Solomon code RS(18,16) over GF(256), over chips of 4 bits (`injection.memory_faults`).

    A code word is two neighbouring 64-bit words; a symbol is the 8 bits that one of the 18 chips holds of them. With the
    syndromes S0 = sum e_j and S1 = sum e_j g^j of the wrong symbols e_j of chips j, one wrong symbol lies at
    j = log S1 - log S0 and is corrected, however many of its bits are wrong. Of two wrong symbols 16 of 255 pairs look like one
    and are "corrected" into a third; the others are detected. Stored bits: +12.5 %. The last code word of a tensor may be
    short: a correction beyond its end counts as uncorrectable.

    Args:
        uncorrectable, target: as of `ECC`.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> layer = nn.Linear(1000, 100)
        >>> drawn = dr.MemoryFault("bank").sample(dr.resolve(layer), seed=3)
        >>> drawn.bits > 10_000, Chipkill().report(drawn, layer, seed=3).remaining.bits
        (True, 0)
    """

    def __init__(self, uncorrectable: str = "keep", target: str | Target = "all") -> None:
        super().__init__(target)
        check_choice("action on uncorrectable errors", uncorrectable, ACTIONS)
        self.uncorrectable = uncorrectable
        self.name = f"{self.label}{'' if uncorrectable == 'keep' else f', {uncorrectable}'}{self.target_suffix()}"

    @property
    def label(self) -> str:
        return "chipkill RS(18,16)"

    def settings(self) -> Any:
        return {**super().settings(), "uncorrectable": self.uncorrectable}

    def decode(
        self, protected: ProtectedWords, errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Decoded:
        words, wrong, own = align(regroup(errors, protected.width, WORD), stored.get(protected.name, NO_ERRORS))
        pairs = distinct(words // 2)
        data, check = np.zeros((2, len(pairs), 2), np.uint64)
        place = np.searchsorted(pairs, words // 2)
        data[place, words % 2], check[place, words % 2] = wrong, own
        left, left_check, status = decode_pairs(data, check)
        size = protected.words * protected.width
        beyond = ((2 * pairs[:, None] + np.arange(2)) * WORD >= size) & (left != 0)
        if size % WORD:
            beyond |= ((2 * pairs[:, None] + np.arange(2)) == size // WORD) & (left >> np.uint64(size % WORD) != 0)
        changed = beyond.any(axis=1) & (status == CORRECTED)
        status[changed], left[changed] = UNCORRECTABLE, data[changed]
        misled = (status == CORRECTED) & ((left | left_check) != 0).any(axis=1)
        given_up = status == UNCORRECTABLE
        counts = {
            "corrected": int((status == CORRECTED).sum() - misled.sum()),
            "uncorrectable": int(given_up.sum()),
            "miscorrected": int(misled.sum()),
            "unnoticed": int((status == CLEAN).sum()),
        }
        index = (2 * pairs[:, None] + np.arange(2)).ravel()
        if self.uncorrectable != "keep":
            lost = index[np.repeat(given_up, 2)]
            left[given_up] = 0
            if self.uncorrectable == "zero":
                left[given_up] = protected.read_blocks(lost, WORD).reshape(-1, 2)
        blocks = DecodedBlocks(index, left.ravel(), np.repeat(given_up, 2), counts)
        return blocks.result(regroup(merge(blocks.index, blocks.mask), WORD, protected.width), self.uncorrectable)

    def check_bits(self, protected: ProtectedWords) -> CheckBits:
        return CheckBits(-(-protected.words * protected.width // WORD), BITS)

    def units(self, protected: ProtectedWords, words: np.ndarray) -> np.ndarray:
        return units_of(words, protected.width, WORD)

    def content(self, protected: ProtectedWords, unit: np.ndarray) -> np.ndarray:
        pairs = np.stack([protected.read_blocks(unit // 2 * 2 + half, WORD) for half in (0, 1)], axis=1)
        first, second = syndromes(pairs, np.zeros_like(pairs))
        powers, logs = _logarithms()
        rest = second ^ multiply(first, DATA_CHIPS)  # = c17 (g^16 + g^17)
        last = multiply(rest, -int(logs[powers[DATA_CHIPS] ^ powers[DATA_CHIPS + 1]]))
        shift = (CHIP_BITS * (unit % 2)).astype(np.uint64)
        nibbles = [(symbol.astype(np.uint64) >> shift) & _NIBBLE for symbol in (first ^ last, last)]
        return nibbles[0] | nibbles[1] << np.uint64(CHIP_BITS)


def syndromes(data: np.ndarray, check: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """S0 and S1 (uint8 [n]) of code words.

    Args:
        data, check: uint64 [n, 2], the 64 data bits and 8 check bits of both words.
    """
    first, second = np.zeros((2, len(data)), np.uint8)
    for chip in range(CHIPS):
        symbol = _symbols(data, check, chip)
        if symbol.any():
            first ^= symbol
            second ^= multiply(symbol, chip)
    return first, second


def decode_pairs(data: np.ndarray, check: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What remains of wrong bits after decoding, and the status of each code word.

    Args:
        data, check: uint64 [n, 2], as of `syndromes`; XOR masks, since the code is linear.

    Returns:
        data and check masks that remain, and uint8 [n]: CLEAN, CORRECTED or UNCORRECTABLE (unchanged).
    """
    first, second = syndromes(data, check)
    _, logs = _logarithms()
    chip = (logs[second] - logs[first]) % 255
    status = np.full(len(data), UNCORRECTABLE, np.uint8)
    status[(first | second) == 0] = CLEAN
    status[(first != 0) & (second != 0) & (chip < CHIPS)] = CORRECTED
    data, check = data.copy(), check.copy()
    for number in range(CHIPS):
        found = np.flatnonzero((status == CORRECTED) & (chip == number))
        if len(found):
            halves = np.stack((first[found] & 15, first[found] >> 4), axis=1).astype(np.uint64)
            target = data if number < DATA_CHIPS else check
            target[found] ^= halves << np.uint64(CHIP_BITS * (number % DATA_CHIPS))
    return data, check, status


def _symbols(data: np.ndarray, check: np.ndarray, chip: int) -> np.ndarray:
    """The 8 bits (uint8 [n]) of a chip in code words."""
    held = data if chip < DATA_CHIPS else check
    nibbles = (held >> np.uint64(CHIP_BITS * (chip % DATA_CHIPS))) & _NIBBLE
    return (nibbles[:, 0] | nibbles[:, 1] << np.uint64(CHIP_BITS)).astype(np.uint8)
