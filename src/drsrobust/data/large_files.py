"""Data sets larger than memory: text is parsed block by block to files of raw columns, which are encoded column by column.

Every file is complete or absent, so a call after a kill continues after the last one. Memory holds the order of the rows and
one column with its vocabulary. Data sets in memory use the same split and ids.
"""

import ctypes
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from drsrobust._environment import progress_bar
from drsrobust._files import new_file
from drsrobust._hashing import splitmix64
from drsrobust.data import text_files
from drsrobust.data.cache import Contents, save
from drsrobust.data.dataset import Feature, Schema
from drsrobust.data.text_files import BadLines, DataError, Skipped, check_share

PARSED = "parsed"  # an empty file: all blocks are complete
LABEL = "label"
PROGRESS_FROM = 256 << 20  # bytes of source; parsing more shows a progress bar
PROGRESS_FROM_ROWS = 1_000_000  # encoding more rows shows a progress bar
STRIPE = 1 << 17  # rows of the dense matrix that are assembled at once
SHARES = (0.8, 0.1)  # training, validation; the rest is test
CHUNK = 1 << 24  # rows that are looked up at once: the vocabulary's hash table is built once for each chunk
HASH_CHUNK = 1 << 20  # rows that are hashed at once: a few copies of 8 bytes each


@dataclass(frozen=True)
class Table:
    """How the lines of a click log are parsed.

    Attributes:
        blocks: (path, bad lines, first block) -> blocks of columns, name -> array [rows of the block]: `label` (0 or 1), the
            dense columns (float32) and the features (int64). The cuts between blocks do not depend on the first block.
        dense: names of the dense columns.
        features: name -> the value that means "missing" (None: there is none).
    """

    blocks: Callable[[Path, BadLines, int], Iterator[dict[str, np.ndarray]]]
    dense: tuple[str, ...]
    features: dict[str, int | None]


@dataclass(frozen=True)
class Block:
    """One block file: its rows, smallest and largest value of each integer column, and number of bad lines."""

    path: Path
    rows: int
    ranges: dict[str, tuple[int, int]]
    bad: int


class Raw:
    """The block files of a folder, as columns of all rows in the order of the source.

    Integers are stored as differences from the block's smallest value, in the narrowest unsigned type: 4 bytes for a category
    of 8 hexadecimal digits, 1 to 4 for a count.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks: list[Block] = []
        self.rows = self.bad = 0  # bad: number of bad lines
        paths = sorted(folder.glob("*.safetensors"))
        for number, path in enumerate(paths):
            try:
                facts = _facts(path)
            except SafetensorError:
                facts = {}
            if facts.get("cut") != [text_files.BLOCK, text_files.PIECE]:
                # Damaged, or cut otherwise by another version: this block and all later ones are parsed again.
                (folder / PARSED).unlink(missing_ok=True)
                for rest in paths[number:]:
                    rest.unlink()
                break
            self._append(Block(path, facts["rows"], facts["ranges"], len(facts["bad"])))

    def __len__(self) -> int:
        return self.rows

    def add(self, name: str, columns: dict[str, np.ndarray], bad: list[Skipped]) -> None:
        """Writes one block file."""
        ranges, packed, rows = {}, {}, len(columns[LABEL])
        for column, values in columns.items():
            if rows and values.dtype.kind == "i":
                ranges[column] = low, high = int(values.min()), int(values.max())
                # Modulo 2^64, since a difference of two int64 may not fit in one.
                values = (values.astype(np.uint64) - np.uint64(low % 2**64)).astype(np.min_scalar_type(high - low))
            packed[column] = values
        path = self.folder / f"{name}.safetensors"
        with new_file(path) as part:
            facts = {"rows": rows, "ranges": ranges, "bad": bad, "cut": [text_files.BLOCK, text_files.PIECE]}
            save_file(packed, part, {"facts": json.dumps(facts)})
        self._append(Block(path, rows, ranges, len(bad)))

    def _append(self, block: Block) -> None:
        self.blocks.append(block)
        self.rows += block.rows
        self.bad += block.bad

    def column(self, name: str) -> tuple[np.ndarray, int]:
        """An integer column [n] as differences from its smallest value, in the narrowest unsigned type, and that value; or a
        float column [n] and 0."""
        ranges = [block.ranges[name] for block in self.blocks if name in block.ranges]
        low = min((low for low, _ in ranges), default=0)
        values, start = None, 0
        for block in self.blocks:
            with safe_open(block.path, "np") as file:
                part = file.get_tensor(name)
            if values is None:
                dtype = np.min_scalar_type(max(high for _, high in ranges) - low) if ranges else part.dtype
                values = np.empty(len(self), dtype)
            values[start : start + block.rows] = part
            if name in block.ranges:
                values[start : start + block.rows] += dtype.type((block.ranges[name][0] - low) % 2**64)
            start += block.rows
        return values, low

    def skipped(self) -> Iterator[Skipped]:
        """The bad lines, in order."""
        for block in self.blocks:
            if block.bad:
                yield from _facts(block.path)["bad"]


def _facts(path: Path) -> dict:
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["facts"])


def parse(folder: Path, table: Table, files: Sequence[Path], bad_lines: str) -> Raw:
    """Parses files into block files in `folder`, from where an earlier call stopped.

    Raises:
        DataError: an unreadable file, a bad line (`strict`), or more bad lines than good ones (`skip`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder)
    raw = Raw(folder)
    if (folder / PARSED).exists():
        return raw
    size = sum(file.stat().st_size for file in files)
    with progress_bar(size // text_files.BLOCK + 1, "parsing", progress=size > PROGRESS_FROM) as bar:
        bar.update(len(raw.blocks))
        last_file, last_block = map(int, raw.blocks[-1].path.stem.split("-")) if raw.blocks else (0, -1)
        for number in range(last_file, len(files)):
            first = last_block + 1 if number == last_file else 0
            bad, n_listed = BadLines(bad_lines), 0
            for position, columns in enumerate(table.blocks(files[number], bad, first), first):
                raw.add(f"{number:03}-{position:06}", columns, bad.skipped[n_listed:])
                n_listed = len(bad.skipped)
                bar.update()
    if raw.bad:
        check_share(next(raw.skipped()), raw.bad, raw.bad + len(raw))
    # Arrow and glibc would keep some 150 MiB for another block.
    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    with new_file(folder / PARSED) as path:
        path.touch()
    return raw


def _remove_stale(folder: Path) -> None:
    for stale in folder.glob(".*.part"):
        stale.unlink()  # of a killed process: this process holds the lock of the data set


def encode(
    part: Path, raw: Raw, table: Table, *, seed: int, min_count: int | None = None, hash_size: int | None = None
) -> Contents:
    """Writes the missing arrays of a data set into the working folder `part`.

    Args:
        part: folder of the encoded data set.
        raw: all rows.
        table: names of the columns.
        seed: of the random split.
        min_count: values seen fewer times in the training rows share id 0 (None: 1).
        hash_size: number of hashed ids per feature, instead of a vocabulary.

    Raises:
        DataError: too few rows for three parts.
    """
    _remove_stale(part)
    sizes = split_sizes(len(raw))
    if not (part / "rows.npy").exists():
        save(part / "rows.npy", split_order(len(raw), seed)[0])
    order = np.load(part / "rows.npy", allow_pickle=False)
    if not (part / "labels.npy").exists():
        values, low = raw.column(LABEL)
        save(part / "labels.npy", (values[order] + low).astype(np.float32))
    features = []
    with progress_bar(len(table.features) + 1, "encoding", progress=len(raw) > PROGRESS_FROM_ROWS) as bar:
        for name, missing in table.features.items():
            path = part / f"ids.{name}.npy"
            if not path.exists():
                values, low = raw.column(name)
                values = values[order]
                save(path, encode_column(name, values, sizes[0], min_count, hash_size, missing, low)[0])
            # Every id of a vocabulary occurs in a training row, so the largest one gives their number.
            ids = np.load(path, mmap_mode="r", allow_pickle=False)
            features.append(Feature(name, (int(ids.max()) if hash_size is None else hash_size) + 1))
            bar.update()
        if not (part / "dense.npy").exists():
            _write_dense(part, raw, table.dense, order)
        bar.update()
    return Contents(Schema(table.dense, tuple(features)), sizes, skipped=raw.skipped())


def _write_dense(part: Path, raw: Raw, names: tuple[str, ...], order: np.ndarray) -> None:
    """Writes the dense matrix [n, D] float32: each column in split order to a temporary file, then all of them row by row,
    since filling the matrix by columns would write every page D times."""
    paths = [raw.folder / f"dense.{name}.npy" for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.exists():
            save(path, raw.column(name)[0][order])
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


def split_sizes(n: int) -> tuple[int, int, int]:
    """Numbers of training, validation and test rows among n; DataError for n < 10, where a part would be empty."""
    if n < 10:
        raise DataError(f"{n} rows cannot be split into training, validation and test rows; at least 10 are needed")
    train, valid = int(SHARES[0] * n), int(SHARES[1] * n)
    return train, valid, n - train - valid


def split_order(n: int, seed: int) -> tuple[np.ndarray, tuple[int, int, int]]:
    """A seeded random order of n rows (int64 [n]) and `split_sizes(n)`."""
    sizes = split_sizes(n)
    return np.random.default_rng(seed).permutation(n), sizes


def encode_column(
    name: str,
    values: np.ndarray,
    n_train: int,
    min_count: int | None,
    hash_size: int | None = None,
    missing: int | None = None,
    low: int = 0,
) -> tuple[np.ndarray, int]:
    """Ids (int32 [n]) of a column of integers in split order, minus `low`, and their cardinality: by `hash_ids` with a
    `hash_size`, else by `encode_ids` with `min_count` (None: 1)."""
    if hash_size is None:
        return encode_ids(values, n_train, min_count or 1)
    return hash_ids(values, hash_size, name, missing, low), hash_size + 1


def encode_ids(values: np.ndarray, n_train: int, min_count: int = 1) -> tuple[np.ndarray, int]:
    """Ids (int32 [n]) of a column of integers in split order, and their cardinality, the highest id + 1.

    Values that occur at least `min_count` times among the first `n_train` get the ids 1, 2, ... in ascending order; all others
    get id 0.
    """
    vocabulary, counts = np.unique(values[:n_train], return_counts=True)
    vocabulary = vocabulary[counts >= min_count]
    del counts
    ids = np.empty(len(values), np.int32)
    for start in range(0, len(values), CHUNK):
        # Arrow's hash table is several times faster than a binary search; null means absent.
        index = pc.index_in(pa.array(values[start : start + CHUNK]), value_set=pa.array(vocabulary))
        np.add(index.fill_null(-1).to_numpy(), 1, out=ids[start : start + CHUNK])
    return ids, len(vocabulary) + 1


def hash_ids(values: np.ndarray, size: int, feature: str, missing: int | None = None, low: int = 0) -> np.ndarray:
    """Ids without a vocabulary, int32 [n]: 1 + splitmix64(value XOR key) mod `size`, and 0 for the value `missing`.

    The key is the first 8 bytes (little-endian) of the SHA-256 of the feature's name, so that features collide differently.
    Values count as unsigned 64-bit numbers (two's complement).

    Args:
        values: integers [n], minus `low`.
        size: number of ids apart from 0, from 1 to 2^31 - 2.
        feature: its name.
        missing: the value that means "missing"; None: there is none.
        low: offset of `values`.

    Example:
        >>> hash_ids(np.array([7, 7, -1]), 1000, "C1", missing=-1).tolist()
        [563, 563, 0]
    """
    key = np.frombuffer(hashlib.sha256(feature.encode()).digest()[:8], "<u8")[0]
    ids = np.empty(len(values), np.int32)
    for start in range(0, len(values), HASH_CHUNK):
        chunk = values[start : start + HASH_CHUNK].astype(np.uint64) + np.uint64(low % 2**64)
        part = (splitmix64(chunk ^ key) % np.uint64(size)).astype(np.int32) + np.int32(1)
        if missing is not None:
            part[chunk == np.uint64(missing % 2**64)] = 0
        ids[start : start + HASH_CHUNK] = part
    return ids
