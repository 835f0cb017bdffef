"""Error-correcting memory: SECDED codes, which correct one wrong bit and detect two, and `ECC`, memory that uses them."""

from collections.abc import Mapping
from functools import cache, cached_property
from itertools import combinations, count
from typing import Any, NamedTuple

import numpy as np

from drsrobust._arguments import check_whole, wrong
from drsrobust._choices import check_choice
from drsrobust.injection import Target
from drsrobust.mitigation.base import Screened
from drsrobust.mitigation.memory.base import DrawContext, StorageProtection
from drsrobust.mitigation.memory.check_bits import CheckBits
from drsrobust.mitigation.memory.protected_words import NO_ERRORS, Errors, ProtectedWords, units_of

CLEAN, CORRECTED, UNCORRECTABLE = range(3)
ACTIONS = ("keep", "zero", "restore")


class CodeWords(NamedTuple):
    """Code words after decoding.

    Attributes:
        words: uint64 [n], data bits.
        check: uint64 [n], check bits.
        status: uint8 [n]: CLEAN (0), CORRECTED (1) or UNCORRECTABLE (2; unchanged). Three and more errors can look like none or
            one.
    """

    words: np.ndarray
    check: np.ndarray
    status: np.ndarray


class SECDED:
    """A linear code with distance 4 over up to 64 data bits. It corrects one wrong bit of a code word and detects two; three
    and more that look like one are "corrected" into a fourth error, and others that look like none pass.

    M. Y. Hsiao, "A class of optimal minimum odd-weight-column SEC-DED codes", IBM J. Res. Dev. 14 (4), 1970: every data bit has
    a different column of odd weight (3 and more) in the parity check matrix, every check bit one of weight 1. The syndrome of a
    wrong word is the sum of the columns of its wrong bits: odd after one error, even and not 0 after two. c check bits have
    2^(c-1) odd columns, so data_bits <= 2^(c-1) - c: (39,32), (72,64), (64,57). Columns of least weight come first, in
    ascending order; of the last weight they are chosen so that rows get equally many. Another choice corrects the same and
    differs in which triple errors are miscorrected.

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
        self.data_bits = check_whole("data_bits", data_bits, 1, 64)
        self.check_bits = next(c for c in count(3) if self.data_bits <= 2 ** (c - 1) - c)
        self.bits = self.data_bits + self.check_bits

    @cached_property
    def columns(self) -> np.ndarray:
        """The syndrome of each single bit (uint8 [bits]), of data bits from the lowest, then of check bits from the lowest."""
        columns: list[int] = []
        weight = 1
        while missing := self.data_bits - len(columns):
            weight += 2
            free = sorted(sum(1 << row for row in rows) for rows in combinations(range(self.check_bits), weight))
            if len(free) <= missing:
                columns += free
                continue
            for _ in range(missing):
                columns.append(min(free, key=lambda column: (self._row_weights(columns, column), column)))
                free.remove(columns[-1])
        return np.array([*columns, *(1 << row for row in range(self.check_bits))], np.uint8)

    def _row_weights(self, columns: list[int], column: int) -> list[int]:
        """How many ones each row would have with one more column, from the fullest row."""
        return sorted((sum(c >> row & 1 for c in (*columns, column)) for row in range(self.check_bits)), reverse=True)

    @cached_property
    def _by_byte(self) -> np.ndarray:
        """uint8 [bytes of the data, 256]: the check bits of a word with a single byte, by place and value."""
        table = np.zeros((-(-self.data_bits // 8), 256), np.uint8)
        for bit, column in enumerate(self.columns[: self.data_bits]):
            table[bit // 8, np.arange(256) >> (bit % 8) & 1 == 1] ^= column
        return table

    @cached_property
    def _by_syndrome(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The wrong data bit and check bit (masks, uint64 [256] each) and the status (uint8 [256])."""
        data, check = np.zeros((2, 256), np.uint64)
        data[self.columns[: self.data_bits]] = np.uint64(1) << np.arange(self.data_bits, dtype=np.uint64)
        check[self.columns[self.data_bits :]] = self.columns[self.data_bits :]
        status = np.full(len(data), UNCORRECTABLE, np.uint8)
        status[self.columns] = CORRECTED
        status[0] = CLEAN
        return data, check, status

    def encode(self, words: np.ndarray) -> np.ndarray:
        """The check bits (uint64 [n]) of data bits uint64 [n].

        Raises:
            ValueError: a word has more bits than the code.
        """
        words = np.ascontiguousarray(words, np.uint64)
        if (words >> np.uint64(self.data_bits)).any():
            raise ValueError(f"a word has more than {self.data_bits} bits")
        of_bytes = words.astype("<u8", copy=False).view(np.uint8).reshape(len(words), 8)
        check = np.zeros(len(words), np.uint8)
        for place, of_byte in enumerate(self._by_byte):
            check ^= of_byte[of_bytes[:, place]]
        return check.astype(np.uint64)

    def decode(self, words: np.ndarray, check: np.ndarray) -> CodeWords:
        """Corrects and detects. The code is linear: given masks of wrong bits in place of words, it returns the masks that
        remain.

        Args:
            words: uint64 [n], data bits.
            check: [n], check bits.
        """
        check = np.asarray(check, np.uint64)
        if (check >> np.uint64(self.check_bits)).any():
            raise ValueError(f"a code word has more than {self.check_bits} check bits")
        syndrome = (self.encode(words) ^ check).astype(np.uint8)
        data, check_flips, status = (table.take(syndrome) for table in self._by_syndrome)
        data ^= words
        check_flips ^= check
        return CodeWords(data, check_flips, status)

    def __repr__(self) -> str:
        return f"SECDED({self.bits},{self.data_bits})"


secded = cache(SECDED)


class DecodedBlocks(NamedTuple):
    """Code words that errors hit, after decoding.

    Attributes:
        index, mask: int64 [n], code words, and uint64 [n], wrong data bits that remain (may be 0).
        given_up: bool [n], which were detected as uncorrectable.
        counts: of `corrected`, `uncorrectable`, `miscorrected` and `unnoticed` code words.
    """

    index: np.ndarray
    mask: np.ndarray
    given_up: np.ndarray
    counts: dict[str, int]

    @staticmethod
    def counted(status: np.ndarray, wrong: np.ndarray) -> dict[str, int]:
        """`counts` of code words.

        Args:
            status: of each.
            wrong: bool [n], whether data or check bits of it are wrong after decoding; a corrected one was miscorrected then.
        """
        corrected = status == CORRECTED
        return {
            "corrected": int(np.count_nonzero(corrected & ~wrong)),
            "uncorrectable": int(np.count_nonzero(status == UNCORRECTABLE)),
            "miscorrected": int(np.count_nonzero(corrected & wrong)),
            "unnoticed": int(np.count_nonzero(status == CLEAN)),
        }

    def result(self, errors: Errors, uncorrectable: str = "keep") -> Screened:
        """The errors that remain, with what the decoder detected."""
        detected = any(self.counts[name] for name in ("corrected", "uncorrectable", "miscorrected"))
        lost = self.counts["uncorrectable"] if uncorrectable != "restore" else 0
        stopped = uncorrectable == "keep" and lost > 0
        return Screened(errors, detected, not (self.counts["miscorrected"] or lost), stopped, self.counts)


def decode_errors(code: SECDED, data: Errors, check: Errors, size: int | np.ndarray) -> DecodedBlocks:
    """Decodes the code words that errors hit.

    Args:
        code: the code.
        data, check: errors in data bits and in check bits, by code word.
        size: data bits of all code words; the last one may be short. Of several tensors where each one's end (int64 [n]).
    """
    index, wrong, check_errors = Errors.aligned(data, check)
    result = code.decode(wrong, check_errors)
    ends = np.atleast_1d(size)
    short = ends // code.data_bits  # the short last code words
    last = index.searchsorted(short)
    is_hit = np.append(index, -1)[last] == short
    if is_hit.any():
        last, rest = last[is_hit], (ends[is_hit] % code.data_bits).astype(np.uint64)
        past_end = last[result.words[last] >> rest != 0]
        result.status[past_end] = UNCORRECTABLE
        result.words[past_end] = wrong[past_end]
    counts = DecodedBlocks.counted(result.status, (result.words | result.check) != 0)
    return DecodedBlocks(index, result.words, result.status == UNCORRECTABLE, counts)


class ECC(StorageProtection):
    """Memory with SECDED: (39,32) or (72,64), a Hsiao code (see `SECDED`), over the words of each tensor in memory order.

    A (72,64) word holds two float32, four bfloat16 or eight bytes of a quantized row; a float64 fills two (39,32) words. The
    last code word of a tensor may be short: a correction beyond its end counts as uncorrectable. Check bits take errors too
    (`check_bits`). A code word with 2 errors, and some with more, is detected as uncorrectable; others with 3 and more get a
    fourth error (miscorrected) or pass (if the errors form a code word).

    P(2 and more of n bits wrong) = 1 - (1 - p)^n - n p (1 - p)^(n - 1): of (72,64) 2.6e-7, 2.5e-5, 2.4e-3, 0.16 at p = 1e-5 to
    1e-2. Stored bits: +12.5 % for (72,64), +21.9 % for (39,32).

    Args:
        data_bits: 64 or 32.
        uncorrectable: what happens to uncorrectable code words: `"keep"` leaves them, `"zero"` sets their data bits to 0,
            `"restore"` loads them from a golden copy (into sound memory, where bits are stuck).
        target: protected tensors.

    `counts` of `screen`, of code words: `corrected`, `uncorrectable`, `miscorrected`, `unnoticed` (errors that form a code
    word).

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> layer = nn.Linear(1000, 100)
        >>> space = dr.resolve(layer)
        >>> drawn = dr.BitFlip(1e-3).sample(space, seed=1)
        >>> screened = ECC().screen(drawn, space, seed=1)
        >>> drawn.bits, screened.remaining.bits, screened.counts["uncorrectable"]
        (3246, 212, 112)
    """

    corrects_mode = "bit"

    def __init__(self, data_bits: int = 64, uncorrectable: str = "keep", target: str | Target = "all") -> None:
        super().__init__(target)
        if check_whole("data_bits", data_bits) not in (32, 64):
            raise wrong("data_bits", "32 for (39,32) or 64 for (72,64)", data_bits)
        check_choice("action on uncorrectable errors", uncorrectable, ACTIONS)
        self.code, self.uncorrectable = secded(data_bits), uncorrectable
        action = "" if uncorrectable == "keep" else f", {uncorrectable}"
        self.name = f"{self.label}{action}{self.target_suffix()}"

    @property
    def label(self) -> str:
        return f"SECDED ({self.code.bits},{self.code.data_bits})"

    def settings(self) -> Any:
        return {**super().settings(), "data_bits": self.code.data_bits, "uncorrectable": self.uncorrectable}

    def decode(
        self, protected: ProtectedWords, errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Screened:
        size = self.code.data_bits
        data, check = errors.regrouped(protected.width, size), stored.get(protected.name, NO_ERRORS)
        blocks = decode_errors(self.code, data, check, protected.ends * protected.width)
        mask = blocks.mask
        if self.uncorrectable != "keep":
            mask = mask.copy()
            given_up = blocks.index[blocks.given_up]
            mask[blocks.given_up] = protected.read_blocks(given_up, size) if self.uncorrectable == "zero" else 0
        return blocks.result(Errors.merged(blocks.index, mask).regrouped(size, protected.width), self.uncorrectable)

    def together(self, protected: ProtectedWords) -> Any:
        return protected.format

    def check_bits(self, protected: ProtectedWords) -> CheckBits:
        return CheckBits(-(-protected.words * protected.width // self.code.data_bits), self.code.check_bits)

    def units(self, protected: ProtectedWords, words: np.ndarray) -> np.ndarray:
        return units_of(words, protected.width, self.code.data_bits)
