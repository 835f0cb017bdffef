"""Criteo click logs: parsing and the schema `dlrm`.

Source: Criteo Labs / Kaggle, Display Advertising Challenge, 2014. A line is `label I1..I13 C1..C26`, tab-separated;
integers may be empty or negative, categories are 8 hexadecimal digits or empty.
"""

from pathlib import Path

import numpy as np

from drsrobust.data.dataset import Feature, Ids, Schema
from drsrobust.data.encoding import Columns, encode_ids, split_order
from drsrobust.data.text import HEX, LABEL, OPTIONAL_INTEGER, read_columns

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
_FIELDS = {"label": LABEL} | dict.fromkeys(INTEGERS, OPTIONAL_INTEGER) | dict.fromkeys(CATEGORIES, HEX)
MIN_COUNT = 10  # the study's threshold: categories seen fewer than 10 times share one id


def read_lines(path: Path) -> dict[str, np.ndarray]:
    """Parses a Criteo file, plain or .gz.

    Returns:
        `label` float32 [n]; `I1`..`I13` float32 [n] after the transform of `log_counts`; `C1`..`C26` int64 [n], -1 where
        empty.

    Raises:
        DataError: a line that is not of this form.
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in _FIELDS}
    for block in read_columns(path, _FIELDS, "\t"):
        parts["label"].append(block["label"].astype(np.float32))
        for name in INTEGERS:
            parts[name].append(log_counts(block[name]))
        for name in CATEGORIES:
            parts[name].append(block[name])
    return {name: np.concatenate(parts.pop(name)) for name in _FIELDS}


def log_counts(values: np.ndarray) -> np.ndarray:
    """log(1 + max(x, 0)) as float32, missing and negative values as 0: the transform of the DLRM reference
    implementation (arXiv:1906.00091)."""
    return np.log1p(np.maximum(values, 0)).astype(np.float32)


def encode(columns: dict[str, np.ndarray], seed: int, min_count: int = MIN_COUNT) -> Columns:
    """Model inputs in the schema `dlrm`: 13 dense columns and 26 single-hot features.

    Args:
        columns: as `read_lines` returns them. The dictionary is emptied on the way, to need the memory only once.
        seed: of the random split.
        min_count: categories seen fewer times in the training rows share id 0.
    """
    order, sizes = split_order(len(columns["label"]), seed)
    dense = np.stack([columns.pop(name)[order] for name in INTEGERS], axis=1)
    sparse, features = {}, []
    for name in CATEGORIES:
        ids, cardinality = encode_ids(columns.pop(name)[order], sizes[0], min_count)
        sparse[name] = Ids(ids)
        features.append(Feature(name, cardinality))
    labels = columns.pop("label")[order]
    return Columns(Schema(INTEGERS, tuple(features)), dense, sparse, labels, None, order, sizes)
