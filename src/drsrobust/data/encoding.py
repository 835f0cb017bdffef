"""From raw columns to model inputs: the random split, vocabularies from training rows, hashed ids."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drsrobust.data.dataset import Ids, Schema
from drsrobust.data.text import DataError

SHARES = (0.8, 0.1)  # training, validation; the rest is test
CHUNK = 1 << 24  # rows that are looked up at once: a vocabulary's hash table is built once for each chunk
HASH_CHUNK = 1 << 20  # rows that are hashed at once: a few copies of 8 bytes each


@dataclass
class Columns:
    """All rows of a data set, encoded, in split order. Arrays as in `Split`; `sizes` counts the rows of each part."""

    schema: Schema
    dense: np.ndarray
    sparse: dict[str, Ids]
    labels: np.ndarray
    users: np.ndarray | None
    rows: np.ndarray
    sizes: tuple[int, int, int]
    facts: dict[str, float | None] = field(default_factory=dict)


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


def splitmix64(values: np.ndarray) -> np.ndarray:
    """The output of the generator SplitMix64 whose state was `values` (uint64), element by element: a bijection in which
    every input bit reaches every output bit.

    Source: G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
