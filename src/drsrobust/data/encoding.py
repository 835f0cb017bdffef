"""From raw columns to model inputs: vocabularies from training rows, splits, and the encoded set on disk.

An encoded set is a folder of .npy files in split order (training rows first, then validation, then test), so that each
split is a slice of a memory-mapped array, and a manifest with the schema and the hash of every array.
"""

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from drsrobust._storage import cache_folder, digest, exclusive, file_digest, new_folder
from drsrobust.data.dataset import Dataset, Feature, Ids, Schema, Split
from drsrobust.data.text import DataError

FORMAT = 2  # of the folder and of everything that makes its contents: raise it when an encoder changes
HASHED = 64 << 20  # bytes: larger arrays are checked by their size alone when they are opened
SHARES = (0.8, 0.1)  # training, validation; the rest is test


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
    facts: dict[str, float] = field(default_factory=dict)


def split_order(n: int, seed: int) -> tuple[np.ndarray, tuple[int, int, int]]:
    """A seeded random order of n rows (int64 [n]) and how many of them are training, validation and test rows.

    Raises:
        DataError: fewer than 10 rows, so that a part would be empty.
    """
    if n < 10:
        raise DataError(f"{n} rows cannot be split into training, validation and test rows; at least 10 are needed")
    train, valid = int(SHARES[0] * n), int(SHARES[1] * n)
    return np.random.default_rng(seed).permutation(n), (train, valid, n - train - valid)


def encode_ids(values: np.ndarray, n_train: int, min_count: int = 1) -> tuple[np.ndarray, int]:
    """Ids of a column in split order, and their cardinality.

    The vocabulary is made of the first `n_train` values alone; a value seen there fewer than `min_count` times, or not
    at all, gets id 0, the others 1, 2, ... in ascending order of value.
    """
    known, counts = np.unique(values[:n_train], return_counts=True)
    known = known[counts >= min_count]
    if not len(known):
        return np.zeros(len(values), np.int32), 1
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[place] == values, place + 1, 0).astype(np.int32), len(known) + 1


def encoded(name: str, identity: object, make: Callable[[], Columns]) -> Dataset:
    """The data set of this identity: from the cache, else made, stored and opened.

    Args:
        name: with the schema, as `movielens-1m/full`.
        identity: JSON value of all that decides the contents (source fingerprint, options); it is hashed into the
            folder's name.
        make: called when the cache has no such set. When it raises, nothing is stored.
    """
    folder = cache_folder("data", f"{name.replace('/', '-')}-{digest([FORMAT, identity])[:16]}")
    with exclusive(folder):
        if (folder / "manifest.json").exists() and not _is_whole(folder):
            warnings.warn(f"{folder} is damaged; the data set is encoded again", stacklevel=3)
            (folder / "manifest.json").unlink()
        if not (folder / "manifest.json").exists():
            columns = make()
            with new_folder(folder) as part:
                _write(part, name, columns, identity)
    return _open(folder)


def _is_whole(folder: Path) -> bool:
    """Whether every array is the one that was written: by size, and by SHA-256 where that takes no time to speak of."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        for key, (size, sha256) in manifest["arrays"].items():
            path = folder / f"{key}.npy"
            if path.stat().st_size != size or (size <= HASHED and file_digest(path) != sha256):
                return False
        return manifest.pop("manifest_sha256") == digest(manifest)
    except (OSError, KeyError, TypeError, ValueError):
        return False


def _write(folder: Path, name: str, columns: Columns, identity: object) -> None:
    arrays = {"dense": columns.dense, "labels": columns.labels, "rows": columns.rows}
    if columns.users is not None:
        arrays["users"] = columns.users
    for feature, ids in columns.sparse.items():
        arrays[f"ids.{feature}"] = ids.values
        if ids.lengths is not None:
            arrays[f"lengths.{feature}"] = ids.lengths
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
    contents = {
        "schema": asdict(columns.schema),
        "sizes": columns.sizes,
        "arrays": {key: _stamp(folder / f"{key}.npy") for key in sorted(arrays)},
    }
    prior = float(np.mean(columns.labels[: columns.sizes[0]], dtype=np.float64))
    manifest = {"name": name, "identity": identity, "fingerprint": digest([name, contents]), "prior": prior}
    manifest = json.loads(json.dumps(manifest | contents | {"facts": columns.facts}))  # as it will be read
    (folder / "manifest.json").write_text(json.dumps(manifest | {"manifest_sha256": digest(manifest)}, indent=1))


def _stamp(path: Path) -> tuple[int, str]:
    return path.stat().st_size, file_digest(path)


def _open(folder: Path) -> Dataset:
    manifest = json.loads((folder / "manifest.json").read_text())
    arrays = {key: np.load(folder / f"{key}.npy", mmap_mode="r", allow_pickle=False) for key in manifest["arrays"]}
    schema = Schema(
        tuple(manifest["schema"]["dense"]), tuple(Feature(**feature) for feature in manifest["schema"]["features"])
    )
    whole = Split(
        dense=arrays["dense"],
        sparse={f.name: Ids(arrays[f"ids.{f.name}"], arrays.get(f"lengths.{f.name}")) for f in schema.features},
        labels=arrays["labels"],
        users=arrays.get("users"),
        rows=arrays["rows"],
        dataset=manifest["name"],
        part="all",
        prior=manifest["prior"],
        source=manifest["fingerprint"],
        whole=len(arrays["labels"]),
    )
    ends = np.cumsum((0, *manifest["sizes"])).tolist()
    parts = {
        part: replace(whole.take(slice(start, end)), part=part, whole=end - start)
        for part, start, end in zip(("train", "valid", "test"), ends, ends[1:], strict=False)
    }
    return Dataset(manifest["name"], schema, **parts, fingerprint=manifest["fingerprint"], facts=manifest["facts"])
