"""Locks of files and folders, which the system releases when a process dies."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drsrobust._files import make_folder, writing


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock of `path`, the file `path`.lock, which is never deleted. The system releases the lock if the process dies.

    Raises:
        BlockingIOError: another process or thread holds the lock and `wait` is false.
        OSError: there can be no lock; the message names what is in the way.
    """
    from filelock import FileLock, Timeout

    make_folder(path.parent)
    # A soft lock (a file that exists while held) would survive a killed process.
    lock = FileLock(path.with_name(f"{path.name}.lock"), fallback_to_soft=False)
    with writing(path.parent):
        try:
            lock.acquire(blocking=False)
        except Timeout as error:  # also where the lock's file cannot be opened or locked, and then for good
            _check_lock(path)
            if not wait:
                raise BlockingIOError(errno.EAGAIN, f"{path} is locked by another process") from error
            lock.acquire()
        except (NotImplementedError, OSError) as error:
            if getattr(error, "filename", None):  # a file or folder that is not writable
                raise
            raise _no_lock(path, getattr(error, "strerror", None) or str(error)) from error
    try:
        yield
    finally:
        lock.release()


def _check_lock(path: Path) -> None:
    """Raises OSError if the lock of `path` cannot be had for another reason than that somebody holds it."""
    import fcntl

    with open(path.with_name(f"{path.name}.lock"), "rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError as error:
            raise _no_lock(path, error.strerror or str(error)) from error


def _no_lock(path: Path, why: str) -> OSError:
    return OSError(
        errno.ENOLCK, f"{path}.lock cannot be locked ({why}); use a folder on a file system that has locks (flock)"
    )
