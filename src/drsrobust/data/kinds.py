"""What a field of a text file may hold, said twice: for a whole column in Arrow's hands, and for one field's bytes.

The two must come to the same verdict: the first is fast and says only that something is wrong, the second finds the line.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Kind(ABC):
    """One kind of field. `meaning` ends the sentence "... is not ..."; `type` is what Arrow parses it as."""

    meaning: str
    type: ClassVar[pa.DataType] = pa.binary()

    @abstractmethod
    def column(self, column: pa.ChunkedArray) -> np.ndarray:
        """The values of a whole column, int64 [n]; ValueError when one does not fit."""

    @abstractmethod
    def fits(self, part: bytes) -> bool:
        """Whether one field's text, without the quotes around it, is of this kind."""


@dataclass(frozen=True)
class Integer(Kind):
    """A whole number from `low` to `high`, or with `or_zero` 0; when it is `optional`, an empty field is the smallest int64."""

    low: int = -(2**63)
    high: int = 2**63 - 1
    optional: bool = False
    or_zero: bool = False
    type: ClassVar[pa.DataType] = pa.int64()

    def column(self, column: pa.ChunkedArray) -> np.ndarray:
        if column.null_count and not self.optional:
            raise ValueError("a missing value")
        values = column.fill_null(-(2**63)).to_numpy() if column.null_count else column.to_numpy()
        bounded = values[values != 0] if self.or_zero else values
        if self.low > -(2**63) and len(bounded) and (bounded.min() < self.low or bounded.max() > self.high):
            raise ValueError("a value out of range")
        return values

    def fits(self, part: bytes) -> bool:
        if not part:
            return self.optional
        digits = part.strip(b" \t")  # what Arrow takes off a number
        if not re.fullmatch(rb"-?[0-9]{1,999}", digits):
            return False
        return self.low <= int(digits) <= self.high or (self.or_zero and int(digits) == 0)


@dataclass(frozen=True)
class Hexadecimal(Kind):
    """8 hexadecimal digits, as a number; an empty field, where it is `optional`, is -1."""

    optional: bool = True

    def column(self, column: pa.ChunkedArray) -> np.ndarray:
        present = pc.equal(pc.binary_length(column), 8).to_numpy(zero_copy_only=False)
        text = _text(column)
        if len(text) != 8 * np.count_nonzero(present) or not (self.optional or present.all()):
            raise ValueError("a category that is not 8 digits long")
        nibbles = _NIBBLE[text].reshape(-1, 8)
        if (nibbles == 255).any():
            raise ValueError("a category that is not hexadecimal")
        values = np.full(len(present), -1, np.int64)
        values[present] = nibbles.astype(np.int64) @ (16 ** np.arange(7, -1, -1, dtype=np.int64))
        return values

    def fits(self, part: bytes) -> bool:
        return bool(re.fullmatch(rb"[0-9a-fA-F]{8}", part)) or (self.optional and not part)


_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[list(b"0123456789abcdef")] = range(16)
_NIBBLE[list(b"ABCDEF")] = range(10, 16)


@dataclass(frozen=True)
class Few(Kind):
    """One of few distinct texts: each is looked at once a block. `pattern` tells which, `number` what they stand for."""

    pattern: re.Pattern[bytes]
    number: Callable[[bytes], int]
    type: ClassVar[pa.DataType] = pa.dictionary(pa.int32(), pa.binary())

    def column(self, column: pa.ChunkedArray) -> np.ndarray:
        parts = [np.empty(0, np.int64)]
        for chunk in column.chunks:
            values = chunk.dictionary.to_pylist()
            if not all(map(self.fits, values)):
                raise ValueError("an unknown value")
            parts.append(np.array([self.number(value) for value in values], np.int64)[chunk.indices.to_numpy()])
        return np.concatenate(parts)

    def fits(self, part: bytes) -> bool:
        return bool(self.pattern.fullmatch(part))


@dataclass(frozen=True)
class Time(Kind):
    """`YYYY-MM-DD HH:MM:SS`, a moment that the calendar knows, as seconds since 1970 began."""

    def column(self, column: pa.ChunkedArray) -> np.ndarray:
        text = _text(column)
        if not pc.all(pc.equal(pc.binary_length(column), 19)).as_py() or (text[10::19] != ord(" ")).any():
            raise ValueError("a time of another form")  # Arrow would take T for the space, and times without seconds
        return column.cast(pa.string()).cast(pa.timestamp("s")).cast(pa.int64()).to_numpy()

    def fits(self, part: bytes) -> bool:
        if not re.fullmatch(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", part):
            return False
        try:
            np.datetime64(part.decode(), "s")
        except ValueError:  # February 30th
            return False
        return True


@dataclass(frozen=True)
class Digits(Kind):
    """A number that is checked, but not kept: row numbers of a file, which may be larger than an int64."""

    def column(self, column: pa.ChunkedArray) -> np.ndarray:
        length, text = pc.min_max(pc.binary_length(column)).as_py(), _text(column)
        if length["min"] < 1 or length["max"] > 20 or (text < ord("0")).any() or (text > ord("9")).any():
            raise ValueError("a number that is not one")
        return np.empty(0, np.int64)

    def fits(self, part: bytes) -> bool:
        return bool(re.fullmatch(rb"[0-9]{1,20}", part))


@dataclass(frozen=True)
class Empty(Kind):
    """Nothing at all; not kept."""

    def column(self, column: pa.ChunkedArray) -> np.ndarray:
        if pc.max(pc.binary_length(column)).as_py():
            raise ValueError("a field that should be empty is not")
        return np.empty(0, np.int64)

    def fits(self, part: bytes) -> bool:
        return not part


def _text(column: pa.ChunkedArray) -> np.ndarray:
    """The bytes of all rows one after the other, uint8."""
    buffers = [chunk.buffers()[2] for chunk in column.chunks]
    return np.frombuffer(b"".join(buffer.to_pybytes() for buffer in buffers if buffer is not None), np.uint8)


INTEGER = Integer("an integer")
OPTIONAL_INTEGER = Integer("an integer or empty", optional=True)
LABEL = Integer("a label, 0 or 1", 0, 1)
ID = Integer("an id, a whole number of at least 0", 0)
SECONDS = Integer(
    "0 or a time in seconds since 1970, from 788918400 (1995) to 4102444800 (2100)", 788918400, 4102444800, or_zero=True
)
RATING = Integer("a rating of 1 to 5", 1, 5)
HALF_STARS = Few(
    "a rating of 0.5 to 5.0 in steps of a half",
    re.compile(rb"0\.50*|[1-4](\.[05]0*)?|5(\.0+)?"),
    lambda text: round(2 * float(text)),
)
TIME = Time("a time of the form YYYY-MM-DD HH:MM:SS")
HEX = Hexadecimal("8 hexadecimal digits or empty")
FULL_HEX = Hexadecimal("8 hexadecimal digits", optional=False)
DIGITS = Digits("a number of at most 20 digits")
NOTHING = Empty("empty (fields are separated by '::')")
