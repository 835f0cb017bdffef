"""Encoded data sets in the cache, complete or absent: made once from raw files, in folders with a manifest that has the schema
and every array's SHA-256.
"""

import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from drsrobust.data import DATA_MANIFEST, SKIPPED, Dataset, Ids, Schema, Skipped
from drsrobust.extend import (
    cache_folder,
    digest,
    exclusive,
    file_digest,
    new_file,
    open_folder,
    progress_bar,
    put_in_place,
)
from drsrobust_extras.data.text_lines import DataError, check_share, write_skipped

CACHE_FORMAT = 4  # of the folder and its contents: raise it when an encoder changes
_CHECK_PROGRESS_FROM = 4 << 30  # bytes of arrays; checking more shows a progress bar
_HASHED_ONCE_FROM = 64 << 20  # bytes: smaller files are hashed at each call
SETTLED = 2.0  # seconds: a file that changed more recently may change again with the same time of modification


@dataclass
class Columns:
    """All rows of an encoded data set in memory, in split order: arrays as in `Split`, and the number of rows per part."""

    schema: Schema
    dense: np.ndarray
    sparse: dict[str, Ids]
    labels: np.ndarray
    users: np.ndarray | None
    rows: np.ndarray
    sizes: tuple[int, int, int]
    facts: dict[str, float | None] = field(default_factory=dict)


@dataclass
class Contents:
    """Description of the arrays in a working folder: the number of rows per part, the bad lines."""

    schema: Schema
    sizes: tuple[int, int, int]
    facts: dict[str, float | None] = field(default_factory=dict)
    skipped: Iterable[Skipped] = ()


def cached(name: str, identity: object, fill: Callable[[Path], Contents], stacklevel: int = 2) -> Dataset:
    """The data set of this identity, opened from the cache, where `fill` makes it first if it is absent.

    Args:
        name: with the schema, as `criteo-sample/dlrm`.
        identity: JSON value of everything that decides the contents (source hashes, options); its hash names the folder.
        fill: writes the arrays into a folder, which may hold arrays of a call that was killed; sub-folders are temporary.
        stacklevel: of warnings, as in `warnings.warn`: 2 is the caller of this function.

    Raises:
        DataError: from `fill`; the working folder is then removed.
    """
    folder = cache_folder("data", f"{name.replace('/', '-')}-{digest([CACHE_FORMAT, identity])[:16]}")
    part = folder.with_name(f".{folder.name}.part")
    with exclusive(folder):
        if (folder / DATA_MANIFEST).exists() and not _is_intact(folder):
            warnings.warn(f"{folder} is damaged; the data set is encoded again", stacklevel=stacklevel)
            (folder / DATA_MANIFEST).unlink()
        if not (folder / DATA_MANIFEST).exists():
            if not _is_intact(part):  # an intact one is of a process that was killed before it renamed the folder
                if (part / DATA_MANIFEST).exists():
                    shutil.rmtree(part)  # damaged after it was complete: no array can be trusted
                try:
                    _seal(part, name, identity, fill(part))
                except DataError:
                    shutil.rmtree(part, ignore_errors=True)
                    raise
            _publish(part, folder)
    return open_folder(folder)


def cached_columns(
    name: str, identity: object, make: Callable[[], Columns], skipped: Sequence[Skipped] = (), stacklevel: int = 2
) -> Dataset:
    """As `cached`, for a data set that fits in memory: `make` returns it, and appends bad lines to `skipped`."""

    def fill(part: Path) -> Contents:
        columns = make()
        if skipped:
            check_share(skipped[0], len(skipped), len(skipped) + len(columns.labels))
        shutil.rmtree(part, ignore_errors=True)
        arrays = {"dense": columns.dense, "labels": columns.labels, "rows": columns.rows, "users": columns.users}
        for feature, ids in columns.sparse.items():
            arrays |= {f"ids.{feature}": ids.values, f"lengths.{feature}": ids.lengths}
        for key, array in arrays.items():
            if array is not None:
                save_array(part / f"{key}.npy", array)
        return Contents(columns.schema, columns.sizes, columns.facts, skipped)

    return cached(name, identity, fill, stacklevel + 1)


def save_array(path: Path, array: np.ndarray) -> None:
    """Writes one array as .npy, complete or absent."""
    with new_file(path) as part, open(part, "wb") as handle:
        np.save(handle, array, allow_pickle=False)


def _is_intact(folder: Path) -> bool:
    """Whether every file has the SHA-256 of the manifest; large arrays are hashed once per process."""
    try:
        manifest = json.loads((folder / DATA_MANIFEST).read_text())
        arrays = manifest["arrays"]
        large = sum(size for size, _ in arrays.values()) > _CHECK_PROGRESS_FROM
        with progress_bar(len(arrays), "checking", progress=large) as bar:
            for key, (size, sha256) in arrays.items():
                path = folder / f"{key}.npy"
                if path.stat().st_size != size or digest_once(path) != sha256:
                    return False
                bar.update()
        if manifest["skipped"] and file_digest(folder / SKIPPED) != manifest["skipped_sha256"]:
            return False
        return manifest.pop("manifest_sha256") == digest(manifest)
    except (OSError, KeyError, TypeError, ValueError):
        return False


def _seal(part: Path, name: str, identity: object, folder_made: Contents) -> None:
    """Writes the manifest of a working folder with all arrays."""
    stamps = {
        path.name.removesuffix(".npy"): (path.stat().st_size, file_digest(path))
        for path in sorted(part.glob("*.npy"))
        if not path.name.startswith(".")  # half-written by a killed process
    }
    contents = {"schema": asdict(folder_made.schema), "sizes": folder_made.sizes, "arrays": stamps}
    labels = np.load(part / "labels.npy", mmap_mode="r", allow_pickle=False)
    manifest = {"name": name, "identity": identity, "fingerprint": digest([name, contents])}
    manifest["prior"] = float(np.mean(labels[: folder_made.sizes[0]], dtype=np.float64))
    manifest["skipped"] = write_skipped(part / SKIPPED, folder_made.skipped)
    if manifest["skipped"]:
        manifest["skipped_sha256"] = file_digest(part / SKIPPED)
    manifest = json.loads(json.dumps(manifest | contents | {"facts": folder_made.facts}))  # as a reader will see it
    with new_file(part / DATA_MANIFEST) as path:
        path.write_text(json.dumps(manifest | {"manifest_sha256": digest(manifest)}, indent=1))


def _publish(part: Path, folder: Path) -> None:
    """Removes temporary files of a sealed working folder and renames it."""
    manifest = json.loads((part / DATA_MANIFEST).read_text())
    keep = {DATA_MANIFEST, *(f"{key}.npy" for key in manifest["arrays"]), *([SKIPPED] if manifest["skipped"] else [])}
    for path in part.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in keep:
            path.unlink()
    put_in_place(part, folder)


def source_digest(path: Path) -> str:
    """SHA-256 (hex) of a source file. The cache stores that of a large file by path, size, time of modification and inode,
    since reading 11 GB takes most of a minute."""
    state = _state(path)
    if state[1] <= _HASHED_ONCE_FROM:
        return file_digest(path)
    note = cache_folder("digests", f"{digest(state)[:32]}.txt")
    if note.exists() and len(noted := note.read_text().strip()) == 64:
        return noted
    sha256 = file_digest(path)
    if _state(path) == state and time.time() - state[2] / 1e9 > SETTLED:
        with new_file(note) as part:
            part.write_text(f"{sha256}\n")
    return sha256


def digest_once(path: Path) -> str:
    """SHA-256 (hex) of a file; a large file is read once per process, and again after a change of its state."""
    state = _state(path)
    return file_digest(path) if state[1] <= _HASHED_ONCE_FROM else _digest_of_state(*state)


@cache
def _digest_of_state(path: str, *_: int) -> str:
    return file_digest(Path(path))


def _state(path: Path) -> tuple[str, int, int, int]:
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ino
