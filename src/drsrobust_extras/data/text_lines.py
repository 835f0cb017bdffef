"""Delimited text, plain or .gz, to typed columns, block by block.

One regular expression per format, which RE2 runs over all lines of a block, matches only well-formed lines and nearly all of
them. Python checks the others field by field, names the bad ones, and Arrow parses the rest. DuckDB's CSV reader was tried
(2.0): it accepts a superfluous empty field, empty lines and a wrong checksum of a .gz without a word, and an isolated carriage
return ends it.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from drsrobust.data import Skipped
from drsrobust.extend import new_file, unknown
from drsrobust_extras.data.other_files import other_file

BLOCK_BYTES = 8 << 20  # bytes of decompressed text that are parsed at once
PIECE = 1 << 20  # bytes that are read at once; a truncated gzip file is located to that precision
MAX_LINE_BYTES = 1 << 20  # bytes of the longest line, at least PIECE; lines of the known data sets have less than 1,000
MOSTLY_BAD = 100_000  # bad lines after which a share of more than half ends the reading
EMPTY_INTEGER = -(2**63)  # an empty field of an optional integer
BOM = b"\xef\xbb\xbf"  # byte order mark


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
class FieldType:
    """A type of field; `meaning` completes "... is not ...".

    Attributes:
        plain: regular expression of well-formed fields, of nearly all that occur, in the syntax that RE2 and Python share.
        arrow: how a column is parsed: int64, float64, or binary for a hexadecimal number; None: it is checked, but not kept.
        pattern: of all well-formed fields; None: `plain`.
        holds: a further condition on a field; None: there is none.
    """

    meaning: str
    plain: str
    arrow: pa.DataType | None = None
    pattern: str | None = None
    holds: Callable[[bytes], object] | None = None

    def accepts(self, text: bytes) -> bool:
        """Whether the text of one field is well-formed."""
        if not re.fullmatch((self.pattern or self.plain).encode(), text):
            return False
        return self.holds is None or bool(self.holds(text))


def integer(
    meaning: str,
    plain: str = "-?[0-9]{1,18}",
    holds: Callable[[int], bool] = lambda number: EMPTY_INTEGER <= number < 2**63,
    parsed: bool = True,
) -> FieldType:
    """An integer for which `holds` is true, with blanks around it or not; if it is not `parsed`, it is only checked."""
    arrow = pa.int64() if parsed else None
    return FieldType(meaning, plain, arrow, r"[ \t]*-?[0-9]{1,999}[ \t]*", lambda text: holds(int(text)))


def optional(kind: FieldType) -> FieldType:
    """The same type, or an empty field: an integer is then `EMPTY_INTEGER`, a hexadecimal number -1."""
    pattern, holds = f"({kind.pattern or kind.plain})?", kind.holds
    meaning = f"{kind.meaning} or empty"
    return FieldType(meaning, f"({kind.plain})?", kind.arrow, pattern, holds and (lambda text: not text or holds(text)))


INTEGER = integer("an integer")
FULL_HEX = FieldType("8 hexadecimal digits", "[0-9a-fA-F]{8}", pa.binary())

_NIBBLE = np.zeros(256, np.uint8)
_NIBBLE[list(b"0123456789abcdef")] = range(16)
_NIBBLE[list(b"ABCDEF")] = range(10, 16)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The values of a column of well-formed fields, int64 or float64 [n]."""
    if column.type != pa.binary():
        return column.fill_null(EMPTY_INTEGER).to_numpy() if column.null_count else column.to_numpy()
    present = pc.equal(pc.binary_length(column), 8).to_numpy(zero_copy_only=False)
    text = b"".join(chunk.buffers()[2].to_pybytes() for chunk in column.chunks if chunk.buffers()[2] is not None)
    nibbles = _NIBBLE[np.frombuffer(text, np.uint8)]
    values = np.full(len(column), -1, np.int64)
    values[present] = (nibbles[::2] << 4 | nibbles[1::2]).view(">u4")
    return values


# Lines


@dataclass(frozen=True)
class LineFormat:
    """How the lines of a file are made.

    Attributes:
        fields: name -> type, in the order of the file.
        delimiter: no field contains it; of one character if `quoted`.
        header: the column names of the first line, each in double quotes or not; None: the file has no header.
        quoted: whether fields may be in double quotes; no type of field contains a quote.
    """

    fields: dict[str, FieldType]
    delimiter: str
    header: tuple[str, ...] | None = None
    quoted: bool = False

    @property
    def plain(self) -> str:
        """The regular expression of a line, with its end, whose fields are `FieldType.plain`."""
        fields = [f"(?:{kind.plain})" for kind in self.fields.values()]
        if self.quoted:
            fields = [f'(?:{text}|"{text}")' for text in fields]
        return rf"\A{re.escape(self.delimiter).join(fields)}\r?\n?\z"

    def split(self, line: bytes) -> list[bytes]:
        """The fields of a line (without its end)."""
        parts = line.split(self.delimiter.encode())
        return [_unquoted(part) for part in parts] if self.quoted else parts

    def fault(self, parts: list[bytes], line: bytes) -> str | None:
        """The fault of the fields of a line; None if they are well-formed."""
        if len(parts) != len(self.fields):
            expected = f"{len(self.fields)} are expected (separated by {self.delimiter!r})"
            return f"{len(parts)} fields where {expected}: {excerpt(line)}"
        for position, (part, (name, kind)) in enumerate(zip(parts, self.fields.items(), strict=True), 1):
            if not kind.accepts(part):
                return f"field {position} ({name}): {excerpt(part)} is not {kind.meaning}"
        return None

    def columns(self, text: pa.Buffer) -> dict[str, np.ndarray]:
        """The kept columns of well-formed lines, name -> int64 or float64 [lines]."""
        block, delimiter = text, self.delimiter
        if self.quoted:
            block = text.to_pybytes().translate(None, b'"')
        elif len(delimiter) > 1:  # Arrow takes one character
            block, delimiter = text.to_pybytes().replace(delimiter.encode(), b"\x1f"), "\x1f"
        types = {name: kind.arrow for name, kind in self.fields.items() if kind.arrow is not None}
        table = pyarrow.csv.read_csv(
            pa.BufferReader(block),
            read_options=pyarrow.csv.ReadOptions(column_names=list(self.fields), block_size=1 << 22),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter, quote_char=False, double_quote=False, ignore_empty_lines=False
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[""]
            ),
        )
        return {name: _numbers(table[name]) for name in types}

    def check_header(self, path: Path, line: bytes) -> None:
        """Raises DataError if the first line of a file is not `header`."""
        if self.split(line) != [name.encode() for name in self.header]:
            header = self.delimiter.join(self.header)
            raise DataError(f"{path}, line 1: {excerpt(line)} is not the header {header!r}")


def _unquoted(part: bytes) -> bytes:
    return part[1:-1] if len(part) > 1 and part.startswith(b'"') and part.endswith(b'"') else part


def excerpt(raw: bytes) -> str:
    """The first 80 bytes of a line, undecodable ones as \\x escapes."""
    return repr(raw[:80]).removeprefix("b") + (" ..." if len(raw) > 80 else "")


# Files


def read_columns(path: Path, form: LineFormat, bad: BadLines = STRICT) -> Iterator[dict[str, np.ndarray]]:
    """The columns of a text file, plain or .gz, block by block. Lines end in LF or CRLF; an initial byte order mark is skipped.

    Args:
        path: the file.
        form: of its lines.
        bad: how to treat bad lines.

    Yields:
        name -> int64 or float64 [good lines of this block], at least one, of the fields that are kept, and `line`, the numbers
            of these lines from 1.

    Raises:
        DataError: an unreadable file, a line over `MAX_LINE_BYTES`, another header, a bad line (`strict`), no good line or,
            after `MOSTLY_BAD` bad lines, more bad than good ones (`skip`).
    """
    line, good, before, plain = 1, 0, len(bad.skipped), form.plain
    for number, block in enumerate(blocks(path)):
        if number == 0 and form.header is not None:
            header, _, block = block.partition(b"\n")
            form.check_header(path, header.removesuffix(b"\r"))
            line += 1
        lines = _lines(block)
        keep = pc.match_substring_regex(lines, plain).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(~keep):
            text = lines[row].as_py().removesuffix(b"\n").removesuffix(b"\r")
            fault = form.fault(form.split(text), text)
            keep[row] = fault is None
            if fault:
                bad.add(path, line + int(row), fault, before)
        n_good = np.count_nonzero(keep)
        if n_good:
            good_lines = lines if n_good == len(lines) else lines.filter(pa.array(keep))
            yield form.columns(good_lines.buffers()[2]) | {"line": line + np.flatnonzero(keep)}
        good += n_good
        line += len(lines)
    if not good:
        if len(bad.skipped) == before:
            raise DataError(f"{path}: the file holds only a header")
        _, line, fault = bad.skipped[before]
        raise DataError(f"{path}: no line has the expected form, so it is another file. Line {line}: {fault}")


def _lines(block: bytes) -> pa.BinaryArray:
    """The lines of a block, with their ends."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")).astype(np.int32) + 1
    ends = np.append(ends, np.int32(len(block))) if block and not block.endswith(b"\n") else ends
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(block)])


def blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a text file, decompressed and cut after line ends; the last block may lack one.

    Raises:
        DataError: an unreadable or empty file, or a line longer than `MAX_LINE_BYTES`.
    """
    if other := other_file(path):
        raise DataError(f"{path}: {other}")
    line, parts, size, unfinished = 1, [], 0, 0  # bytes of the block, and of its last line
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as handle:
            if handle.read(len(BOM)) != BOM:
                handle.seek(0)
            while piece := handle.read(min(PIECE, BLOCK_BYTES)):
                end = piece.find(b"\n")
                if unfinished + (len(piece) if end < 0 else end) > MAX_LINE_BYTES:
                    raise DataError(
                        f"{path}, line {line}: longer than {MAX_LINE_BYTES:,} bytes, the most that a line may have"
                    )
                unfinished = unfinished + len(piece) if end < 0 else len(piece) - 1 - piece.rfind(b"\n")
                parts.append(piece)
                size += len(piece)
                line += piece.count(b"\n")
                if size >= BLOCK_BYTES and (cut := piece.rfind(b"\n") + 1):
                    parts[-1] = piece[:cut]
                    yield b"".join(parts)
                    parts, size = [piece[cut:]], len(piece) - cut
    except EOFError as error:
        raise DataError(f"{path}: the gzip file is truncated; the readable part ends about line {line}") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); the readable part ends about line {line}") from error
    if tail := b"".join(parts):
        yield tail
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
