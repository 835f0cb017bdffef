"""The split of all data sets, and ids of integer columns, by a vocabulary or by hashing."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drsrobust.extend import splitmix64
from drsrobust_extras.data.text_lines import DataError

SHARES = (0.8, 0.1)  # training, validation; the rest is test
CHUNK = 1 << 24  # rows that are looked up at once: the vocabulary's hash table is built once for each chunk
HASH_CHUNK = 1 << 20  # rows that are hashed at once: a few copies of 8 bytes each


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
