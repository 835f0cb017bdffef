"""Pass 2: from raw columns to the arrays of the encoded set, one column at a time.

Memory holds the order of the rows and one column with its vocabulary, whatever the number of columns. Every array is a file
that is complete or absent: after a kill, what is finished is not made again.
"""

from pathlib import Path

import numpy as np

from drsrobust._progress import progress
from drsrobust._storage import new_file
from drsrobust.data.dataset import Feature, Schema
from drsrobust.data.encoding import encode_ids, hash_ids, split_order, split_sizes
from drsrobust.data.raw import LABEL, Raw, Table
from drsrobust.data.store import Contents, save

STRIPE = 1 << 17  # rows of the dense matrix that are put together at once
SHOWN = 1_000_000  # rows from which on progress is shown


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
    with progress(len(table.features) + 1, "encoding", show=len(raw) > SHOWN) as bar:
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
