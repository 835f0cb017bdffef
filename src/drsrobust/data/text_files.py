"""What a field of a text file may hold, said twice: for a whole column in Arrow's hands, and for one field's bytes.

The two must come to the same verdict: the first is fast and says only that something is wrong, the second finds the line.

How the lines of a delimited file look: a block of them to columns, and what is wrong with a single line.

The lines that were left out of a data set: kept beside it in `skipped.csv`, and told of whenever it is opened.

Delimited text, plain or .gz, read in blocks by Arrow; a bad line is named by file, line, field and text.

A byte order mark at the beginning of a file is left out. Memory is bounded whatever a file holds: by the block, the longest
line and the number of bad lines after which a file is given up.

Arrow parses whole blocks at once. Only when it (or a check of a whole column) refuses a block is that block read again,
line by line, to find the lines that are wrong."""

import csv
import gzip
import io
import re
import warnings
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

BOM = b"\xef\xbb\xbf"  # the mark that some editors put before UTF-8 text


@dataclass(frozen=True)
class Form:
    """The fields of a line in order, the one character that separates them, and whether they may stand in quotes."""

    fields: dict[str, Kind]
    delimiter: str
    quoted: bool = False

    def fault(self, line: bytes) -> str | None:
        """What is wrong with a line (without its end), None when nothing is."""
        parts = line.split(self.delimiter.encode())
        if len(parts) != len(self.fields):
            return (
                f"{len(parts)} fields where {len(self.fields)} are expected "
                f"(separated by {self.delimiter!r}): {shown(line)}"
            )
        position = 1
        for part, (name, kind) in zip(parts, self.fields.items(), strict=True):
            if not kind.fits(bare(part) if self.quoted else part):
                return f"field {position} ({name}): {shown(part)} is not {kind.meaning}"
            position += not isinstance(kind, Empty)  # '::' is one separator to people, two with nothing between to us
        return None

    def columns(self, block: bytes) -> dict[str, np.ndarray] | None:
        """The columns of whole lines, name -> int64 [lines] (checked fields that are not kept are left out).

        None exactly when some line has a fault: a test holds `Kind.column` and `Kind.fits` to that.
        """
        kept = [name for name, kind in self.fields.items() if not isinstance(kind, Empty | Digits)]
        if not block:
            return {name: np.empty(0, np.int64) for name in kept}
        if b"0x" in block or b"0X" in block:  # Arrow takes 0x10 for an integer
            return None
        if block.startswith(BOM):  # Arrow leaves it out, wherever in the file the block begins
            return None
        if block.startswith((b"\n", b"\r\n")) or b"\n\n" in block or b"\n\r\n" in block:
            return None  # an empty line: to Arrow one of empty fields, each with a place in memory
        if self.quoted and b'"' in block:
            if not _quotes_enclose_fields(block, self.delimiter):
                return None
            block = block.translate(None, b'"')
        try:
            table = self._parsed(block)
            if table.num_rows != block.count(b"\n") + (not block.endswith(b"\n")):
                return None  # a carriage return inside a line
            columns = {name: kind.column(table[name]) for name, kind in self.fields.items()}
        except (pa.ArrowInvalid, ValueError):
            return None
        return {name: columns[name] for name in kept}

    def _parsed(self, block: bytes) -> pa.Table:
        return pyarrow.csv.read_csv(
            pa.BufferReader(block),
            read_options=pyarrow.csv.ReadOptions(column_names=list(self.fields), block_size=1 << 22),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self.delimiter, quote_char=False, double_quote=False, ignore_empty_lines=False
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: kind.type for name, kind in self.fields.items()}, null_values=[""]
            ),
        )


def _quotes_enclose_fields(block: bytes, delimiter: str) -> bool:
    """Whether all double quotes of a block stand in pairs, one at each end of a field."""
    text = np.frombuffer(block, np.uint8)
    marks = np.flatnonzero((text == ord('"')) | (text == ord(delimiter)) | (text == ord("\n")))
    places = np.flatnonzero(text[marks] == ord('"'))
    if len(places) % 2 or (np.diff(places.reshape(-1, 2)) != 1).any():
        return False  # a quote without its pair, or a pair around more than one field
    first, last = marks[places[0::2]], marks[places[1::2]]
    before = text[first[first > 0] - 1]
    after = text[last[last < len(text) - 1] + 1]
    return bool(np.isin(before, list(f"{delimiter}\n".encode())).all()) and bool(
        np.isin(after, list(f"{delimiter}\r\n".encode())).all()
    )


def bare(part: bytes) -> bytes:
    """A field without the double quotes around it."""
    return part[1:-1] if len(part) > 1 and part.startswith(b'"') and part.endswith(b'"') else part


def shown(raw: bytes) -> str:
    """At most 80 bytes of a line, undecodable ones as \\x escapes."""
    return repr(raw[:80]).removeprefix("b") + (" ..." if len(raw) > 80 else "")


NAME = "skipped.csv"
Skipped = tuple[str, int, str]  # file name, line number from 1, what is wrong


def write_skipped(path: Path, skipped: Iterable[Skipped]) -> int:
    """Writes the list, complete or absent; no file when it is empty. Gives its length."""
    count = 0
    with new_file(path) as part, open(part, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["file", "line", "reason"])
        for row in skipped:
            writer.writerow(row)
            count += 1
    if not count:
        path.unlink()
    return count


def read_skipped(path: Path) -> Iterator[Skipped]:
    """The list, in the order of the lines."""
    with open(path, newline="", encoding="utf-8") as handle:
        rows = csv.reader(handle)
        next(rows)
        for file, line, reason in rows:
            yield file, int(line), reason


def check_share(first: Skipped, skipped: int, kept: int) -> None:
    """Refuses a file of which more than half of the lines are bad: it is another file, or of another form.

    Raises:
        DataError: with the first bad line.
    """
    if skipped > kept:
        raise DataError(
            f"{skipped:,} of {skipped + kept:,} lines are bad, more than bad_lines='skip' is for; "
            "the first: {}, line {}: {}".format(*first)
        )


def tell(path: Path, files: list[str], kept: int | None, stacklevel: int) -> None:
    """Warns that lines were left out: how many of how many, the first, and where all are listed.

    Args:
        path: the list, not empty.
        files: names of the files that were read.
        kept: their good lines; None: not known.
        stacklevel: of the warning, from the caller of this function on.
    """
    skipped = list(read_skipped(path))
    name, line, reason = skipped[0]
    count = f"{len(skipped):,}" + ("" if kept is None else f" of {len(skipped) + kept:,}")
    others = len(files) - 1
    of = files[0] + (f" and {others} other file{'s' * (others > 1)}" if others else "")
    first = f"{name}, line {line}" if others else f"line {line}"
    were = f"line{'s' * (kept is not None or len(skipped) > 1)} of {of} {'was' if len(skipped) == 1 else 'were'}"
    warnings.warn(f"{count} {were} skipped; the first: {first}: {reason}; all in {path}", stacklevel=stacklevel + 1)


BLOCK = 32 << 20  # bytes of decompressed text that are parsed at once
PIECE = 1 << 20  # bytes that are read at once: so much of a truncated file is not told apart
LINE = 1 << 20  # bytes of the longest line, at least PIECE; those of the known data sets have less than 1,000
MOSTLY_BAD = 100_000  # bad lines after which more than half is enough to give up
HOPELESS = 1000  # bad lines before the first good one: then it is another file, and skipping all of it helps nobody


class DataError(ValueError):
    """A data file that is not what it should be. The message says where, what stands there and what would be right."""


@dataclass
class BadLines:
    """What to do with lines that are not of the form, and which there were.

    Args:
        mode: `strict` raises DataError at the first of them; `skip` leaves them out and lists them in `found`.

    Raises:
        ValueError: another mode.

    Example:
        >>> bad = BadLines("skip")
        >>> bad.add(Path("ml-1m/ratings.dat"), 7, "1 fields where 4 are expected")
        >>> bad.found
        [('ratings.dat', 7, '1 fields where 4 are expected')]
    """

    mode: str = "strict"
    found: list[tuple[str, int, str]] = field(default_factory=list)  # file name, line (from 1), what is wrong

    def __post_init__(self) -> None:
        if self.mode not in ("strict", "skip"):
            raise unknown("way with bad lines", self.mode, ("strict", "skip"))

    def add(self, path: Path, line: int, wrong: str) -> None:
        """Raises the DataError of a bad line, or lists it."""
        if self.mode == "strict":
            raise DataError(f"{path}, line {line}{', ' if wrong.startswith('field ') else ': '}{wrong}")
        self.found.append((path.name, line, wrong))


def read_columns(
    path: Path,
    fields: dict[str, Kind],
    delimiter: str,
    *,
    header: tuple[str, ...] | None = None,
    quoted: bool = False,
    bad: BadLines | None = None,
    first_block: int = 0,
) -> Iterator[dict[str, np.ndarray]]:
    """The columns of a text file, block by block. Lines end in LF or CRLF.

    Args:
        path: the file; a .gz is decompressed on the way.
        fields: name -> kind, in the order of the file.
        delimiter: one character.
        header: the column names that the first line must hold, each in double quotes or not; None: no such line.
        quoted: fields may stand in double quotes, which are taken off; no kind of field holds a quote itself.
        bad: what to do with bad lines; None: `BadLines("strict")`.
        first_block: how many blocks to pass over without parsing them. Blocks are cut alike whatever it is, and line
            numbers are always those of the file; bad lines of the passed blocks are not listed.

    Yields:
        name -> int64 [good lines of this block], possibly of no line; what a kind says it stands for (a missing optional
        integer is the smallest int64, missing HEX is -1). `Empty` and `Digits` fields are checked and left out.

    Raises:
        DataError: an unreadable file, a line longer than `LINE`, another header, a bad line (`strict`), no good line at all
            or, after `MOSTLY_BAD` bad ones, more bad than good ones (`skip`), or fewer blocks than are to be passed over.
        ValueError: a negative `first_block`.
    """
    if first_block < 0:
        raise ValueError(f"first_block is {first_block}; it must be at least 0")
    form, bad = Form(fields, delimiter, quoted), BadLines() if bad is None else bad
    line, number, good, before = 1, 0, 0, len(bad.found)
    for number, block in enumerate(_blocks(path), 1):
        if number == 1 and header is not None:
            block = _after_header(path, block, header, delimiter)
            line += 1
        if number > first_block:
            columns = _parse(path, line, block, form, bad, before)
            good += len(next(iter(columns.values())))
            if not good and len(bad.found) - before >= HOPELESS:
                raise _another_file(path, *bad.found[before])
            yield columns
        line += block.count(b"\n")
    if number < first_block:
        raise DataError(f"{path}: {number} blocks of lines, fewer than the {first_block} that are to be passed over")
    if not good and first_block == 0:
        raise (
            _another_file(path, *bad.found[before]) if len(bad.found) > before else DataError(f"{path}: only a header")
        )


def read_text(path: Path, encoding: str, bad: BadLines | None = None) -> Iterator[tuple[int, str]]:
    """(line number, line) of a small text file.

    Raises:
        DataError: an unreadable or empty file, a line longer than `LINE`, bytes that are not `encoding` (`strict`), or more
            bad than good lines, as in `read_columns` (`skip`).
    """
    number, bad = 1, BadLines() if bad is None else bad
    before = len(bad.found)
    for block in _blocks(path):
        for line in io.BytesIO(block):  # one by one: a list of them all takes up to 40 times the memory of the block
            for raw in line.splitlines():
                try:
                    yield number, raw.decode(encoding)
                except UnicodeDecodeError:
                    bad.add(path, number, f"bytes that are not {encoding}: {shown(raw)}")
                _check_share(path, bad, before, number)
                number += 1


def beginning(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a text file (decompressed): enough to see of which form it is.

    Raises:
        DataError: an unreadable or empty file.
    """
    return next(_blocks(path))[:size]


def _blocks(path: Path) -> Iterator[bytes]:
    """The file's bytes, cut after line ends; the last block may lack one."""
    line, parts, size, unfinished = 1, [], 0, 0  # bytes of the block, and of its last line so far
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
        raise DataError(f"{path}: the gzip file is truncated; what can be read ends about line {line}") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}); what can be read ends about line {line}") from error
    rest = b"".join(parts)
    if rest:
        yield rest
    elif line == 1:
        raise DataError(f"{path}: the file is empty")


def _after_header(path: Path, block: bytes, header: tuple[str, ...], delimiter: str) -> bytes:
    first, _, rest = block.partition(b"\n")
    names = [bare(part) for part in first.removesuffix(b"\r").split(delimiter.encode())]
    if names != [name.encode() for name in header]:
        raise DataError(f"{path}, line 1: {shown(first)} is not the header {delimiter.join(header)!r}")
    return rest


def _parse(path: Path, line: int, block: bytes, form: Form, bad: BadLines, before: int) -> dict[str, np.ndarray]:
    """The columns of a block whose first line is number `line`, without its bad lines; `before` were found in other files."""
    columns = form.columns(block)
    if columns is None:
        good = []
        for number, raw in enumerate(io.BytesIO(block), line):
            text = raw.removesuffix(b"\n")
            if fault := form.fault(text.removesuffix(b"\r")):
                bad.add(path, number, fault)
                _check_share(path, bad, before, number)
            else:
                good.append(text + b"\n")
        columns = form.columns(b"".join(good))
        if columns is None:
            raise DataError(f"{path}, lines {line} to {number}: not readable as {', '.join(form.fields)}")
    return columns


def _check_share(path: Path, bad: BadLines, before: int, line: int) -> None:
    """Raises DataError when of so many lines of a file more than half are bad; `before` were found in other files."""
    count = len(bad.found) - before
    if count > MOSTLY_BAD and 2 * count > line:
        raise DataError(
            f"{path}: {count:,} of the first {line:,} lines are bad, more than bad_lines='skip' is for; the first: "
            "line {1}: {2}".format(*bad.found[before])
        )


def _another_file(path: Path, _: str, line: int, wrong: str) -> DataError:
    return DataError(f"{path}: no line is of the form, so it is another file. Line {line}: {wrong}")
