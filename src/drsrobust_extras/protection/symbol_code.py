"""Codes over symbols of several bits: what one symbol holds may be wrong in any way."""

from collections.abc import Iterable
from functools import cache

import numpy as np

from drsrobust.extend import check_whole
from drsrobust.mitigation import CLEAN, CORRECTED, UNCORRECTABLE

_POLYNOMIALS = {4: 0x13, 8: 0x11D, 16: 0x1100B}  # of GF(2^bits), with the generator g = 2


class SymbolCode:
    """A Reed-Solomon code with two check symbols: RS(n, n - 2) over GF(2^bits), which corrects one wrong symbol.

    Of wrong symbols e_j at places j the syndromes are S0 = sum e_j and S1 = sum e_j g^j. One wrong symbol is S0, at the place
    log S1 - log S0. Of pairs of wrong symbols (n - 2) / (2^bits - 1) look like one and are miscorrected; the others are
    detected. The check symbols are the last two.

    Args:
        symbols: n.
        bits: of a symbol, 4, 8 or 16.

    Raises:
        ValueError: other bits, or more symbols than places differ.

    Example:
        >>> code = SymbolCode(18, 8)
        >>> wrong = [np.array([0], np.uint8)] * 5 + [np.array([77], np.uint8)] + [np.array([0], np.uint8)] * 12
        >>> code.locate(*code.syndromes(wrong))
        (array([5]), array([1], dtype=uint8))
    """

    def __init__(self, symbols: int, bits: int) -> None:
        if bits not in _POLYNOMIALS:
            raise ValueError(f"bits of a symbol is {bits!r}; it must be one of {', '.join(map(str, _POLYNOMIALS))}")
        check_whole("symbols", symbols, 3, 2**bits - 1)  # others would share a place
        self.symbols, self._order, self.dtype = symbols, 2**bits - 1, np.uint16 if bits > 8 else np.uint8
        self._powers, self._logs = np.zeros(2 * self._order, self.dtype), np.zeros(self._order + 1, np.int64)
        value = 1
        for power in range(self._order):
            self._powers[power] = self._powers[power + self._order] = value
            self._logs[value] = power
            value = value << 1 ^ (_POLYNOMIALS[bits] if value >> (bits - 1) else 0)

    def _times(self, symbol: np.ndarray, power: int) -> np.ndarray:
        """Symbols [n] times g^power."""
        return np.where(symbol == 0, self.dtype(0), self._powers[self._logs[symbol] + power % self._order])

    def syndromes(self, symbols: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """S0 and S1 (uint8 [code words], of 16 bits uint16) of the symbols (the same) at each place from 0."""
        first = second = self.dtype(0)
        for place, symbol in enumerate(symbols):
            first = first ^ symbol
            if place == 0 or symbol.any():
                second = second ^ self._times(symbol, place)
        return first, second

    def locate(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place (int64) of the symbol to change by S0, and the status of each code word: CLEAN, CORRECTED or
        UNCORRECTABLE."""
        place = (self._logs[second] - self._logs[first]) % self._order
        status = np.full(len(first), UNCORRECTABLE, np.uint8)
        status[(first | second) == 0] = CLEAN
        status[(first != 0) & (second != 0) & (place < self.symbols)] = CORRECTED
        return place, status

    def check_symbols(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The two check symbols of code words with these syndromes of their other symbols."""
        place = self.symbols - 2
        difference = second ^ self._times(first, place)  # = the last symbol times g^place + g^(place + 1)
        last = self._times(difference, -int(self._logs[self._powers[place] ^ self._powers[place + 1]]))
        return first ^ last, last


symbol_code = cache(SymbolCode)
