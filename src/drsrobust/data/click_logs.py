"""Click logs of Criteo and Avazu: the formats of their lines, and the schemas `dlrm` and `fields`.

Source: Criteo Labs / Kaggle, Display Advertising Challenge, 2014, and the terabyte click logs in the same format: lines
`label I1..I13 C1..C26`, tab-separated; integers may be empty or negative, categories are 8 hexadecimal digits or empty.
Avazu / Kaggle, Click-Through Rate Prediction, 2014: lines `id,click,hour,C1,banner_pos,...,C21` below a header.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from drsrobust.data.large_files import Table
from drsrobust.data.text_files import (
    DIGITS,
    FULL_HEX,
    HEX,
    INTEGER,
    LABEL,
    OPTIONAL_INTEGER,
    SMALLEST,
    STRICT,
    BadLines,
    EnumField,
    LineFormat,
    read_columns,
)

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
CRITEO_LINES = LineFormat(
    {"label": LABEL} | dict.fromkeys(INTEGERS, OPTIONAL_INTEGER) | dict.fromkeys(CATEGORIES, HEX), "\t"
)
MIN_COUNT = 10  # the study's threshold: categories seen fewer than 10 times share one id
MISSING = SMALLEST  # an empty integer, as it is parsed
NO_BUCKET = 2000  # code of an empty integer; the largest bucket is 1906
NO_CATEGORY = -1

HEADER = (
    "id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21",
)  # fmt: skip
FEATURES = ("day", "hour", *HEADER[3:])  # of a block of Avazu, all categories
HOUR = EnumField(
    "an hour of the form YYMMDDHH",
    rb"\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])",
)
_HASHED = (*(name for name in HEADER if name.startswith(("site_", "app_"))), "device_id", "device_ip", "device_model")
AVAZU_LINES = LineFormat(
    {"id": DIGITS, "click": LABEL, "hour": HOUR}
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
        >>> buckets(np.array([-1, 2, 3, 1000, MISSING])).tolist()
        [-3, 0, 1, 47, 2000]
    """
    small = np.maximum(values, MISSING + 3) - 2  # no overflow; the smallest integers share a bucket
    large = np.floor(np.log(np.maximum(values, 3)) ** 2).astype(np.int64)
    return np.where(values == MISSING, NO_BUCKET, np.where(values > 2, large, small))


def _criteo_blocks(
    transform: Callable[[np.ndarray], np.ndarray], path: Path, bad: BadLines, first_block: int
) -> Iterator[dict[str, np.ndarray]]:
    for block in read_columns(path, CRITEO_LINES, bad, first_block=first_block):
        yield block | {name: transform(block[name]) for name in INTEGERS}


def avazu_blocks(path: Path, bad: BadLines = STRICT, first_block: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """The lines of an Avazu file (`train.csv`, plain or .gz), block by block.

    Args:
        path: the file.
        bad, first_block: as in `read_columns`.

    Yields:
        `label` (`click`) and the 23 `FEATURES`, int64 [good lines of this block]. The file's `hour` (YYMMDDHH, UTC) becomes
        `day` (YYMMDD as a number) and `hour` (0 to 23). -1 in `C20` means missing. `id`, unique to a line, is not kept.

    Raises:
        DataError: as `read_columns`.
    """
    for block in read_columns(path, AVAZU_LINES, bad, first_block=first_block):
        day, hour = np.divmod(block.pop("hour"), 100)
        yield {"label": block.pop("click"), "day": day, "hour": hour} | block


_CATEGORIES = dict.fromkeys(CATEGORIES, NO_CATEGORY)
TABLES = {
    "dlrm": Table(partial(_criteo_blocks, log_counts), INTEGERS, _CATEGORIES),
    "fields": Table(partial(_criteo_blocks, buckets), (), dict.fromkeys(INTEGERS, NO_BUCKET) | _CATEGORIES),
    "avazu": Table(avazu_blocks, (), dict.fromkeys(FEATURES) | {"C20": -1}),
}
