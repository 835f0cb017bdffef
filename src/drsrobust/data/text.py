"""Delimited text, plain or .gz, read in blocks by Arrow; a bad line is named by file, line, field and text.

A byte order mark at the beginning of a file is left out. Memory is bounded whatever a file holds: by the block, the longest
line and the number of bad lines after which a file is given up.

Arrow parses whole blocks at once. Only when it (or a check of a whole column) refuses a block is that block read again,
line by line, to find the lines that are wrong.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from drsrobust._names import unknown
from drsrobust.data.forms import BOM, Form, bare, shown
from drsrobust.data.kinds import HEX, INTEGER, LABEL, NOTHING, OPTIONAL_INTEGER, Kind

__all__ = [
    "HEX",
    "INTEGER",
    "LABEL",
    "NOTHING",
    "OPTIONAL_INTEGER",
    "BadLines",
    "DataError",
    "beginning",
    "read_columns",
    "read_text",
]

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
