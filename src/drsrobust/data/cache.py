"""A split as a folder of .npy files, for other processes to map into their memory.

SHA-256 of source files, part of a data set's identity, and of the arrays in the cache. Those of large files are kept, since
11 GB take most of a minute to read: of a source in the cache, of an array as long as the process lives.

The encoded set on disk, complete or absent.

It is a folder of .npy files in split order (training rows first, then validation, then test), so that each split is a
slice of a memory-mapped array, and a manifest with the schema and the hash of every array. It is made in a working folder
beside it, which a killed process leaves behind and the next call goes on with."""

import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from drsrobust._environment import progress_bar
from drsrobust._files import cache_folder, exclusive, new_file, put_in_place
from drsrobust._hashing import digest, file_digest
from drsrobust.data import text_files as skipped
from drsrobust.data.dataset import Dataset, Feature, Ids, Schema, Split
from drsrobust.data.text_files import DataError, Skipped, check_share, write_skipped


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


_ARRAYS = ("dense", "labels", "users", "rows")
_FACTS = ("dataset", "part", "prior", "source", "whole")
_ABOUT = "split.json"


def write_split(split: Split, folder: Path) -> None:
    """Writes all arrays of a split and what is known of it into a new folder."""
    folder.mkdir(parents=True)
    for name in _ARRAYS:
        if (array := getattr(split, name)) is not None:
            np.save(folder / f"{name}.npy", np.asarray(array))
    multi_hot = []
    for number, ids in enumerate(split.sparse.values()):
        np.save(folder / f"values-{number}.npy", np.asarray(ids.values))
        if ids.lengths is not None:
            np.save(folder / f"lengths-{number}.npy", np.asarray(ids.lengths))
            multi_hot.append(number)
    facts = {name: getattr(split, name) for name in _FACTS}
    (folder / _ABOUT).write_text(json.dumps(facts | {"features": list(split.sparse), "multi_hot": multi_hot}))


def read_split(folder: Path) -> Split:
    """The split of a folder that `write_split` made; its arrays are mapped, not read."""
    about = json.loads((folder / _ABOUT).read_text())
    features, multi_hot = about.pop("features"), set(about.pop("multi_hot"))

    def mapped(name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    sparse = {
        feature: Ids(mapped(f"values-{number}"), mapped(f"lengths-{number}") if number in multi_hot else None)
        for number, feature in enumerate(features)
    }
    arrays = {name: mapped(name) if (folder / f"{name}.npy").exists() else None for name in _ARRAYS}
    return Split(sparse=sparse, **arrays, **about)


LARGE = 64 << 20  # bytes: smaller files are read each time
SETTLED = 2.0  # seconds: a file changed later than that ago may change again without another time stamp


def source_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes: read, or (of a large file) known from an earlier call for the same path, size, time
    of modification and inode."""
    before = _state(path)
    if before[1] <= LARGE:
        return file_digest(path)
    note = cache_folder("digests", f"{digest(before)[:32]}.txt")
    if note.exists() and len(known := note.read_text().strip()) == 64:
        return known
    found = file_digest(path)
    if _state(path) == before and time.time() - before[2] / 1e9 > SETTLED:
        with new_file(note) as part:
            part.write_text(found + "\n")
    return found


_read: dict[tuple, str] = {}  # state -> SHA-256, of the large files that this process has read


def digest_once(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes; a large file is read once per process, and again when size, time of modification or
    inode change."""
    state = tuple(_state(path))
    if state[1] <= LARGE:
        return file_digest(path)
    if state not in _read:
        _read[state] = file_digest(path)
    return _read[state]


def _state(path: Path) -> list:
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ino]


FORMAT = 4  # of the folder and of everything that makes its contents: raise it when an encoder changes
SHOWN = 4 << 30  # bytes of arrays from which on progress is shown while they are checked
MANIFEST = "manifest.json"


@dataclass
class Contents:
    """What a working folder of arrays holds. `sizes` counts the rows of each part, `skipped` are lines left out."""

    schema: Schema
    sizes: tuple[int, int, int]
    facts: dict[str, float | None] = field(default_factory=dict)
    skipped: Iterable[Skipped] = ()


def encoded(
    name: str, identity: object, make: Callable[[], Columns], left_out: Sequence[Skipped] = (), stacklevel: int = 2
) -> Dataset:
    """As `stored`, of a set that fits in memory.

    Args:
        name: with the schema, as `movielens-1m/full`.
        identity: as there.
        make: gives the arrays; called when the cache has no such set. When it raises, nothing is stored.
        left_out: a list of the lines that were left out, filled while `make` works.
        stacklevel: of warnings, as in `warnings.warn`: 2 is the caller of this function.
    """

    def fill(part: Path) -> Contents:
        columns = make()
        if left_out:
            check_share(left_out[0], len(left_out), len(columns.labels))
        shutil.rmtree(part, ignore_errors=True)
        arrays = {"dense": columns.dense, "labels": columns.labels, "rows": columns.rows}
        if columns.users is not None:
            arrays["users"] = columns.users
        for feature, ids in columns.sparse.items():
            arrays[f"ids.{feature}"] = ids.values
            if ids.lengths is not None:
                arrays[f"lengths.{feature}"] = ids.lengths
        for key, array in arrays.items():
            save(part / f"{key}.npy", array)
        return Contents(columns.schema, columns.sizes, columns.facts, left_out)

    return stored(name, identity, fill, stacklevel + 1)


def stored(name: str, identity: object, fill: Callable[[Path], Contents], stacklevel: int = 2) -> Dataset:
    """The data set of this identity: from the cache, else made, stored and opened.

    Args:
        name: with the schema, as `criteo-sample/dlrm`.
        identity: JSON value of all that decides the contents (source fingerprint, options); it is hashed into the
            folder's name.
        fill: called when the cache has no such set. Writes the arrays into the folder it is given, which may hold what
            an earlier call, that was killed or interrupted, left there; sub-folders are removed afterwards.
        stacklevel: of warnings, as in `warnings.warn`: 2 is the caller of this function.

    Raises:
        DataError: from `fill`; then the working folder is removed.
    """
    folder = cache_folder("data", f"{name.replace('/', '-')}-{digest([FORMAT, identity])[:16]}")
    part = folder.with_name(f".{folder.name}.part")
    with exclusive(folder):
        if (folder / MANIFEST).exists() and not _is_whole(folder):
            warnings.warn(f"{folder} is damaged; the data set is encoded again", stacklevel=stacklevel)
            (folder / MANIFEST).unlink()
        if not (folder / MANIFEST).exists():
            if not _is_whole(part):  # else it was killed on the last step
                if (part / MANIFEST).exists():
                    shutil.rmtree(part)  # damaged since: no array in it is to be believed
                try:
                    _seal(part, name, identity, fill(part))
                except DataError:
                    shutil.rmtree(part, ignore_errors=True)
                    raise
            _publish(part, folder)
    return open_folder(folder)


def save(path: Path, array: np.ndarray) -> None:
    """Writes one array as .npy, complete or absent."""
    with new_file(path) as part, open(part, "wb") as handle:
        np.save(handle, array, allow_pickle=False)


def _is_whole(folder: Path) -> bool:
    """Whether every array is the one that was written, by its SHA-256; large ones are read once per process."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        arrays = manifest["arrays"]
        with progress_bar(len(arrays), "checking", progress=sum(size for size, _ in arrays.values()) > SHOWN) as bar:
            for key, (size, sha256) in arrays.items():
                path = folder / f"{key}.npy"
                if path.stat().st_size != size or digest_once(path) != sha256:
                    return False
                bar.update()
        if manifest["skipped"] and file_digest(folder / skipped.NAME) != manifest["skipped_sha256"]:
            return False
        return manifest.pop("manifest_sha256") == digest(manifest)
    except (OSError, KeyError, TypeError, ValueError):
        return False


def _seal(part: Path, name: str, identity: object, made: Contents) -> None:
    """Writes the manifest of a working folder that holds all arrays."""
    stamps = {
        path.name.removesuffix(".npy"): (path.stat().st_size, file_digest(path))
        for path in sorted(part.glob("*.npy"))
        if not path.name.startswith(".")  # half-written, of a killed process
    }
    contents = {"schema": asdict(made.schema), "sizes": made.sizes, "arrays": stamps}
    labels = np.load(part / "labels.npy", mmap_mode="r", allow_pickle=False)
    manifest = {"name": name, "identity": identity, "fingerprint": digest([name, contents])}
    manifest["prior"] = float(np.mean(labels[: made.sizes[0]], dtype=np.float64))
    manifest["skipped"] = write_skipped(part / skipped.NAME, made.skipped)
    if manifest["skipped"]:
        manifest["skipped_sha256"] = file_digest(part / skipped.NAME)
    manifest = json.loads(json.dumps(manifest | contents | {"facts": made.facts}))  # as it will be read
    with new_file(part / MANIFEST) as path:
        path.write_text(json.dumps(manifest | {"manifest_sha256": digest(manifest)}, indent=1))


def _publish(part: Path, folder: Path) -> None:
    """Makes a sealed working folder the set, without what only its making needed."""
    manifest = json.loads((part / MANIFEST).read_text())
    keep = {MANIFEST, *(f"{key}.npy" for key in manifest["arrays"])} | (
        {skipped.NAME} if manifest["skipped"] else set()
    )
    for path in part.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in keep:
            path.unlink()
    put_in_place(part, folder)


def open_folder(folder: Path) -> Dataset:
    """The data set of a finished folder of the cache (`Dataset.folder`), mapped; its hashes are not looked at again."""
    manifest = json.loads((folder / MANIFEST).read_text())
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
    log = folder / skipped.NAME if manifest["skipped"] else None
    known = {"fingerprint": manifest["fingerprint"], "facts": manifest["facts"], "log": log, "folder": folder}
    return Dataset(manifest["name"], schema, **parts, **known)
