"""Delimited text, plain or .gz, to typed columns, block by block.

Arrow parses a block at once. A block that Arrow or a column's type refuses is read line by line, to name the bad lines.
"""

import csv
import gzip
import io
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from drsrobust._environment import unknown
from drsrobust._files import new_file

BLOCK = 32 << 20  # bytes of decompressed text that are parsed at once
PIECE = 1 << 20  # bytes that are read at once; a truncated gzip file is located to that precision
LINE = 1 << 20  # bytes of the longest line, at least PIECE; lines of the known data sets have less than 1,000
MOSTLY_BAD = 100_000  # bad lines after which a share of more than half ends the reading
HOPELESS = 1000  # bad lines before the first good one that end the reading: it is another file
SMALLEST = -(2**63)  # an empty field of OPTIONAL_INTEGER
BOM = b"\xef\xbb\xbf"  # byte order mark
SKIPPED = "skipped.csv"

Skipped = tuple[str, int, str]  # file name, line number from 1, fault


class DataError(ValueError):
    """A malformed data file. The message names the file, the line, its text, and the expected form."""


@dataclass
class BadLines:
    """How to treat malformed lines, and which were skipped.

    Args:
        mode: `strict` raises DataError at the first one; `skip` lists them in `skipped`.

    Raises:
        ValueError: another mode.

    Example:
        >>> bad = BadLines("skip")
        >>> bad.add(Path("ml-1m/ratings.dat"), 7, "1 fields where 4 are expected")
        >>> bad.skipped
        [('ratings.dat', 7, '1 fields where 4 are expected')]
    """

    mode: str = "strict"
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.mode not in ("strict", "skip"):
            raise unknown("bad_lines", self.mode, ("strict", "skip"))

    def add(self, path: Path, line: int, fault: str, before: int | None = None) -> None:
        """Raises the DataError of a bad line, or lists it.

        A reader passes `before`, the number of bad lines of earlier files. After `MOSTLY_BAD` bad lines of this file, DataError
        is raised also if more than half of its lines up to this one are bad.
        """
        if self.mode == "strict":
            raise DataError(f"{path}, line {line}{', ' if fault.startswith('field ') else ': '}{fault}")
        self.skipped.append((path.name, line, fault))
        if before is not None and (n_bad := len(self.skipped) - before) > MOSTLY_BAD:
            check_share(self.skipped[before], n_bad, line)


STRICT = BadLines()


def check_share(first: Skipped, n_bad: int, n_lines: int) -> None:
    """Raises DataError, with the first bad line, if more than half of the lines are bad: it is another file or format."""
    if 2 * n_bad > n_lines:
        file, line, fault = first
        raise DataError(
            f"{n_bad:,} of {n_lines:,} lines are bad, too many for bad_lines='skip'; the first: {file}, line {line}: {fault}"
        )


# Field types


@dataclass(frozen=True)
class FieldType(ABC):
    """A type of field. `pattern` matches a whole field without quotes around it; `meaning` completes "... is not ...".

    `parse` reads a column at once, of the type `arrow`. `accepts` finds the bad fields of a column that `parse` refuses.
    """

    meaning: str
    pattern: bytes
    arrow: ClassVar[pa.DataType] = pa.binary()
    kept: ClassVar[bool] = True

    @abstractmethod
    def parse(self, column: pa.ChunkedArray) -> np.ndarray:
        """The values of a column, int64 [n]; ValueError if a field is malformed."""

    def accepts(self, text: bytes) -> bool:
        """Whether the text of one field is well-formed."""
        return bool(re.fullmatch(self.pattern, text))


@dataclass(frozen=True)
class CheckedText(FieldType):
    """Text that is checked, but not kept."""

    kept: ClassVar[bool] = False

    def parse(self, column: pa.ChunkedArray) -> np.ndarray:
        if not pc.all(pc.match_substring_regex(column, rf"\A(?:{self.pattern.decode()})\z")).as_py():
            raise ValueError("a malformed field")
        return np.empty(0, np.int64)


@dataclass(frozen=True)
class Integer(FieldType):
    """An integer from `low` to `high`, or also 0 (`or_zero`); an empty field, where permitted, is the smallest int64."""

    pattern: bytes = rb"[ \t]*-?[0-9]{1,999}[ \t]*"  # Arrow strips blanks
    low: int = SMALLEST
    high: int = 2**63 - 1
    or_zero: bool = False
    arrow: ClassVar[pa.DataType] = pa.int64()

    def parse(self, column: pa.ChunkedArray) -> np.ndarray:
        if column.null_count and not self.accepts(b""):
            raise ValueError("a missing value")
        values = column.fill_null(SMALLEST).to_numpy() if column.null_count else column.to_numpy()
        bounded = values[values != 0] if self.or_zero else values
        if self.low > SMALLEST and len(bounded) and (bounded.min() < self.low or bounded.max() > self.high):
            raise ValueError("a value out of range")
        return values

    def accepts(self, text: bytes) -> bool:
        if not super().accepts(text):
            return False
        return not text or self.low <= int(text) <= self.high or (self.or_zero and int(text) == 0)


_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[list(b"0123456789abcdef")] = range(16)
_NIBBLE[list(b"ABCDEF")] = range(10, 16)


@dataclass(frozen=True)
class Hexadecimal(FieldType):
    """8 hexadecimal digits, as a number; an empty field, where permitted, is -1."""

    pattern: bytes = rb"[0-9a-fA-F]{8}"

    def parse(self, column: pa.ChunkedArray) -> np.ndarray:
        present = pc.equal(pc.binary_length(column), 8).to_numpy(zero_copy_only=False)
        text = _bytes(column)
        if len(text) != 8 * np.count_nonzero(present) or not (present.all() or self.accepts(b"")):
            raise ValueError("a category of another length")
        nibbles = _NIBBLE[text].reshape(-1, 8)
        if (nibbles == 255).any():
            raise ValueError("a category that is not hexadecimal")
        values = np.full(len(present), -1, np.int64)
        values[present] = nibbles.astype(np.int64) @ (16 ** np.arange(7, -1, -1, dtype=np.int64))
        return values


@dataclass(frozen=True)
class EnumField(FieldType):
    """One of few distinct texts, each parsed once per block to `number(text)`."""

    number: Callable[[bytes], int] = int
    arrow: ClassVar[pa.DataType] = pa.dictionary(pa.int32(), pa.binary())

    def parse(self, column: pa.ChunkedArray) -> np.ndarray:
        parts = [np.empty(0, np.int64)]
        for chunk in column.chunks:
            texts = chunk.dictionary.to_pylist()
            if not all(map(self.accepts, texts)):
                raise ValueError("an unknown value")
            parts.append(np.array([self.number(text) for text in texts], np.int64)[chunk.indices.to_numpy()])
        return np.concatenate(parts)


@dataclass(frozen=True)
class Time(FieldType):
    """`YYYY-MM-DD HH:MM:SS` of a valid date, as seconds since 1970."""

    pattern: bytes = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"

    def parse(self, column: pa.ChunkedArray) -> np.ndarray:
        if not pc.all(pc.equal(pc.binary_length(column), 19)).as_py() or (_bytes(column)[10::19] != ord(" ")).any():
            raise ValueError("a time of another form")  # Arrow would take T for the space, and times without seconds
        return column.cast(pa.string()).cast(pa.timestamp("s")).cast(pa.int64()).to_numpy()

    def accepts(self, text: bytes) -> bool:
        try:
            return super().accepts(text) and np.datetime64(text.decode(), "s") is not None
        except ValueError:  # February 30th
            return False


def _bytes(column: pa.ChunkedArray) -> np.ndarray:
    """The bytes of all rows, back to back, uint8."""
    buffers = [chunk.buffers()[2] for chunk in column.chunks]
    return np.frombuffer(b"".join(buffer.to_pybytes() for buffer in buffers if buffer is not None), np.uint8)


INTEGER = Integer("an integer")
OPTIONAL_INTEGER = Integer("an integer or empty", rb"(%s)?" % INTEGER.pattern)
LABEL = Integer("a label, 0 or 1", low=0, high=1)
ID = Integer("an id, a whole number of at least 0", low=0)
SECONDS = Integer(
    "0 or a time in seconds since 1970, from 788918400 (1995) to 4102444800 (2100)",
    low=788918400,
    high=4102444800,
    or_zero=True,
)
RATING = Integer("a rating of 1 to 5", low=1, high=5)
HALF_STARS = EnumField(
    "a rating of 0.5 to 5.0 in steps of a half",
    rb"0\.50*|[1-4](\.[05]0*)?|5(\.0+)?",
    lambda text: round(2 * float(text)),
)
TIME = Time("a time of the form YYYY-MM-DD HH:MM:SS")
FULL_HEX = Hexadecimal("8 hexadecimal digits")
HEX = Hexadecimal("8 hexadecimal digits or empty", rb"(%s)?" % FULL_HEX.pattern)
DIGITS = CheckedText("a number of at most 20 digits", rb"[0-9]{1,20}")
NOTHING = CheckedText("empty (fields are separated by '::')", b"")

# Lines


@dataclass(frozen=True)
class LineFormat:
    """How the lines of a file are made.

    Attributes:
        fields: name -> type, in the order of the file.
        delimiter: one character; two if the file is read by `read_rows`.
        header: the column names of the first line, each in double quotes or not; None: the file has no header.
        quoted: whether fields may be in double quotes; no type of field contains a quote.
    """

    fields: dict[str, FieldType]
    delimiter: str
    header: tuple[str, ...] | None = None
    quoted: bool = False

    def split(self, line: bytes) -> list[bytes]:
        """The fields of a line (without its end)."""
        parts = line.split(self.delimiter.encode())
        return [_unquoted(part) for part in parts] if self.quoted else parts

    def fault(self, parts: list[bytes], line: bytes) -> str | None:
        """The fault of the fields of a line; None if they are well-formed."""
        if len(parts) != len(self.fields):
            expected = f"{len(self.fields)} are expected (separated by {self.delimiter!r})"
            return f"{len(parts)} fields where {expected}: {_excerpt(line)}"
        position = 1
        for part, (name, kind) in zip(parts, self.fields.items(), strict=True):
            if not kind.accepts(part):
                return f"field {position} ({name}): {_excerpt(part)} is not {kind.meaning}"
            position += kind is not NOTHING  # '::' is one separator to a reader, two to the parser
        return None

    def columns(self, block: bytes) -> dict[str, np.ndarray] | None:
        """The kept columns of whole lines, name -> int64 [lines]; None if and only if some line has a fault."""
        kept = [name for name, kind in self.fields.items() if kind.kept]
        if not block:
            return {name: np.empty(0, np.int64) for name in kept}
        if b"0x" in block or b"0X" in block:  # Arrow takes 0x10 for an integer
            return None
        if block.startswith(BOM):  # Arrow skips the mark, wherever in the file the block begins
            return None
        if block.startswith((b"\n", b"\r\n")) or b"\n\n" in block or b"\n\r\n" in block:
            return None  # to Arrow, an empty line is one of empty fields and takes memory
        if self.quoted and b'"' in block:
            if not _quotes_enclose_fields(block, self.delimiter):
                return None
            block = block.translate(None, b'"')
        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(block),
                read_options=pyarrow.csv.ReadOptions(column_names=list(self.fields), block_size=1 << 22),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=self.delimiter, quote_char=False, double_quote=False, ignore_empty_lines=False
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types={name: kind.arrow for name, kind in self.fields.items()}, null_values=[""]
                ),
            )
            if table.num_rows != block.count(b"\n") + (not block.endswith(b"\n")):
                return None  # a carriage return inside a line
            columns = {name: kind.parse(table[name]) for name, kind in self.fields.items()}
        except (pa.ArrowInvalid, ValueError):
            return None
        return {name: columns[name] for name in kept}

    def check_header(self, path: Path, line: bytes) -> None:
        """Raises DataError if the first line of a file is not `header`."""
        if self.split(line) != [name.encode() for name in self.header]:
            header = self.delimiter.join(self.header)
            raise DataError(f"{path}, line 1: {_excerpt(line)} is not the header {header!r}")


def _quotes_enclose_fields(block: bytes, delimiter: str) -> bool:
    """Whether all double quotes of a block are in pairs, one at each end of a field."""
    text = np.frombuffer(block, np.uint8)
    marks = np.flatnonzero((text == ord('"')) | (text == ord(delimiter)) | (text == ord("\n")))
    quotes = np.flatnonzero(text[marks] == ord('"'))
    if len(quotes) % 2 or (np.diff(quotes.reshape(-1, 2)) != 1).any():
        return False  # a quote without its pair, or a pair around more than one field
    first, last = marks[quotes[0::2]], marks[quotes[1::2]]
    before, after = text[first[first > 0] - 1], text[last[last < len(text) - 1] + 1]
    opened = np.isin(before, list(f"{delimiter}\n".encode())).all()
    return bool(opened and np.isin(after, list(f"{delimiter}\r\n".encode())).all())


def _unquoted(part: bytes) -> bytes:
    return part[1:-1] if len(part) > 1 and part.startswith(b'"') and part.endswith(b'"') else part


def _excerpt(raw: bytes) -> str:
    """The first 80 bytes of a line, undecodable ones as \\x escapes."""
    return repr(raw[:80]).removeprefix("b") + (" ..." if len(raw) > 80 else "")


# Files


def read_columns(
    path: Path, form: LineFormat, bad: BadLines = STRICT, *, first_block: int = 0
) -> Iterator[dict[str, np.ndarray]]:
    """The columns of a text file, plain or .gz, block by block. Lines end in LF or CRLF; an initial byte order mark is skipped.

    Args:
        path: the file.
        form: of its lines.
        bad: how to treat bad lines.
        first_block: number of blocks to pass over. The cuts between blocks and the line numbers do not depend on it; bad
            lines of these blocks are not listed.

    Yields:
        name -> int64 [good lines of this block], perhaps empty, of the fields that are kept.

    Raises:
        DataError: an unreadable file, a line longer than `LINE`, another header, a bad line (`strict`), no good line or,
            after `MOSTLY_BAD` bad lines, more bad than good ones (`skip`).
    """
    line, good, before = 1, 0, len(bad.skipped)
    for number, block in enumerate(blocks(path)):
        if number == 0 and form.header is not None:
            header, _, block = block.partition(b"\n")
            form.check_header(path, header.removesuffix(b"\r"))
            line += 1
        if number >= first_block:
            columns = form.columns(block)
            if columns is None:
                columns = form.columns(_good_lines(path, line, block, form, bad, before))
                if columns is None:
                    raise DataError(f"{path}, lines from {line}: not readable as {', '.join(form.fields)}")
            good += len(next(iter(columns.values())))
            if not good and first_block == 0 and len(bad.skipped) - before >= HOPELESS:
                break
            yield columns
        line += block.count(b"\n")
    if not good and first_block == 0:
        if len(bad.skipped) == before:
            raise DataError(f"{path}: the file holds only a header")
        _, line, fault = bad.skipped[before]
        raise DataError(f"{path}: no line has the expected form, so it is another file. Line {line}: {fault}")


def _good_lines(path: Path, line: int, block: bytes, form: LineFormat, bad: BadLines, before: int) -> bytes:
    """The good lines of a block that begins at `line`; the first `before` bad lines are of other files."""
    good = []
    for number, raw in enumerate(io.BytesIO(block), line):  # a list of all lines would take much more memory
        text = raw.removesuffix(b"\n")
        content = text.removesuffix(b"\r")
        if fault := form.fault(form.split(content), content):
            bad.add(path, number, fault, before)
        else:
            good.append(text + b"\n")
    return b"".join(good)


def read_rows(path: Path, encoding: str, form: LineFormat, bad: BadLines = STRICT) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of the good lines of a small text file; with a header it is a CSV file.

    Raises:
        DataError: as `read_columns`, or bytes that are not `encoding` (`strict`).
    """
    before, good = len(bad.skipped), 0
    lines = (line for block in blocks(path) for raw in io.BytesIO(block) for line in raw.splitlines())
    for number, line in enumerate(lines, 1):
        parts = []
        try:
            text = line.decode(encoding)
            parts = text.split(form.delimiter) if form.header is None else next(csv.reader([text], strict=True)) or [""]
            fault = form.fault([part.encode() for part in parts], line)
        except UnicodeDecodeError:
            fault = f"bytes that are not {encoding}: {_excerpt(line)}"
        except csv.Error as error:
            fault = f"not a line of a CSV file ({error}): {_excerpt(line)}"
        if number == 1 and form.header is not None:
            form.check_header(path, line)
        elif fault:
            bad.add(path, number, fault, before)
        else:
            good += 1
            yield number, parts
    if not good:
        raise DataError(f"{path}: no line has the expected form, so it is another file")


def blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a text file, decompressed and cut after line ends; the last block may lack one.

    Raises:
        DataError: an unreadable or empty file, or a line longer than `LINE`.
    """
    line, parts, size, unfinished = 1, [], 0, 0  # bytes of the block, and of its last line
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as handle:
            if handle.read(len(BOM)) != BOM:
                handle.seek(0)
            while piece := handle.read(min(PIECE, BLOCK)):
                end = piece.find(b"\n")
                if unfinished + (len(piece) if end < 0 else end) > LINE:
                    raise DataError(f"{path}, line {line}: longer than {LINE:,} bytes, the most that a line may have")
                unfinished = unfinished + len(piece) if end < 0 else len(piece) - 1 - piece.rfind(b"\n")
                parts.append(piece)
                size += len(piece)
                line += piece.count(b"\n")
                if size >= BLOCK and (cut := piece.rfind(b"\n") + 1):
                    parts[-1] = piece[:cut]
                    yield b"".join(parts)
                    parts, size = [piece[cut:]], len(piece) - cut
    except EOFError as error:
        raise DataError(f"{path}: the gzip file is truncated; the readable part ends about line {line}") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); the readable part ends about line {line}") from error
    if rest := b"".join(parts):
        yield rest
    elif line == 1:
        raise DataError(f"{path}: the file is empty")


# Lists of skipped lines


def write_skipped(path: Path, skipped: Iterable[Skipped]) -> int:
    """Writes the list, complete or absent, and returns its length; an empty one gets no file."""
    count = 0
    with new_file(path) as part, open(part, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["file", "line", "reason"])
        for count, row in enumerate(skipped, 1):  # noqa: B007 - the last value is the length
            writer.writerow(row)
    if not count:
        path.unlink()
    return count


def read_skipped(path: Path) -> tuple[Skipped, ...]:
    """The list, in the order of the lines."""
    with open(path, newline="", encoding="utf-8") as handle:
        return tuple((file, int(line), reason) for file, line, reason in list(csv.reader(handle))[1:])
