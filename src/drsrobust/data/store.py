"""The encoded set on disk, complete or absent.

It is a folder of .npy files in split order (training rows first, then validation, then test), so that each split is a
slice of a memory-mapped array, and a manifest with the schema and the hash of every array. It is made in a working folder
beside it, which a killed process leaves behind and the next call goes on with.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from drsrobust._progress import progress
from drsrobust._storage import cache_folder, digest, exclusive, file_digest, new_file, put_in_place
from drsrobust.data import skipped
from drsrobust.data.dataset import Dataset, Feature, Ids, Schema, Split
from drsrobust.data.digests import digest_once
from drsrobust.data.encoding import Columns
from drsrobust.data.skipped import Skipped, check_share, write_skipped
from drsrobust.data.text import DataError

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
        with progress(len(arrays), "checking", show=sum(size for size, _ in arrays.values()) > SHOWN) as bar:
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
