"""Files and folders that are complete or absent (by a temporary name, fsync and rename), locks, and the cache folder."""

import errno
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
    """A path to write to, which becomes `path` when the block ends without an exception, and is deleted otherwise."""
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
    """As `new_file`, for a folder, which replaces an existing one. The caller holds `exclusive(path)`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{path.name}.*.part"):
        shutil.rmtree(stale)  # of a killed process: this process holds the lock
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.mkdir()
    try:
        yield part
        put_in_place(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def put_in_place(part: Path, path: Path) -> None:
    """Renames the finished folder `part` to `path`, in the same parent folder; a folder at `path` is removed."""
    for file in (*part.rglob("*"), part):
        _sync(file)
    if path.exists():
        shutil.rmtree(path)
    os.rename(part, path)
    _sync(path.parent)


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock of `path`, the file `path`.lock, which is never deleted. The system releases the lock if the process dies.

    Raises:
        BlockingIOError: another process or thread holds the lock and `wait` is false.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    # A soft lock (a file that exists while held) would survive a killed process.
    lock = FileLock(path.with_name(f"{path.name}.lock"), blocking=wait, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise BlockingIOError(errno.EAGAIN, f"{path} is locked by another process") from error
    try:
        yield
    finally:
        lock.release()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
