"""Delimited text, plain or .gz, read in blocks by Arrow; a bad line is named by file, line, field and text.

Arrow parses whole blocks at once. Only when it (or a check of a whole column) refuses a block is that block read again,
line by line, to find the first line that is wrong.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

BLOCK = 32 << 20  # bytes of decompressed text that are parsed at once
PIECE = 1 << 20  # bytes that are read at once: so much of a truncated file is not told apart


class DataError(ValueError):
    """A data file that is not what it should be. The message says where, what stands there and what would be right."""


@dataclass(frozen=True)
class Kind:
    """What one field may hold."""

    type: pa.DataType
    pattern: re.Pattern[bytes]
    meaning: str
    optional: bool = False


INTEGER = Kind(pa.int64(), re.compile(rb" *-?\d+ *"), "an integer")
OPTIONAL_INTEGER = Kind(pa.int64(), re.compile(rb" *(-?\d+)? *"), "an integer or empty", optional=True)
LABEL = Kind(pa.int64(), re.compile(rb" *(-?0+|0*1) *"), "a label, 0 or 1")
HEX = Kind(pa.binary(), re.compile(rb"([0-9a-fA-F]{8})?"), "8 hexadecimal digits or empty", optional=True)
NOTHING = Kind(pa.binary(), re.compile(rb""), "empty (fields are separated by '::')")


def read_columns(path: Path, fields: dict[str, Kind], delimiter: str) -> Iterator[dict[str, np.ndarray]]:
    """The columns of a text file, block by block.

    Args:
        path: the file; a .gz is decompressed on the way.
        fields: name -> kind, in the order of the file.
        delimiter: one character.

    Yields:
        name -> array [rows of this block]: int64 for integers (a missing optional one is the smallest int64), int64 of
        the hexadecimal number for HEX (missing: -1). Fields that hold NOTHING are checked and left out.

    Raises:
        DataError: an unreadable file or a bad line.
    """
    line = 1
    for block in _blocks(path):
        yield _parse(path, line, block, fields, delimiter)
        line += block.count(b"\n")


def read_text(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """(line number, line) of a small text file.

    Raises:
        DataError: an unreadable or empty file, or bytes that are not `encoding`.
    """
    number = 1
    for block in _blocks(path):
        for raw in block.splitlines():
            try:
                yield number, raw.decode(encoding)
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: bytes that are not {encoding}: {_shown(raw)}") from error
            number += 1


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


def _parse(path: Path, line: int, block: bytes, fields: dict[str, Kind], delimiter: str) -> dict[str, np.ndarray]:
    refused = ""
    if b"0x" in block or b"0X" in block:  # Arrow takes 0x10 for an integer
        _raise_first(path, line, block, fields, delimiter)
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(block),
            read_options=pyarrow.csv.ReadOptions(column_names=list(fields), block_size=1 << 22),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter, quote_char=False, double_quote=False, ignore_empty_lines=False
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: kind.type for name, kind in fields.items()}, null_values=[""]
            ),
        )
        columns = {name: _column(table[name], kind) for name, kind in fields.items()}
        if table.num_rows == block.count(b"\n") + (not block.endswith(b"\n")):
            return {name: values for name, values in columns.items() if fields[name] is not NOTHING}
        refused = "a carriage return inside a line"
    except (pa.ArrowInvalid, ValueError) as error:
        refused = str(error)
    _raise_first(path, line, block, fields, delimiter)
    raise DataError(f"{path}: {refused}")


def _column(column: pa.ChunkedArray, kind: Kind) -> np.ndarray:
    """One checked column; raises ValueError when a value does not fit (the caller finds the line)."""
    if kind is HEX:
        return _hexadecimal(column)
    if kind is NOTHING:
        if pc.max(pc.binary_length(column)).as_py():
            raise ValueError("a field that should be empty is not")
        return np.empty(0)
    if column.null_count and not kind.optional:
        raise ValueError("a missing value")
    values = column.fill_null(np.iinfo(np.int64).min).to_numpy() if column.null_count else column.to_numpy()
    if kind is LABEL and not np.isin(values, (0, 1)).all():
        raise ValueError("an unknown label")
    return values


_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[list(b"0123456789abcdef")] = range(16)
_NIBBLE[list(b"ABCDEF")] = range(10, 16)


def _hexadecimal(column: pa.ChunkedArray) -> np.ndarray:
    present = pc.equal(pc.binary_length(column), 8).to_numpy(zero_copy_only=False)
    text = b"".join(chunk.buffers()[2].to_pybytes() for chunk in column.chunks if chunk.buffers()[2] is not None)
    if len(text) != 8 * np.count_nonzero(present):
        raise ValueError("a category that is not 8 digits long")
    nibbles = _NIBBLE[np.frombuffer(text, np.uint8)].reshape(-1, 8)
    if (nibbles == 255).any():
        raise ValueError("a category that is not hexadecimal")
    values = np.full(len(present), -1, np.int64)
    values[present] = nibbles.astype(np.int64) @ (16 ** np.arange(7, -1, -1, dtype=np.int64))
    return values


def _raise_first(path: Path, line: int, block: bytes, fields: dict[str, Kind], delimiter: str) -> None:
    """Raises the DataError of the first bad line of a block; returns when every line looks right."""
    separator = delimiter.encode()
    for number, text in enumerate(block.removesuffix(b"\n").split(b"\n"), line):
        parts = text.removesuffix(b"\r").split(separator)
        if len(parts) != len(fields):
            raise DataError(
                f"{path}, line {number}: {len(parts)} fields where {len(fields)} are expected "
                f"(separated by {delimiter!r}): {_shown(text)}"
            )
        for position, (part, (name, kind)) in enumerate(zip(parts, fields.items(), strict=True), 1):
            fits = kind.pattern.fullmatch(part)
            if fits and kind.type == pa.int64() and part.strip():
                fits = len(part) < 1000 and -(2**63) < int(part) < 2**63
            if not fits:
                raise DataError(
                    f"{path}, line {number}, field {position} ({name}): {_shown(part)} is not {kind.meaning}"
                )


def _shown(raw: bytes) -> str:
    """At most 80 bytes of a line, undecodable ones as \\x escapes."""
    return repr(raw[:80]).removeprefix("b") + (" ..." if len(raw) > 80 else "")
