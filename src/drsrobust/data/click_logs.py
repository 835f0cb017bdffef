"""Criteo click logs: parsing and the schemas `dlrm` and `fields`.

Source: Criteo Labs / Kaggle, Display Advertising Challenge, 2014, and the terabyte click logs, which have the same form. A
line is `label I1..I13 C1..C26`, tab-separated; integers may be empty or negative, categories are 8 hexadecimal digits or
empty.

Avazu click logs: parsing.

Source: Avazu / Kaggle, Click-Through Rate Prediction, 2014: 40,428,967 impressions of mobile ads over ten days, in order of
time. A line is `id,click,hour,C1,banner_pos,...,C21` under a header."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from drsrobust.data.cache import Columns
from drsrobust.data.dataset import Feature, Ids, Schema
from drsrobust.data.large_files import Table, encode_ids, hash_ids, split_order
from drsrobust.data.text_files import (
    DIGITS,
    FULL_HEX,
    HEX,
    INTEGER,
    LABEL,
    OPTIONAL_INTEGER,
    BadLines,
    Few,
    read_columns,
)

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


HEADER = (
    "id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
)  # fmt: skip
FEATURES = ("day", "hour", *HEADER[3:])  # of a block, all of them categories
HOUR = Few(
    "an hour of the form YYMMDDHH",
    re.compile(rb"\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])"),
    int,
)
_HASHED = tuple(name for name in HEADER if name.startswith(("site_", "app_")))
_HASHED += ("device_id", "device_ip", "device_model")
AVAZU_FIELDS = {"id": DIGITS, "click": LABEL, "hour": HOUR}
AVAZU_FIELDS |= {name: FULL_HEX if name in _HASHED else INTEGER for name in HEADER[3:]}


def read_blocks(path: Path, bad: BadLines | None = None, first_block: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """The lines of an Avazu file (`train.csv`, plain or .gz), block by block.

    Args:
        path: the file.
        bad: what to do with lines that are not of the form; None: `BadLines("strict")`.
        first_block: how many blocks to pass over, as in `read_columns`.

    Yields:
        `label` (`click`) and the 23 `FEATURES`, int64 [good lines of this block]. The file's `hour` (YYMMDDHH, UTC)
        becomes `day`, its YYMMDD as a number (141021 is October 21st, 2014), and `hour`, 0 to 23. Hashed texts are 8
        hexadecimal digits in the file and numbers here; `C1`, `banner_pos`, `device_type`, `device_conn_type` and
        `C14`..`C21` are integers, of which -1 in `C20` means that there is none. `id`, different in every line, is left out.

    Raises:
        DataError: another header, or a line that is not of the form (`strict`).
    """
    for block in read_columns(path, AVAZU_FIELDS, ",", header=HEADER, quoted=True, bad=bad, first_block=first_block):
        day, hour = np.divmod(block.pop("hour"), 100)
        yield {"label": block.pop("click"), "day": day, "hour": hour} | block
