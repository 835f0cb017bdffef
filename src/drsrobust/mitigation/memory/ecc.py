"""Codes that correct one wrong bit and detect two.

Error-correcting memory: SECDED over the words as they lie in memory."""

from collections.abc import Mapping
from functools import cache, cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from drsrobust._environment import unknown
from drsrobust.injection import Target
from drsrobust.mitigation.memory.check_memory import CheckBits
from drsrobust.mitigation.memory.protected_words import (
    NOTHING,
    Area,
    Errors,
    aligned,
    distinct,
    joined,
    ones,
    to_blocks,
    to_words,
)
from drsrobust.mitigation.memory.storage import StorageProtection, Trial, Verdict

CLEAN, CORRECTED, UNCORRECTABLE = range(3)


class Decoded(NamedTuple):
    """What a decoder makes of code words.

    Attributes:
        words: uint64 [n], data bits, corrected.
        check: uint64 [n], check bits, corrected.
        status: uint8 [n]: CLEAN (0), CORRECTED (1) or UNCORRECTABLE (2; given back as it came). A decoder does not know that
            three and more errors looked like none or one.
    """

    words: np.ndarray
    check: np.ndarray
    status: np.ndarray


class SECDED:
    """A linear code with distance 4 over up to 64 data bits: one wrong bit of a code word is corrected, two are detected; of
    three and more, those that look like one are "corrected" into a fourth error, and those that look like none pass.

    M. Y. Hsiao, "A class of optimal minimum odd-weight-column SEC-DED codes", IBM J. Res. Dev. 14 (4), 1970: every data bit has
    a different column of odd weight (3 and more) in the parity check matrix, every check bit one of weight 1. A wrong word's
    syndrome is the sum of the columns of its wrong bits: odd after one error, even and not 0 after two. c check bits have
    2^(c-1) odd columns, so data_bits <= 2^(c-1) - c: (39,32), (72,64), (64,57). Columns of least weight come first, in
    ascending order, the last weight's so that the rows get equally many; any other choice corrects the same and differs in
    which triple errors are miscorrected.

    Args:
        data_bits: 1 to 64.

    Example:
        >>> code = SECDED(64)
        >>> word = np.array([0x3F800000_40490FDB], np.uint64)
        >>> check = code.encode(word)
        >>> hex(check[0]), code.decode(word ^ np.uint64(1 << 62), check).words == word
        ('0x10', array([ True]))
    """

    def __init__(self, data_bits: int) -> None:
        if isinstance(data_bits, bool) or not isinstance(data_bits, int | np.integer) or not 1 <= data_bits <= 64:
            raise ValueError(f"data_bits is {data_bits!r}; a code word has 1 to 64 data bits here")
        self.data_bits = int(data_bits)
        self.check_bits = next(c for c in range(3, 9) if self.data_bits <= 2 ** (c - 1) - c)

    @property
    def bits(self) -> int:
        """Of a code word."""
        return self.data_bits + self.check_bits

    @cached_property
    def columns(self) -> np.ndarray:
        """uint8 [bits]: the syndrome of each bit alone, of data bits from the lowest, then check bits from the lowest."""
        chosen: list[int] = []
        for weight in range(3, self.check_bits + 1, 2):
            left = sorted(sum(1 << row for row in rows) for rows in combinations(range(self.check_bits), weight))
            room = self.data_bits - len(chosen)
            if len(left) <= room:
                chosen += left
                continue
            for _ in range(room):
                chosen.append(min(left, key=lambda column: (self._fullest(chosen, column), column)))
                left.remove(chosen[-1])
        return np.array([*chosen, *(1 << row for row in range(self.check_bits))], np.uint8)

    def _fullest(self, chosen: list[int], column: int) -> list[int]:
        """How many ones each row would have with this column, from the fullest row."""
        return sorted((sum(c >> row & 1 for c in (*chosen, column)) for row in range(self.check_bits)), reverse=True)

    @cached_property
    def _by_byte(self) -> np.ndarray:
        """uint8 [8, 256]: the check bits of a word that holds nothing but one byte at one of its places."""
        table = np.zeros((8, 256), np.uint8)
        for bit, column in enumerate(self.columns[: self.data_bits]):
            table[bit // 8, np.arange(256) >> (bit % 8) & 1 == 1] ^= column
        return table

    @cached_property
    def _data_of(self) -> np.ndarray:
        """uint64 [256]: by syndrome, the data bit that it says is wrong."""
        found = np.zeros(256, np.uint64)
        found[self.columns[: self.data_bits]] = np.uint64(1) << np.arange(self.data_bits, dtype=np.uint64)
        return found

    @cached_property
    def _check_of(self) -> np.ndarray:
        """uint64 [256]: by syndrome, the check bit that it says is wrong."""
        found = np.zeros(256, np.uint64)
        found[self.columns[self.data_bits :]] = self.columns[self.data_bits :]
        return found

    @cached_property
    def _status_of(self) -> np.ndarray:
        """uint8 [256]: by syndrome, what the decoder says."""
        found = np.full(256, UNCORRECTABLE, np.uint8)
        found[self.columns] = CORRECTED
        found[0] = CLEAN
        return found

    def encode(self, words: np.ndarray) -> np.ndarray:
        """The check bits (uint64 [n]) of data bits uint64 [n].

        Raises:
            ValueError: a word has more bits than the code.
        """
        return self._encoded(words).astype(np.uint64)

    def _encoded(self, words: np.ndarray) -> np.ndarray:
        words = np.ascontiguousarray(words, np.uint64)
        if self.data_bits < 64 and (words >> np.uint64(self.data_bits)).any():
            raise ValueError(f"a word has more than {self.data_bits} bits")
        of_bytes = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
        check = np.zeros(len(words), np.uint8)
        for place in range(-(-self.data_bits // 8)):
            check ^= self._by_byte[place][of_bytes[:, place]]
        return check

    def decode(self, words: np.ndarray, check: np.ndarray) -> Decoded:
        """Corrects and detects. The code is linear: masks of wrong bits may stand for the words themselves, and then what is
        left of them comes back.

        Args:
            words: uint64 [n], data bits.
            check: [n], check bits.
        """
        check = np.asarray(check, np.uint64)
        if len(check) and int(check.max()) >> self.check_bits:
            raise ValueError(f"a code word has more than {self.check_bits} check bits")
        syndrome = self._encoded(words) ^ check.astype(np.uint8)
        data, own, status = (table.take(syndrome) for table in (self._data_of, self._check_of, self._status_of))
        data ^= words
        own ^= check
        return Decoded(data, own, status)

    def __repr__(self) -> str:
        return f"SECDED({self.bits},{self.data_bits})"


@cache
def secded(data_bits: int) -> SECDED:
    """The code over that many data bits, made once."""
    return SECDED(data_bits)


ACTIONS = ("keep", "zero", "restore")


class ECC(StorageProtection):
    """Memory with SECDED: (39,32) or (72,64), a Hsiao code (see `SECDED`), over the words of each tensor in memory order.

    A (72,64) word holds two float32, four bfloat16, eight bytes of a quantized row; a float64 fills two (39,32) words. The last
    code word of a tensor may be short: a correction that points behind its end is known to be wrong. Check bits take errors
    themselves (`check_bits`). A code word with 2 errors, and some with more, is detected as uncorrectable; others with 3 and
    more come out with a fourth error (miscorrected), or as they are (when the errors are a code word).

    P(2 and more of n bits wrong) = 1 - (1 - p)^n - n p (1 - p)^(n - 1): of (72,64) 2.6e-7, 2.5e-5, 2.4e-3, 0.16 at p = 1e-5 to
    1e-2. Stored bits: +12.5 % for (72,64), +21.9 % for (39,32).

    Args:
        data_bits: 64 or 32.
        uncorrectable: what is done with code words that are detected as uncorrectable: `"keep"` them as they are, `"zero"`
            their data bits, `"restore"` them from a golden copy (into sound memory, where bits are stuck).
        target: what is protected.

    `report` counts code words: `corrected`, `uncorrectable`, `miscorrected` (the decoder made a fourth error and thinks that
    all is well), `unnoticed` (errors that are a code word).

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> layer = nn.Linear(1000, 100)
        >>> drawn = dr.BitFlip(1e-3).sample(dr.resolve(layer), seed=1)
        >>> left, counts = ECC().report(drawn, layer, seed=1)
        >>> drawn.bits, left.bits, counts["uncorrectable"]
        (3160, 215, 122)
    """

    def __init__(self, data_bits: int = 64, uncorrectable: str = "keep", target: str | Target = "all") -> None:
        super().__init__(target)
        if data_bits not in (32, 64):
            raise ValueError(f"data_bits is {data_bits!r}; 32 makes (39,32), 64 makes (72,64)")
        if uncorrectable not in ACTIONS:
            raise unknown("action on uncorrectable errors", uncorrectable, ACTIONS)
        self.code, self.uncorrectable = secded(data_bits), uncorrectable
        then = "" if uncorrectable == "keep" else f", {uncorrectable}"
        self.name = f"SECDED ({self.code.bits},{data_bits}){then}{self.of_target()}"

    @property
    def label(self) -> str:
        return f"SECDED ({self.code.bits},{self.code.data_bits})"

    def settings(self) -> Any:
        return {**super().settings(), "data_bits": self.code.data_bits, "uncorrectable": self.uncorrectable}

    def words(self, area: Area, errors: Errors, beside: Mapping[str, Errors], trial: Trial) -> Verdict:
        size = self.code.data_bits
        blocks = to_blocks(errors, area.width, size)
        left, counts = decoded(self.code, blocks, beside.get(area.name, NOTHING), area.words * area.width)
        given_up = left.index[left.given_up]
        mask = left.mask
        if self.uncorrectable != "keep":
            mask = mask.copy()
            mask[left.given_up] = area.read_blocks(given_up, size) if self.uncorrectable == "zero" else 0
        noticed = counts["corrected"] + counts["uncorrectable"] + counts["miscorrected"] > 0
        unrepaired = counts["miscorrected"] > 0 or (counts["uncorrectable"] > 0 and self.uncorrectable != "restore")
        return Verdict(to_words(joined(left.index, mask), area.width, size), noticed, unrepaired, counts)

    def checks(self, area: Area) -> CheckBits:
        return CheckBits(-(-area.words * area.width // self.code.data_bits), self.code.check_bits)

    def units(self, area: Area, words: np.ndarray) -> np.ndarray:
        return blocks_of(words, area.width, self.code.data_bits)

    def content(self, area: Area, unit: np.ndarray) -> np.ndarray:
        return self.code.encode(area.read_blocks(unit, self.code.data_bits))


class Left(NamedTuple):
    """What a decoder left: masks uint64 [n] of the data bits of code words int64 [n], and which of these it gave up (bool)."""

    index: np.ndarray
    mask: np.ndarray
    given_up: np.ndarray


def decoded(code: SECDED, data: Errors, check: Errors, size: int) -> tuple[Left, dict[str, int]]:
    """Decodes the code words that errors hit.

    Args:
        code: the code.
        data, check: errors in their data and in their check bits, by code word.
        size: data bits of all code words; the last one may be short.
    """
    index, wrong, own = aligned(data, check)
    result = code.decode(wrong, own)
    last = np.flatnonzero(index == size // code.data_bits)  # there is one, if the last code word is short
    behind = last[(result.words[last] & ~ones(size % code.data_bits)) != 0]
    result.status[behind] = UNCORRECTABLE
    result.words[behind] = wrong[behind]
    given_up = result.status == UNCORRECTABLE
    corrected = result.status == CORRECTED
    # Check bits that are wrong by themselves do no harm; a decoder that was misled shows in the data or in them.
    misled = corrected & ((result.words | result.check) != 0)
    counts = {
        "corrected": int(corrected.sum() - misled.sum()),
        "uncorrectable": int(given_up.sum()),
        "miscorrected": int(misled.sum()),
        "unnoticed": int((result.status == 0).sum()),
    }
    return Left(index, result.words, given_up), counts


def blocks_of(words: np.ndarray, width: int, block: int) -> np.ndarray:
    """Which blocks of `block` bits some words of `width` bits (ascending numbers) lie in."""
    if width <= block:
        return distinct(words // (block // width))
    return (words[:, None] * (width // block) + np.arange(width // block)).ravel()
