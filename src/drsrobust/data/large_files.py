"""Pass 1 over text of any size: each block of lines becomes one file of raw columns, so that columns can be read one by one.

A block file is complete or absent, and its name says which block of which source it is: after a kill, parsing goes on
behind the last one. Integers are stored as differences from the block's smallest value, in the narrowest type that holds
them: 4 bytes for a category of 8 hexadecimal digits, 1 to 4 for a count.

Pass 2: from raw columns to the arrays of the encoded set, one column at a time.

Memory holds the order of the rows and one column with its vocabulary, whatever the number of columns. Every array is a file
that is complete or absent: after a kill, what is finished is not made again.

From raw columns to model inputs: the random split, vocabularies from training rows, hashed ids."""

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
from tqdm import tqdm

from drsrobust._environment import progress_bar
from drsrobust._files import new_file
from drsrobust._hashing import splitmix64
from drsrobust.data import text_files as text
from drsrobust.data.cache import Contents, save
from drsrobust.data.dataset import Feature, Schema
from drsrobust.data.text_files import BadLines, DataError, Skipped, check_share

PARSED = "parsed"  # an empty file that says: all blocks are there
LABEL = "label"
SHOWN = 256 << 20  # bytes of source from which on progress is shown


@dataclass(frozen=True)
class Table:
    """What the lines of a click log become.

    Attributes:
        blocks: (path, bad lines, first block) -> blocks of columns, name -> array [rows of the block]: `label` (0 or 1),
            the dense columns (float32) and the features (int64). Blocks are cut alike whichever the first one is.
        dense: names of the dense columns.
        features: names of the features, each with the value that stands for "missing" (None: none does).
    """

    blocks: Callable[[Path, BadLines, int], Iterator[dict[str, np.ndarray]]]
    dense: tuple[str, ...]
    features: dict[str, int | None]


def parse(folder: Path, table: Table, files: Sequence[Path], bad_lines: str) -> "Raw":
    """Parses the files into block files in `folder`, from where an earlier call was stopped.

    Raises:
        DataError: an unreadable file, a bad line (`strict`), or more bad lines than good ones (`skip`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(".*.part"):
        stale.unlink()  # of a killed process; nobody else writes here
    raw = Raw(folder)
    if (folder / PARSED).exists():
        return raw
    size = sum(file.stat().st_size for file in files)
    with progress_bar(size // text.BLOCK + 1, "parsing", progress=size > SHOWN) as bar:
        bar.update(len(raw.blocks))
        done = [tuple(map(int, block.path.stem.split("-"))) for block in raw.blocks]
        last_file, last_block = done[-1] if done else (0, -1)
        for number in range(last_file, len(files)):
            first = last_block + 1 if number == last_file else 0
            _parse_file(raw, table, files[number], number, first, bad_lines, bar)
    raw.check_share()
    _give_back_memory()
    with new_file(folder / PARSED) as path:
        path.touch()
    return raw


def _parse_file(raw: "Raw", table: Table, file: Path, number: int, first: int, bad_lines: str, bar: tqdm) -> None:
    """Parses one file, from block `first` on; it is the file `number` of the source, from 0."""
    bad, seen = BadLines(bad_lines), 0
    for position, columns in enumerate(table.blocks(file, bad, first), first):
        raw.add(f"{number:03}-{position:06}", columns, bad.found[seen:])
        seen = len(bad.found)
        bar.update()


def _give_back_memory() -> None:
    """Returns freed memory to the system: Arrow and glibc keep some 150 MiB for a next block that does not come."""
    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@dataclass(frozen=True)
class Block:
    """One block file: its rows, smallest and largest value of each integer column, and how many lines were bad."""

    path: Path
    rows: int
    ranges: dict[str, tuple[int, int]]
    bad: int


class Raw:
    """The block files in a folder, as columns of all rows in the order of the source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks: list[Block] = []
        self.rows = self.bad = 0  # rows, and lines left out
        for path in sorted(folder.glob("*.safetensors")):
            try:
                facts = _facts(path)
            except SafetensorError:
                facts = {}
            if facts.get("cut") != [text.BLOCK, text.PIECE]:
                # Damaged, or of a version that cut the text otherwise: it and what follows is parsed again.
                (folder / PARSED).unlink(missing_ok=True)
                for rest in sorted(folder.glob("*.safetensors"))[len(self.blocks) :]:
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
                values = _shifted(values, low, _narrowest(high - low))
            packed[column] = values
        path = self.folder / f"{name}.safetensors"
        with new_file(path) as part:
            facts = {"rows": rows, "ranges": ranges, "bad": bad, "cut": [text.BLOCK, text.PIECE]}
            save_file(packed, part, {"facts": json.dumps(facts)})
        self._append(Block(path, rows, ranges, len(bad)))

    def column(self, name: str) -> tuple[np.ndarray, int]:
        """One column [n] as differences from its smallest value, in the narrowest unsigned type, and that value; a float
        column as it is, and 0."""
        ranges = [block.ranges[name] for block in self.blocks if name in block.ranges]
        low = min((low for low, _ in ranges), default=0)
        values, start = None, 0
        for block in self.blocks:
            with safe_open(block.path, "np") as file:
                part = file.get_tensor(name)
            if values is None:
                kind = _narrowest(max(high for _, high in ranges) - low) if ranges else part.dtype
                values = np.empty(len(self), kind)
            if name in block.ranges:
                values[start : start + block.rows] = part
                values[start : start + block.rows] += kind.type((block.ranges[name][0] - low) % 2**64)
            elif block.rows:
                values[start : start + block.rows] = part
            start += block.rows
        return values, low

    def skipped(self) -> Iterator[Skipped]:
        """The lines that were left out, in order."""
        for block in self.blocks:
            if block.bad:
                yield from _facts(block.path)["bad"]

    def _append(self, block: Block) -> None:
        self.blocks.append(block)
        self.rows += block.rows
        self.bad += block.bad

    def check_share(self) -> None:
        """Raises DataError when more than half of the lines so far were bad."""
        if self.bad:
            check_share(next(self.skipped()), self.bad, len(self))


def _facts(path: Path) -> dict:
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["facts"])


def _narrowest(span: int) -> np.dtype:
    """The narrowest unsigned type that holds 0 .. span."""
    return np.min_scalar_type(span)


def _shifted(values: np.ndarray, low: int, kind: np.dtype) -> np.ndarray:
    """values - low, in arithmetic modulo 2^64: no difference of two int64 is too large for it."""
    return (values.astype(np.uint64) - np.uint64(low % 2**64)).astype(kind)


STRIPE = 1 << 17  # rows of the dense matrix that are put together at once
SHOWN_COLUMNS = 1_000_000  # rows from which on progress is shown


def encode(
    part: Path, raw: Raw, table: Table, *, seed: int, min_count: int | None = None, hash_size: int | None = None
) -> Contents:
    """Writes the arrays of a set into the working folder `part`, those that are not there yet.

    Args:
        part: of the encoded set.
        raw: all rows.
        table: what its columns are.
        seed: of the random split.
        min_count: values seen fewer times in the training rows share id 0.
        hash_size: ids per feature, by hashing instead of a vocabulary; `min_count` is then None.

    Raises:
        DataError: too few rows for three parts.
    """
    for stale in part.glob(".*.part"):
        stale.unlink()  # of a killed process; nobody else writes here
    sizes = split_sizes(len(raw))
    order = _order(part / "rows.npy", len(raw), seed)
    if not (part / "labels.npy").exists():
        values, low = raw.column(LABEL)
        save(part / "labels.npy", (values[order] + low).astype(np.float32))
    features = []
    with progress_bar(len(table.features) + 1, "encoding", progress=len(raw) > SHOWN_COLUMNS) as bar:
        for name, missing in table.features.items():
            path = part / f"ids.{name}.npy"
            if not path.exists():
                save(path, _ids(raw, name, order, sizes[0], missing, min_count, hash_size))
            # Every id of a vocabulary stands in a training row, so that the highest one tells how many there are.
            ids = np.load(path, mmap_mode="r", allow_pickle=False)
            features.append(Feature(name, (int(ids.max()) if hash_size is None else hash_size) + 1))
            bar.update()
        if not (part / "dense.npy").exists():
            _dense(part, raw, table.dense, order)
        bar.update()
    return Contents(Schema(table.dense, tuple(features)), sizes, skipped=raw.skipped())


def _order(path: Path, n: int, seed: int) -> np.ndarray:
    if not path.exists():
        save(path, split_order(n, seed)[0])
    return np.load(path, allow_pickle=False)


def _ids(
    raw: Raw,
    name: str,
    order: np.ndarray,
    n_train: int,
    missing: int | None,
    min_count: int | None,
    hash_size: int | None,
) -> np.ndarray:
    values, low = raw.column(name)
    values = values[order]
    if hash_size is None:
        return encode_ids(values, n_train, min_count or 1)[0]
    return hash_ids(values, hash_size, name, missing, low)


def _dense(part: Path, raw: Raw, names: tuple[str, ...], order: np.ndarray) -> None:
    """The dense matrix [n, D] float32: each column in split order in a file of its own, then all of them row by row. So
    files are written once, from front to back, where a matrix filled by columns would be written D times."""
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
            for place, column in enumerate(paths):
                # Opened anew for each stripe: pages of a map that is closed are not in this process's memory.
                stripe[:, place] = np.load(column, mmap_mode="r", allow_pickle=False)[start : start + STRIPE]
            handle.write(stripe.data)
    for path in paths:
        path.unlink()


SHARES = (0.8, 0.1)  # training, validation; the rest is test
CHUNK = 1 << 24  # rows that are looked up at once: a vocabulary's hash table is built once for each chunk
HASH_CHUNK = 1 << 20  # rows that are hashed at once: a few copies of 8 bytes each


def split_sizes(n: int) -> tuple[int, int, int]:
    """How many of n rows are training, validation and test rows.

    Raises:
        DataError: fewer than 10 rows, so that a part would be empty.
    """
    if n < 10:
        raise DataError(f"{n} rows cannot be split into training, validation and test rows; at least 10 are needed")
    train, valid = int(SHARES[0] * n), int(SHARES[1] * n)
    return train, valid, n - train - valid


def split_order(n: int, seed: int) -> tuple[np.ndarray, tuple[int, int, int]]:
    """A seeded random order of n rows (int64 [n]) and `split_sizes(n)`."""
    sizes = split_sizes(n)
    return np.random.default_rng(seed).permutation(n), sizes


def encode_ids(values: np.ndarray, n_train: int, min_count: int = 1) -> tuple[np.ndarray, int]:
    """Ids (int32 [n]) of a column of integers in split order, and their cardinality, the highest id + 1.

    The vocabulary is made of the first `n_train` values alone; a value seen there fewer than `min_count` times, or not
    at all, gets id 0, the others 1, 2, ... in ascending order of value.
    """
    known, counts = np.unique(values[:n_train], return_counts=True)
    known = known[counts >= min_count]
    del counts
    ids = np.empty(len(values), np.int32)
    for start in range(0, len(values), CHUNK):
        # Arrow looks values up in a hash table, several times faster than a binary search; null is not found.
        found = pc.index_in(pa.array(values[start : start + CHUNK]), value_set=pa.array(known))
        np.add(found.fill_null(-1).to_numpy(), 1, out=ids[start : start + CHUNK])
    return ids, len(known) + 1


def hash_ids(values: np.ndarray, size: int, feature: str, missing: int | None = None, low: int = 0) -> np.ndarray:
    """Ids without a vocabulary, int32 [n]: 1 + splitmix64(value XOR key) mod `size`, and 0 for the value `missing`.

    The key is the first 8 bytes (little-endian) of the SHA-256 of the feature's name, so that two features do not
    collide alike. Values count as unsigned 64-bit numbers (two's complement).

    Args:
        values: integers [n], less `low`.
        size: how many ids there are beside 0, from 1 to 2^31 - 2.
        feature: its name.
        missing: the value that stands for "no value"; None: there is none.
        low: what is added to `values`.

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
