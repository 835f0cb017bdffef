"""Click logs of Criteo and Avazu, larger than memory: the formats of their lines, and the schemas `dlrm` and `fields`.

Text is parsed block by block to one Parquet file, which is encoded column by column: memory holds the order of the rows and one
column with its vocabulary. Every file is complete or absent, so a call after a kill continues after the last one.

Source: Criteo Labs / Kaggle, Display Advertising Challenge, 2014, and the terabyte click logs in the same format: lines
`label I1..I13 C1..C26`, tab-separated; integers may be empty or negative, categories are 8 hexadecimal digits or empty.
Avazu / Kaggle, Click-Through Rate Prediction, 2014: lines `id,click,hour,C1,banner_pos,...,C21` below a header.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from drsrobust.data import SKIPPED, Feature, Schema
from drsrobust.extend import new_file, progress_bar, read_skipped, stale_parts
from drsrobust_extras.data import text_lines
from drsrobust_extras.data.id_encoding import encode_column, split_order, split_sizes
from drsrobust_extras.data.raw_cache import Contents, save_array
from drsrobust_extras.data.text_lines import (
    EMPTY_INTEGER,
    FULL_HEX,
    INTEGER,
    STRICT,
    BadLines,
    FieldType,
    LineFormat,
    check_share,
    integer,
    optional,
    read_columns,
    write_skipped,
)

RAW = "raw.parquet"
_PARSE_PROGRESS_FROM = 256 << 20  # bytes of source; parsing more shows a progress bar
PROGRESS_FROM_ROWS = 1_000_000  # encoding more rows shows a progress bar
STRIPE = 1 << 17  # rows of the dense matrix that are assembled at once

LABEL = "label"
COUNT_COLUMNS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
CLICK_LABEL = integer("a label, 0 or 1", "[01]", lambda number: 0 <= number <= 1)
CRITEO_LINES = LineFormat(
    {LABEL: CLICK_LABEL}
    | dict.fromkeys(COUNT_COLUMNS, optional(INTEGER))
    | dict.fromkeys(CATEGORIES, optional(FULL_HEX)),
    "\t",
)
MIN_COUNT = 10  # the study's threshold: categories seen fewer than 10 times share one id
MISSING_COUNT = EMPTY_INTEGER  # an empty integer, as it is parsed
NO_BUCKET = 2000  # code of an empty integer; the largest bucket is 1906
NO_CATEGORY = -1

HEADER = (
    "id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
)  # fmt: skip
FEATURES = ("day", "hour", *HEADER[3:])  # of a block of Avazu, all categories
_ID = FieldType("a number of at most 20 digits", "[0-9]{1,20}")
HOUR = FieldType("an hour of the form YYMMDDHH", r"\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])", pa.int64())
_HASHED = (*(name for name in HEADER if name.startswith(("site_", "app_"))), "device_id", "device_ip", "device_model")
AVAZU_LINES = LineFormat(
    {"id": _ID, "click": CLICK_LABEL, "hour": HOUR}
    | {name: FULL_HEX if name in _HASHED else INTEGER for name in HEADER[3:]},
    ",",
    HEADER,
    quoted=True,
)


def log_counts(values: np.ndarray) -> np.ndarray:
    """log(1 + max(x, 0)) as float32, so 0 for missing and negative values: the transform of the DLRM reference implementation
    (arXiv:1906.00091)."""
    return np.log1p(np.maximum(values, 0)).astype(np.float32)


def buckets(values: np.ndarray) -> np.ndarray:
    """Integers as categories, int64 [n]: floor(ln(x)^2) above 2; x - 2 up to 2, one category per value; `NO_BUCKET` if missing.

    Source: the study (arXiv:2307.10244), after the winners of the Kaggle challenge ("3 idiots", 2014).

    Example:
        >>> buckets(np.array([-1, 2, 3, 1000, MISSING_COUNT])).tolist()
        [-3, 0, 1, 47, 2000]
    """
    small = np.maximum(values, MISSING_COUNT + 3) - 2  # no overflow; the smallest integers share a bucket
    large = np.floor(np.log(np.maximum(values, 3)) ** 2).astype(np.int64)
    return np.where(values == MISSING_COUNT, NO_BUCKET, np.where(values > 2, large, small))


@dataclass(frozen=True)
class ClickTable:
    """How a click log is parsed.

    Attributes:
        lines: the format of its lines.
        columns: adds to a block's fields `label` (0 or 1), the dense columns (float32) and the features (int64).
        dense: names of the dense columns.
        features: name -> the value that means "missing" (None: there is none).
    """

    lines: LineFormat
    columns: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
    dense: tuple[str, ...]
    features: dict[str, int | None]

    def blocks(self, path: Path, bad: BadLines = STRICT) -> Iterator[dict[str, np.ndarray]]:
        """`label`, the dense columns and the features of a file, block by block; raises DataError as `read_columns`."""
        for block in read_columns(path, self.lines, bad):
            columns = self.columns(block)
            yield {name: columns[name] for name in (LABEL, *self.dense, *self.features)}


def _criteo_columns(
    transform: Callable[[np.ndarray], np.ndarray], block: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    return block | {name: transform(block[name]) for name in COUNT_COLUMNS}


def _avazu_columns(block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`label` (`click`) and the 23 `FEATURES`: `hour` (YYMMDDHH, UTC) becomes `day` (YYMMDD as a number) and `hour` (0 to 23).
    -1 in `C20` means missing."""
    day, hour = np.divmod(block["hour"], 100)
    return block | {LABEL: block["click"], "day": day, "hour": hour}


_CATEGORIES = dict.fromkeys(CATEGORIES, NO_CATEGORY)
TABLES = {
    "dlrm": ClickTable(CRITEO_LINES, partial(_criteo_columns, log_counts), COUNT_COLUMNS, _CATEGORIES),
    "fields": ClickTable(
        CRITEO_LINES, partial(_criteo_columns, buckets), (), dict.fromkeys(COUNT_COLUMNS, NO_BUCKET) | _CATEGORIES
    ),
    "avazu": ClickTable(AVAZU_LINES, _avazu_columns, (), dict.fromkeys(FEATURES) | {"C20": -1}),
}


def parse(part: Path, table: ClickTable, files: Sequence[Path], bad_lines: str) -> None:
    """Parses files into the Parquet file `RAW` of a working folder, unless it is there, and lists bad lines in `SKIPPED`.

    Raises:
        DataError: an unreadable file, a bad line (`strict`), or more bad lines than good ones (`skip`).
    """
    for stale in stale_parts(part, ".*"):
        stale.unlink()  # of a killed process: this process holds the lock of the data set
    if (part / RAW).exists():
        return
    schema = pa.schema(
        {LABEL: pa.int64()} | dict.fromkeys(table.dense, pa.float32()) | dict.fromkeys(table.features, pa.int64())
    )
    size, rows, skipped = sum(file.stat().st_size for file in files), 0, []
    with (
        new_file(part / RAW) as path,
        pq.ParquetWriter(path, schema) as writer,
        progress_bar(size // text_lines.BLOCK_BYTES + 1, "parsing", progress=size > _PARSE_PROGRESS_FROM) as bar,
    ):
        for file in files:
            bad = BadLines(bad_lines)
            for block in table.blocks(file, bad):
                writer.write_table(pa.table(block, schema))
                rows += len(block[LABEL])
                bar.update()
            skipped += bad.skipped
        if skipped:
            check_share(skipped[0], len(skipped), len(skipped) + rows)
        write_skipped(part / SKIPPED, skipped)
    pa.default_memory_pool().release_unused()  # some 40 MiB, for another block


def encode_clicks(
    part: Path, table: ClickTable, *, seed: int, min_count: int | None = None, hash_size: int | None = None
) -> Contents:
    """Writes the missing arrays of a data set into its working folder.

    Args:
        part: the folder, which holds `RAW`.
        table: names of the columns.
        seed: of the random split.
        min_count: values seen fewer times in the training rows share id 0 (None: 1).
        hash_size: number of hashed ids per feature, instead of a vocabulary.

    Raises:
        DataError: too few rows for three parts.
    """
    raw = pq.ParquetFile(part / RAW)
    n_rows = raw.metadata.num_rows
    sizes = split_sizes(n_rows)
    if not (part / "rows.npy").exists():
        save_array(part / "rows.npy", split_order(n_rows, seed)[0])
    order = np.load(part / "rows.npy", allow_pickle=False)
    if not (part / "labels.npy").exists():
        values, low = _column(raw, LABEL)
        save_array(part / "labels.npy", (values[order] + low).astype(np.float32))
    features = []
    with progress_bar(len(table.features) + 1, "encoding", progress=n_rows > PROGRESS_FROM_ROWS) as bar:
        for name, missing in table.features.items():
            path = part / f"ids.{name}.npy"
            if not path.exists():
                values, low = _column(raw, name)
                values = values[order]
                save_array(path, encode_column(name, values, sizes[0], min_count, hash_size, missing, low)[0])
            # Every id of a vocabulary occurs in a training row, so the largest one gives their number.
            ids = np.load(path, mmap_mode="r", allow_pickle=False)
            features.append(Feature(name, (int(ids.max()) if hash_size is None else hash_size) + 1))
            bar.update()
        if not (part / "dense.npy").exists():
            _write_dense(part, raw, table.dense, order)
        bar.update()
    skipped = read_skipped(part / SKIPPED) if (part / SKIPPED).exists() else ()
    return Contents(Schema(table.dense, tuple(features)), sizes, skipped=skipped)


def _column(raw: pq.ParquetFile, name: str) -> tuple[np.ndarray, int]:
    """An integer column [n] as differences from its smallest value, in the narrowest unsigned type, and that value; or a float
    column [n] and 0."""
    place, low, dtype = raw.schema_arrow.get_field_index(name), 0, np.dtype(np.float32)
    if integers := raw.schema_arrow.types[place] == pa.int64():
        groups = [raw.metadata.row_group(group).column(place).statistics for group in range(raw.num_row_groups)]
        low = min(group.min for group in groups)
        dtype = np.min_scalar_type(max(group.max for group in groups) - low)
    values, start = np.empty(raw.metadata.num_rows, dtype), 0
    for group in range(raw.num_row_groups):  # much less memory than `iter_batches`
        part = raw.read_row_group(group, columns=[name]).column(0).to_numpy()
        # Modulo 2^64, since a difference of two int64 may not fit in one.
        values[start : start + len(part)] = part.astype(np.uint64) - np.uint64(low % 2**64) if integers else part
        start += len(part)
    return values, low


def _write_dense(part: Path, raw: pq.ParquetFile, names: tuple[str, ...], order: np.ndarray) -> None:
    """Writes the dense matrix [n, D] float32: each column in split order to a temporary file, then all of them row by row,
    since filling the matrix by columns would write every page D times."""
    paths = [part / "dense" / f"{name}.npy" for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.exists():
            save_array(path, _column(raw, name)[0][order])
    n = len(order)
    with new_file(part / "dense.npy") as path, open(path, "wb") as handle:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, len(names))}
        np.lib.format.write_array_header_1_0(handle, header)
        for start in range(0, n, STRIPE):
            stripe = np.empty((min(STRIPE, n - start), len(names)), np.float32)
            for number, column in enumerate(paths):
                # Opened for each stripe: pages of a closed map do not count as memory of this process.
                stripe[:, number] = np.load(column, mmap_mode="r", allow_pickle=False)[start : start + STRIPE]
            handle.write(stripe.data)
    for path in paths:
        path.unlink()
