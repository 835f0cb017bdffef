"""Codes of memory over blocks of 16, 32 or 64 bytes: parity, CRC, SEC, SEC-DED and symbol codes, as `BlockCode` uses them.

A code is its columns: the syndrome of wrong bits is the sum of theirs. Vendors' parity check matrices are not published, so
columns are arguments; `miscorrected` counts what depends on them.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations, groupby
from typing import Any, Protocol

import numpy as np

from drsrobust.extend import (
    CheckBits,
    DecodedBlocks,
    Errors,
    ProtectedWords,
    check_choice,
    check_whole,
    distinct,
    units_of,
    wrong,
)
from drsrobust.injection import Target
from drsrobust.mitigation import (
    ACTIONS,
    CLEAN,
    CORRECTED,
    NO_ERRORS,
    UNCORRECTABLE,
    DrawContext,
    Screened,
    StorageProtection,
)
from drsrobust_extras.protection.symbol_code import symbol_code

_WORD = 64
_MOST_CHECK_BITS = 16  # of a linear code, whose syndromes are a table


class Code(Protocol):
    """What `BlockCode` asks of a code: sizes, a name, and what it makes of wrong bits."""

    name: str
    data_bits: int
    check_bits: int

    def settings(self) -> Any:
        """All that decides what it decodes, of JSON types: `BlockCode` with equal ones are the same."""

    def decode(self, data: np.ndarray, check: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Wrong bits of data (uint64 [n, words]) and of check bits (uint64 [n]) after decoding, and the status of each block:
        CLEAN, CORRECTED or UNCORRECTABLE (unchanged)."""


class LinearCode:
    """A code over bits, given by the columns of its parity check matrix; those of check bits have one 1.

    Args:
        columns: of the data bits: different numbers under 2^check_bits, not 0.
        check_bits: up to 16.
        corrects: whether a syndrome that is a column flips that bit; else all but 0 is detected alone.
        name: of the code.

    Raises:
        ValueError: columns that are 0, over the check bits, or, of a code that corrects, equal to each other or to those of
            check bits; another number of check bits.

    Example:
        >>> code = LinearCode(odd_columns(256, 16), 16, name="SEC-DED")
        >>> code.bits, code.passes
        (272, 0.0041656494140625)
    """

    def __init__(
        self, columns: Sequence[int], check_bits: int, *, corrects: bool = True, name: str = "linear code"
    ) -> None:
        self.check_bits = check_whole("check_bits", check_bits, 1, _MOST_CHECK_BITS)
        data = [check_whole("each of columns", column, 1, 2**check_bits - 1) for column in columns]
        self.data_bits, self.corrects, self.name = (
            len(data),
            bool(corrects),
            f"{name} ({len(data) + check_bits},{len(data)})",
        )
        self.columns = np.array([*data, *(1 << bit for bit in range(check_bits))], np.uint16)
        if corrects and len(np.unique(self.columns)) < len(self.columns):
            raise ValueError(
                "columns holds a column twice; those of a code that corrects must differ, also from 1, 2, 4, ..."
            )
        self._bit_of = np.full(2**check_bits, -1)
        if corrects:
            self._bit_of[self.columns] = np.arange(len(self.columns))

    @property
    def bits(self) -> int:
        """Of a code word."""
        return len(self.columns)

    def settings(self) -> Any:
        return {"code": self.name, "columns": self.columns.tolist(), "corrects": self.corrects}

    @property
    def passes(self) -> float:
        """The share of code words with random bits that it does not report as uncorrectable: syndromes that are 0 or a
        column."""
        return (1 + int(np.count_nonzero(self._bit_of >= 0))) / len(self._bit_of)

    @cached_property
    def _by_byte(self) -> np.ndarray:
        """The syndrome of each value of each byte of data: uint16 [bytes, 256]."""
        columns = np.zeros(-(-self.data_bits // 8) * 8, np.uint16)
        columns[: self.data_bits] = self.columns[: self.data_bits]
        is_set = (np.arange(256)[:, None] >> np.arange(8)) & 1 == 1
        return np.bitwise_xor.reduce(np.where(is_set, columns.reshape(-1, 1, 8), np.uint16(0)), axis=2)

    def syndrome(self, data: np.ndarray, check: np.ndarray) -> np.ndarray:
        """The syndromes (uint16 [n]) of wrong bits of data (uint64 [n, words]) and of check bits (uint64 [n])."""
        syndrome = check.astype(np.uint16)
        of_bytes = (
            np.ascontiguousarray(data.astype("<u8", copy=False)).view(np.uint8).reshape(len(data), 8 * data.shape[1])
        )
        for place, table in enumerate(self._by_byte):
            syndrome ^= table[of_bytes[:, place]]
        return syndrome

    def decode(self, data: np.ndarray, check: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As of `Code`."""
        syndrome = self.syndrome(data, check)
        data, check, bit = data.copy(), check.copy(), self._bit_of[syndrome]
        status = np.where(syndrome == 0, CLEAN, np.where(bit >= 0, CORRECTED, UNCORRECTABLE)).astype(np.uint8)
        of_data = np.flatnonzero((bit >= 0) & (bit < self.data_bits))
        data[of_data, bit[of_data] // _WORD] ^= np.uint64(1) << (bit[of_data] % _WORD).astype(np.uint64)
        of_check = np.flatnonzero(bit >= self.data_bits)
        check[of_check] ^= np.uint64(1) << (bit[of_check] - self.data_bits).astype(np.uint64)
        return data, check, status


class SymbolBlocks:
    """A Reed-Solomon code with two check symbols over the symbols of a block, which corrects one wrong symbol.

    Args:
        symbols: for each data symbol the pieces that it is made of, from its lowest bits: (word of the block, lowest bit).
        piece: bits of a piece.
        bits: of a symbol, 8 or 16.
        name: of the code.

    Example:
        >>> code = SymbolBlocks.in_order(256, 16)
        >>> code.name, round(code.pairs_that_pass, 5)
        ('RS(18,16) over 16 bits', 0.00024)
    """

    def __init__(self, symbols: Sequence[Sequence[tuple[int, int]]], piece: int, bits: int, name: str = "RS") -> None:
        self._symbols, self._piece, self._bits = symbols, piece, bits
        self._code = symbol_code(len(symbols) + 2, bits)
        self.data_bits, self.check_bits = len(symbols) * bits, 2 * bits
        self.name = f"{name}({self._code.symbols},{len(symbols)}) over {bits} bits"

    def settings(self) -> Any:
        return {
            "code": self.name,
            "symbols": [[[*part] for part in one] for one in self._symbols],
            "piece": self._piece,
        }

    @classmethod
    def in_order(cls, data_bits: int, bits: int) -> "SymbolBlocks":
        """Neighbouring bits as symbols.

        Raises:
            ValueError: bits that do not divide the data bits, or that no code has.
        """
        places = range(0, check_whole("data_bits", data_bits, 1), check_whole("bits", bits, 1))
        if data_bits % bits:
            raise ValueError(f"data_bits is {data_bits}; it must be a multiple of the {bits} bits of a symbol")
        return cls([[divmod(place, _WORD)] for place in places], bits, bits)

    @property
    def pairs_that_pass(self) -> float:
        """The share of pairs of wrong symbols that look like one."""
        return (self._code.symbols - 2) / (2**self._bits - 1)

    def decode(self, data: np.ndarray, check: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As of `Code`."""
        low, kind = np.uint64(2**self._piece - 1), self._code.dtype
        symbols = [
            sum(
                (data[:, word] >> np.uint64(bit) & low) << np.uint64(self._piece * place)
                for place, (word, bit) in enumerate(one)
            )
            for one in self._symbols
        ]
        symbols += [check >> np.uint64(half * self._bits) & np.uint64(2**self._bits - 1) for half in (0, 1)]
        first, second = self._code.syndromes([symbol.astype(kind) for symbol in symbols])
        place, status = self._code.locate(first, second)
        data, check, fixed = data.copy(), check.copy(), status == CORRECTED
        for number in distinct(np.sort(place[fixed])):
            hit = np.flatnonzero(fixed & (place == number))
            wrong = first[hit].astype(np.uint64)
            if number >= len(self._symbols):
                check[hit] ^= wrong << np.uint64((number - len(self._symbols)) * self._bits)
                continue
            for part, (word, bit) in enumerate(self._symbols[number]):
                data[hit, word] ^= (wrong >> np.uint64(self._piece * part) & low) << np.uint64(bit)
        return data, check, status


class BlockCode(StorageProtection):
    """Memory with a code over blocks, in memory order within each tensor, on a die, on a link or of a system.

    Errors that it detects and cannot correct stay (`"keep"`: the host stops), become 0, or are read again from a sound copy
    (`"restore"`). A second read is that for errors of a link; wrong cells it reads again as they are, which is `"keep"`. The
    last block of a tensor may be short: a correction beyond its end counts as uncorrectable. Check bits take errors as those of
    other codes; `MemoryFault` leaves them as they are, but for codes with 8 for each 64 bits of data, as its check chips hold.
    That changes nothing where all bits of a block are wrong at random (and sums of the columns of data give all syndromes).

    Args:
        code: as `LinearCode`, `crc`, `parity` or `SymbolBlocks` make it, over 32 data bits or a multiple of 64.
        uncorrectable: `"keep"`, `"zero"` or `"restore"`.
        target: protected tensors.

    `counts` of `screen`, of blocks: as of `ECC`.

    Raises:
        ValueError: a code of another size, another action.

    Example:
        >>> import drsrobust as dr
        >>> from torch import nn
        >>> space, links = dr.resolve(nn.Linear(1000, 100)), BlockCode(crc(0x1021, 16, 256), uncorrectable="restore")
        >>> drawn = dr.BitFlip(1e-3).sample(space, seed=1)
        >>> drawn.bits, links.screen(drawn, space, seed=1).remaining.bits
        (3246, 0)
    """

    def __init__(self, code: Code, uncorrectable: str = "keep", target: str | Target = "all") -> None:
        super().__init__(target)
        check_choice("action on uncorrectable errors", uncorrectable, ACTIONS)
        if not hasattr(code, "data_bits"):
            raise wrong("code", "a code, as LinearCode, crc, parity or SymbolBlocks make it", code)
        if code.data_bits != 32 and (code.data_bits % _WORD or not code.data_bits):
            raise ValueError(f"code has {code.data_bits} data bits; it must have 32 or a multiple of {_WORD}")
        self.code, self.uncorrectable = code, uncorrectable
        self._width = min(code.data_bits, _WORD)
        self.name = f"{self.label}{'' if uncorrectable == 'keep' else f', {uncorrectable}'}{self.target_suffix()}"

    @property
    def label(self) -> str:
        return self.code.name

    def settings(self) -> Any:
        return {**super().settings(), "code": self.code.settings(), "uncorrectable": self.uncorrectable}

    def decode(
        self, protected: ProtectedWords, errors: Errors, stored: Mapping[str, Errors], trial: DrawContext
    ) -> Screened:
        words, wrong = errors.regrouped(protected.width, self._width)
        check_errors, per = stored.get(protected.name, NO_ERRORS), self.code.data_bits // self._width
        block = distinct(np.sort(np.append(words // per, check_errors.index)))
        data, check = np.zeros((len(block), per), np.uint64), np.zeros(len(block), np.uint64)
        data[np.searchsorted(block, words // per), words % per] = wrong
        check[np.searchsorted(block, check_errors.index)] = check_errors.mask
        remaining, left_check, status = self.code.decode(data, check)
        index = block[:, None] * per + np.arange(per)
        last, bits = divmod(protected.words * protected.width, self._width)
        beyond = ((index > last) & (remaining != 0)) | ((index == last) & (remaining >> np.uint64(bits) != 0))
        changed = beyond.any(axis=1) & (status == CORRECTED)
        status[changed], remaining[changed] = UNCORRECTABLE, data[changed]
        counts = DecodedBlocks.counted(status, (remaining != 0).any(axis=1) | (left_check != 0))
        index, remaining = index.ravel(), remaining.ravel()
        exists = index * self._width < protected.words * protected.width  # of the last block
        given_up = np.repeat(status == UNCORRECTABLE, per) & exists
        if self.uncorrectable != "keep":
            zero = self.uncorrectable == "zero"
            remaining[given_up] = protected.read_blocks(index[given_up], self._width) if zero else 0
        left = Errors.merged(index, remaining).regrouped(self._width, protected.width)
        return DecodedBlocks(index, remaining, given_up, counts).result(left, self.uncorrectable)

    def check_bits(self, protected: ProtectedWords) -> CheckBits:
        return CheckBits(-(-protected.words * protected.width // self.code.data_bits), self.code.check_bits)

    def units(self, protected: ProtectedWords, words: np.ndarray) -> np.ndarray:
        return distinct(units_of(words, protected.width, self._width) // (self.code.data_bits // self._width))


def crc(polynomial: int, check_bits: int, data_bits: int) -> LinearCode:
    """A cyclic redundancy check as a code that detects alone: the column of data bit i is x^(check_bits + i) modulo the
    polynomial. Of random errors it misses 2^-check_bits.

    Args:
        polynomial: without its highest term, as 0x1021 for x^16 + x^12 + x^5 + 1. The texts that were read do not say which one
            a memory has.
        check_bits: its degree.
        data_bits: of a block.
    """
    columns, column = (
        [],
        check_whole("polynomial", polynomial, 1, 2 ** check_whole("check_bits", check_bits, 1, 16) - 1),
    )
    for _ in range(check_whole("data_bits", data_bits, 1)):
        columns.append(column)
        column = column << 1 ^ (polynomial | 1 << check_bits if column >> (check_bits - 1) else 0)
    return LinearCode(columns, check_bits, corrects=False, name=f"CRC{check_bits} {polynomial:#x}")


def parity(data_bits: int) -> LinearCode:
    """One parity bit over data bits, which detects an odd number of wrong ones."""
    return LinearCode([1] * check_whole("data_bits", data_bits, 1), 1, corrects=False, name="parity")


def odd_columns(data_bits: int, check_bits: int, *, seed: int | None = None) -> list[int]:
    """Columns of odd weight, 3 and more: of SEC-DED.

    Args:
        data_bits: how many.
        check_bits: of the code.
        seed: None: those of the lowest weight first, of the last weight so that rows get equally many, as M. Y. Hsiao (IBM J.
            Res. Dev. 14 (4), 1970) has them; else any, at random.

    Raises:
        ValueError: there are not so many.
    """
    columns = [c for c in range(2**check_bits) if c.bit_count() % 2 and c.bit_count() > 1]
    if seed is not None or check_whole("data_bits", data_bits, 0) > len(columns):
        return _chosen(columns, data_bits, seed or 0)
    chosen: list[int] = []
    rows = np.zeros(check_bits, np.int64)  # how many ones each has
    for _, of_weight in groupby(sorted(columns, key=lambda column: (column.bit_count(), column)), int.bit_count):
        free = np.array(list(of_weight))
        is_set = free[:, None] >> np.arange(check_bits) & 1
        for missing in range(data_bits - len(chosen), 0, -1):
            if len(free) <= missing:
                chosen += free.tolist()
                rows += is_set.sum(axis=0)
                break
            loads = np.sort(rows + is_set, axis=1)  # of the fullest row last
            best = np.lexsort((free, *loads.T))[0]
            chosen.append(int(free[best]))
            rows += is_set[best]
            free, is_set = np.delete(free, best), np.delete(is_set, best, axis=0)
    return chosen


def mixed_columns(data_bits: int, check_bits: int, *, even: int, seed: int) -> list[int]:
    """Random columns of SEC, of which so many have an even weight: the more, the more double errors look like one.

    Raises:
        ValueError: there are not so many of either kind, or more of even weight than data bits.
    """
    check_whole("even", even, 0, check_whole("data_bits", data_bits, 1))
    chosen = _chosen([c for c in range(1, 2**check_bits) if c.bit_count() % 2 == 0], even, seed)
    return chosen + odd_columns(data_bits - even, check_bits, seed=seed)


def random_columns(data_bits: int, check_bits: int, *, seed: int) -> list[int]:
    """Random columns of SEC: any of weight 2 and more."""
    return _chosen([c for c in range(2**check_bits) if c.bit_count() > 1], data_bits, seed)


def _chosen(columns: list[int], n: int, seed: int) -> list[int]:
    if check_whole("data_bits", n, 0) > len(columns):
        raise ValueError(f"data_bits needs {n} columns of a kind; there are {len(columns)} with these check_bits")
    return np.random.default_rng(seed).permutation(columns)[:n].tolist()


def miscorrected(code: LinearCode, wrong: int) -> float:
    """The share of all patterns of so many wrong bits of a code word, check bits among them, that a code corrects into another
    one: their syndrome is a column. Exact.

    Args:
        code: that corrects.
        wrong: 2 or 3.

    Example:
        >>> round(miscorrected(LinearCode(odd_columns(64, 8), 8), 3), 3)
        0.563
    """
    columns = code.columns.astype(np.int64)
    is_column = np.zeros(2**code.check_bits, bool)
    is_column[columns] = True
    if check_whole("wrong", wrong, 2, 3) == 2:
        sums = columns[:, None] ^ columns
        return float(is_column[sums[np.triu_indices(len(columns), 1)]].mean())
    # Each triple is a pair and a third bit, in three ways; a pair with one of its own two is no triple, and its sum a column.
    pairs = np.array(list(combinations(columns.tolist(), 2)))
    sums = pairs[:, 0] ^ pairs[:, 1]
    hits = sum(int(is_column[sums ^ column].sum()) for column in columns.tolist()) - 2 * len(pairs)
    return hits / (len(pairs) * (len(columns) - 2))
