"""A chunk of a result store: a Parquet file of trials of one condition, which carries the identity of its store.

It is named `condition-first-last-crc.parquet`: its condition, its first and last trial (it may lack some between), and the
CRC-32 of the file. Parquet's page checksums do not cover the footer: of 25,000 bit flips in a chunk one gave other values and
no error. A joined chunk carries the names of those that it replaces.
"""

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from drsrobust._files import new_file
from drsrobust.campaign.table import LATER

_IDENTITY, _REPLACES = b"drsrobust.campaign", b"drsrobust.replaces"
_NAME = re.compile(r"(?P<content>\d{5,}-\d{8,}-\d{8,})-(?P<crc>[0-9a-f]{8})\.parquet")
_AGAIN = "delete it and its trials are computed again"


class StoreError(RuntimeError):
    """A result store that is in use, damaged, full or of another campaign. The message names the file and what to do."""


def write_chunk(folder: Path, table: pa.Table, identity: str, replaced: Sequence[str] = ()) -> Path:
    """Writes a chunk of trials that `checked` accepts, or nothing; returns its file. Raises OSError without room."""
    sink = pa.BufferOutputStream()
    metadata = {_IDENTITY: identity.encode()} | ({_REPLACES: json.dumps(replaced)} if replaced else {})
    pq.write_table(table.replace_schema_metadata(metadata), sink, write_page_checksum=True, write_statistics=False)
    written = sink.getvalue()
    path = folder / f"{_content(*keys_of(table))}-{zlib.crc32(written):08x}.parquet"
    try:
        with new_file(path) as part:
            part.write_bytes(written)
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # it may have its final name already
        raise
    return path


def read_chunk(path: Path, identity: str, schema: pa.Schema) -> tuple[pa.Table, list[str]]:
    """The columns of `schema` of a whole file, which is checked against its name; and the names of the chunks that it replaces.

    Raises:
        StoreError: it is damaged, renamed, gone, of another store, or has other columns.
    """
    with _reading(path):
        content = path.read_bytes()
    named, crc = _NAME.fullmatch(path.name), f"{zlib.crc32(content):08x}"
    if named and named["crc"] != crc:
        raise _damaged(path, f"its checksum is {crc}, not the one in its name")
    with _reading(path), pq.ParquetFile(pa.BufferReader(content), pre_buffer=False) as file:
        return _checked(path, file.read(schema.names, use_threads=False), identity, schema)


def _checked(path: Path, table: pa.Table, identity: str, schema: pa.Schema) -> tuple[pa.Table, list[str]]:
    """The table without metadata, and the replaced names. Raises StoreError for a chunk of another store or name, ValueError
    for one that could not have been written."""
    metadata = table.schema.metadata or {}
    if _IDENTITY not in metadata:
        raise StoreError(f"{path} is no chunk of a campaign; remove it from {path.parent}")
    if metadata[_IDENTITY] != identity.encode():
        raise StoreError(f"{path} belongs to another campaign; remove it from {path.parent}")
    if not table.schema.equals(schema):
        names = table.schema.names
        for name in LATER:  # an earlier version did not have them
            if name in schema.names and name not in names:
                table = table.append_column(schema.field(name), pa.nulls(len(table), schema.field(name).type))
        table = table.select([name for name in schema.names if name in table.schema.names])
    if not table.schema.equals(schema):
        raise StoreError(f"{path} has other columns than its campaign, {difference(table.schema, schema)}; {_AGAIN}")
    condition, trials = keys_of(table)
    content, named = _content(condition, trials), _NAME.fullmatch(path.name)
    if named is None or named["content"] != content:
        raise StoreError(
            f"{path} was renamed or copied: it holds trials {trials[0]} to {trials[-1]} of condition {condition}, so its "
            f"name must begin with {content}; {_AGAIN}"
        )
    return table.replace_schema_metadata(None), json.loads(metadata.get(_REPLACES, b"[]"))


def keys_of(table: pa.Table) -> tuple[int, np.ndarray]:
    """The condition and the trials (int64 [n]) of a chunk.

    Raises:
        ValueError: an empty table, several conditions, or trials that do not ascend.
    """
    if not len(table):
        raise ValueError("a chunk must hold at least one trial; this one is empty")
    if table["condition"].null_count or table["trial"].null_count:
        raise ValueError("a chunk must have a condition and a trial number in each row; in this one some are null")
    conditions, trials = table["condition"].to_numpy(), table["trial"].to_numpy()
    if (conditions != conditions[0]).any():
        raise ValueError(f"a chunk must be of one condition; this one is of {np.unique(conditions).tolist()}")
    if conditions[0] < 0 or trials[0] < 0:
        raise ValueError(f"condition {conditions[0]}, trial {trials[0]}: neither may be negative")
    if len(back := np.flatnonzero(np.diff(trials) <= 0)):
        first, other = trials[back[0] : back[0] + 2]
        raise ValueError(f"the trials of a chunk must ascend; in this one {other} follows {first}")
    return int(conditions[0]), trials


def may_hold(name: str, condition: int, trial: int) -> bool:
    """Whether a chunk of this name holds a trial, if it lacks none."""
    parts = name.split("-")
    return parts[0] == f"{condition:05d}" and len(parts) > 2 and int(parts[1]) <= trial <= int(parts[2])


def difference(present: pa.Schema, expected: pa.Schema) -> str:
    """The first columns that differ, as text."""
    for at in range(max(len(present), len(expected))):
        actual, other = (schema.field(at) if at < len(schema) else None for schema in (present, expected))
        if actual is None or other is None or not actual.equals(other):
            written, required = (
                "none" if field is None else f"{field.name} ({field.type})" for field in (actual, other)
            )
            return f"column {at} is {written}, and must be {required}"
    return "in nullability"


def why(error: OSError) -> str:
    """What the system says of an error, without the file."""
    return error.strerror or str(error)


def _content(condition: int, trials: Sequence[int]) -> str:
    """The beginning of a chunk's name."""
    return f"{condition:05d}-{trials[0]:08d}-{trials[-1]:08d}"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns errors of reading a chunk into StoreError."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(
            f"{path} was deleted while it was read; read again, and its trials are computed again"
        ) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow's own have none
            raise StoreError(f"{path} cannot be read: {why(error)}") from error
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, reason: str) -> StoreError:
    if _NAME.fullmatch(path.name):
        return StoreError(f"{path} is damaged ({reason}); {_AGAIN}")
    return StoreError(f"{path} is no chunk of a campaign ({reason}); remove it from {path.parent}")
