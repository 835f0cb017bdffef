"""Delimited text, plain or .gz, read in blocks by Arrow; a bad line is named by file, line, field and text.

Arrow parses whole blocks at once. Only when it (or a check of a whole column) refuses a block is that block read again,
line by line, to find the lines that are wrong.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from drsrobust._names import unknown
from drsrobust.data.forms import Form, bare, shown
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
        DataError: an unreadable file, another header, a bad line (`strict`), no good line at all (`skip`), or fewer
            blocks than are to be passed over.
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
            columns = _parse(path, line, block, form, bad)
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
        DataError: an unreadable or empty file, or (`bad` strict or None) bytes that are not `encoding`.
    """
    number, bad = 1, BadLines() if bad is None else bad
    for block in _blocks(path):
        for raw in block.splitlines():
            try:
                yield number, raw.decode(encoding)
            except UnicodeDecodeError:
                bad.add(path, number, f"bytes that are not {encoding}: {shown(raw)}")
            number += 1


def beginning(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a text file (decompressed): enough to see of which form it is.

    Raises:
        DataError: an unreadable or empty file.
    """
    return next(_blocks(path))[:size]


def _blocks(path: Path) -> Iterator[bytes]:
    """The file's bytes, cut after line ends; the last block may lack one."""
    line, parts, size = 1, [], 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as handle:
            while piece := handle.read(min(PIECE, BLOCK)):
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


def _parse(path: Path, line: int, block: bytes, form: Form, bad: BadLines) -> dict[str, np.ndarray]:
    """The columns of a block whose first line is number `line`, without its bad lines."""
    columns = form.columns(block)
    if columns is None:
        good = []
        for number, raw in enumerate(block.removesuffix(b"\n").split(b"\n"), line):
            if fault := form.fault(raw.removesuffix(b"\r")):
                bad.add(path, number, fault)
            else:
                good.append(raw + b"\n")
        columns = form.columns(b"".join(good))
        if columns is None:
            raise DataError(f"{path}, lines {line} to {number}: not readable as {', '.join(form.fields)}")
    return columns


def _another_file(path: Path, _: str, line: int, wrong: str) -> DataError:
    return DataError(f"{path}: no line is of the form, so it is another file. Line {line}: {wrong}")
