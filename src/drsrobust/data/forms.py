"""How the lines of a delimited file look: a block of them to columns, and what is wrong with a single line."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv

from drsrobust.data.kinds import Digits, Empty, Kind

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
