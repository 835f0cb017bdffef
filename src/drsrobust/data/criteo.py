"""Criteo click logs: parsing and the schemas `dlrm` and `fields`.

Source: Criteo Labs / Kaggle, Display Advertising Challenge, 2014, and the terabyte click logs, which have the same form. A
line is `label I1..I13 C1..C26`, tab-separated; integers may be empty or negative, categories are 8 hexadecimal digits or
empty.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from drsrobust.data.dataset import Feature, Ids, Schema
from drsrobust.data.encoding import Columns, encode_ids, hash_ids, split_order
from drsrobust.data.raw import Table
from drsrobust.data.text import HEX, LABEL, OPTIONAL_INTEGER, BadLines, read_columns

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
_FIELDS = {"label": LABEL} | dict.fromkeys(INTEGERS, OPTIONAL_INTEGER) | dict.fromkeys(CATEGORIES, HEX)
MIN_COUNT = 10  # the study's threshold: categories seen fewer than 10 times share one id
MISSING = -(2**63)  # an empty integer, as it is parsed
NO_BUCKET = 2000  # code of an empty integer; the largest bucket is 1906
NO_CATEGORY = -1


def log_counts(values: np.ndarray) -> np.ndarray:
    """log(1 + max(x, 0)) as float32, missing and negative values as 0: the transform of the DLRM reference
    implementation (arXiv:1906.00091)."""
    return np.log1p(np.maximum(values, 0)).astype(np.float32)


def buckets(values: np.ndarray) -> np.ndarray:
    """Integers as categories, int64 [n]: floor(ln(x)^2) of those above 2, x - 2 of the others, so that each of those is a
    category of its own, and `NO_BUCKET` of missing ones.

    Source: the study (arXiv:2307.10244), after the winners of the Kaggle challenge ("3 idiots", 2014).

    Example:
        >>> buckets(np.array([-1, 2, 3, 1000, MISSING])).tolist()
        [-3, 0, 1, 47, 2000]
    """
    small = np.maximum(values, MISSING + 3) - 2  # the smallest integers there are share a bucket
    large = np.floor(np.log(np.maximum(values, 3)) ** 2).astype(np.int64)
    return np.where(values == MISSING, NO_BUCKET, np.where(values > 2, large, small))


def _dlrm(path: Path, bad: BadLines, first_block: int) -> Iterator[dict[str, np.ndarray]]:
    for block in read_columns(path, _FIELDS, "\t", bad=bad, first_block=first_block):
        yield block | {name: log_counts(block[name]) for name in INTEGERS}


def _fields(path: Path, bad: BadLines, first_block: int) -> Iterator[dict[str, np.ndarray]]:
    for block in read_columns(path, _FIELDS, "\t", bad=bad, first_block=first_block):
        yield block | {name: buckets(block[name]) for name in INTEGERS}


_CATEGORIES = dict.fromkeys(CATEGORIES, NO_CATEGORY)
TABLES = {
    "dlrm": Table(_dlrm, INTEGERS, _CATEGORIES),
    "fields": Table(_fields, (), dict.fromkeys(INTEGERS, NO_BUCKET) | _CATEGORIES),
}


def encode(columns: dict[str, np.ndarray], seed: int, min_count: int | None, hash_size: int | None = None) -> Columns:
    """Columns in memory in the schema `dlrm`: 13 dense columns and 26 single-hot features.

    Args:
        columns: `label`, `I1`..`I13` (float32, as `log_counts` gives them), `C1`..`C26` (int64).
        seed: of the random split.
        min_count: categories seen fewer times in the training rows share id 0.
        hash_size: ids per feature, by hashing instead of a vocabulary; `min_count` is then None.
    """
    order, sizes = split_order(len(columns["label"]), seed)
    dense = np.stack([columns[name][order] for name in INTEGERS], axis=1)
    sparse, features = {}, []
    for name in CATEGORIES:
        values = columns[name][order]
        if hash_size is None:
            ids, cardinality = encode_ids(values, sizes[0], min_count)
        else:
            ids, cardinality = hash_ids(values, hash_size, name, NO_CATEGORY), hash_size + 1
        sparse[name] = Ids(ids)
        features.append(Feature(name, cardinality))
    return Columns(Schema(INTEGERS, tuple(features)), dense, sparse, columns["label"][order], None, order, sizes)
