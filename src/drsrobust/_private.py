"""Folders that no other user may write to, and that are deleted."""

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from drsrobust._files import make_folder
from drsrobust._locks import exclusive

_MARK = ".drsrobust"  # private_folder holds its lock, by whose file it knows the folders that it made
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def private_folder(path: Path) -> Iterator[Path]:
    """A new folder `path`-<random>, mode 0700, which is deleted when the block ends; those of killed processes are deleted
    first.

    Raises:
        PermissionError: the file system lets others write to it all the same.
    """
    make_folder(path.parent)
    delete_leftovers(path)
    folder = Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=path.parent))
    status = folder.lstat()
    try:
        with exclusive(folder / _MARK), inside_private(folder, status.st_uid):
            yield folder
    finally:
        _delete(folder, status)


def delete_leftovers(path: Path) -> None:
    """Deletes folders `private_folder(path)` of killed processes: of such a name and of this user, with the mark of that
    function, and that no process holds."""
    named = re.compile(re.escape(path.name) + "-[a-z0-9_]{8}")
    for entry in list(path.parent.iterdir()):
        if named.fullmatch(entry.name) and (status := _leftover(entry)):
            _delete(entry, status)


@contextmanager
def inside_private(folder: Path, owner: int) -> Iterator[Path]:
    """A path into a folder of `private_folder`. Where there is /proc it leads there whatever becomes of the folder's name.

    Args:
        folder: of this process or of another one.
        owner: user id of the folder where it was made.

    Raises:
        FileNotFoundError: there is no such folder.
        PermissionError: it is a link, others may write to it, or it is of another user.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise PermissionError(f"{folder} was replaced by a file or a link; nothing in it is read") from None
    try:
        status = os.fstat(handle)
        if status.st_mode & _WRITABLE:
            mode = stat.S_IMODE(status.st_mode)
            raise PermissionError(
                f"{folder} has mode {mode:04o}, so others may write to it; it must be 0700, on a file system that keeps modes"
            )
        if status.st_uid not in (os.geteuid(), owner):
            raise PermissionError(f"{folder} is of user {status.st_uid}; it must be of user {os.geteuid()}")
        pinned = Path(f"/proc/self/fd/{handle}")
        yield pinned if pinned.exists() else folder
    finally:
        os.close(handle)


def _leftover(folder: Path) -> os.stat_result | None:
    """The status of a folder that a killed process left, or None."""
    try:
        status, mark = folder.lstat(), (folder / f"{_MARK}.lock").lstat()
        if not stat.S_ISDIR(status.st_mode) or not stat.S_ISREG(mark.st_mode):
            return None
        if {status.st_uid, mark.st_uid} != {os.geteuid()}:
            return None
        with exclusive(folder / _MARK, wait=False):
            return status
    except OSError:  # held, gone meanwhile, or not readable
        return None


def _delete(folder: Path, status: os.stat_result) -> None:
    """Deletes a folder, unless another one has its name by now."""
    with suppress(OSError):
        if os.path.samestat(folder.lstat(), status):
            shutil.rmtree(folder, ignore_errors=True)
