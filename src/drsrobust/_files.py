"""Files and folders that are complete or absent: write aside, fsync, rename. Caches and locks."""

import errno
import fcntl
import hashlib
import os
import shutil
import socket
import time
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
    """Holds the lock of `path`. The system drops it when the process ends, however it ends.

    The lock is a file, `path`.lock, and a name in the kernel. The file keeps out processes on other machines that share the
    folder. The name keeps out those on this machine also when somebody deletes the file while the lock is held.

    Raises:
        BlockingIOError: another process (or thread) holds it and `wait` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked_file(path.with_name(path.name + ".lock"), wait), _taken_name(path, wait):
        yield


@contextmanager
def _locked_file(lock: Path, wait: bool) -> Iterator[None]:
    while True:
        with open(lock, "a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_at(handle.fileno(), lock):
                yield
                return
        # The file was deleted while this process waited for it: others lock the one that has its path now.


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _taken_name(path: Path, wait: bool) -> Iterator[None]:
    name = b"\0drsrobust-" + hashlib.sha256(os.fsencode(path.resolve())).hexdigest().encode()  # in no folder: abstract
    with socket.socket(socket.AF_UNIX) as holder:
        while True:
            try:
                holder.bind(name)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, f"{path} is locked by another process") from error
            time.sleep(0.1)
        yield


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
