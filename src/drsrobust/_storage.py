"""Files and folders that are complete or absent: write aside, fsync, rename. Caches and locks."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """A folder below `$DRSROBUST_CACHE`, else below the user's cache folder. Not created."""
    base = os.environ.get("DRSROBUST_CACHE")
    if not base:
        from platformdirs import user_cache_dir

        base = user_cache_dir("drsrobust")
    return Path(base).expanduser().joinpath(*parts)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Gives a path to write to; when the block ends well the file appears under `path`, else nothing is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        _sync(part)
        os.replace(part, path)
        _sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """As `new_file`, for a folder of files. Call it under `exclusive(path)`; what was at `path` is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{path.name}.*.part"):
        shutil.rmtree(stale)  # of a killed process: the lock says that nobody is writing
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.mkdir()
    try:
        yield part
        put_in_place(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def put_in_place(part: Path, path: Path) -> None:
    """Makes the finished folder `part` appear under `path`, beside it, in place of what was there."""
    for file in (*part.rglob("*"), part):
        _sync(file)
    if path.exists():
        shutil.rmtree(path)
    os.rename(part, path)
    _sync(path.parent)


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock `path`.lock. The system drops it when the process ends, however it ends.

    Raises:
        BlockingIOError: another process holds it and `wait` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """SHA-256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
