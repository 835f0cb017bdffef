"""Files and folders that are complete or absent (by a temporary name, fsync and rename), and the cache folder."""

import errno
import os
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from drsrobust._arguments import check_text, wrong

_NO_SPACE = re.compile(r"No space left|\d+ requested and \d+ written")


def expanded(name: str, path: str | os.PathLike) -> Path:
    """A path with `~` and `~user` replaced by home folders.

    Args:
        name: of the argument or variable, for the message.
        path: its value.

    Raises:
        ArgumentError: no path, an empty text, which would be the working folder, or one with NUL.
        ValueError: there is no such user, or the path leads through a link to itself.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise wrong(name, "a path", path)
    if not os.fspath(path):
        raise wrong(name, "a path ('.' is the working folder)", path)
    check_text(name, os.fspath(path), "a path")
    try:
        full = Path(path).expanduser()
        full.stat()
    except RuntimeError:
        user = Path(path).parts[0]
        raise ValueError(
            f"{name} is {os.fspath(path)!r}, and {user} has no home folder; write the path in full"
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(
                f"{name} is {os.fspath(path)!r}, which leads through a link to itself; remove the link"
            ) from None
    return full


def cache_folder(*parts: str) -> Path:
    """A folder below `$DRSROBUST_CACHE`, else below the user's cache folder. Not created."""
    base = _cache()
    warn_of_writers(base)
    return base.joinpath(*parts)


def _cache() -> Path:
    base = os.environ.get("DRSROBUST_CACHE")
    if not base:
        from platformdirs import user_cache_dir

        base = user_cache_dir("drsrobust")
    return expanded("DRSROBUST_CACHE", base)


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents, where they are missing.

    Raises:
        OSError: it cannot be made; the message names what is in the way.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Gives errors of writing in or below a folder a message that names what is in the way, and what would be right."""
    try:
        yield
    except Exception as error:
        if named := _named(error, folder):
            raise named from error
        raise


def _named(error: Exception, folder: Path) -> OSError | None:
    hint = ", or set DRSROBUST_CACHE to another folder" if folder.is_relative_to(_cache()) else ""
    # NumPy and safetensors give no error number.
    code = errno.ENOSPC if _NO_SPACE.search(str(error)) else getattr(error, "errno", None)
    if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
        return None
    if code == errno.ENOSPC:
        return OSError(code, f"No space left on device ({folder}); make room{hint}")
    place = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not os.path.exists(place):
        target = os.readlink(place)
        return OSError(errno.ENOENT, f"{place} is a link to {target}, which does not exist; make {target}{hint}")
    if not place.is_dir():
        return OSError(errno.ENOTDIR, f"{place} is a file; it must be a folder{hint}")
    ours = error.filename is not None and Path(error.filename).is_relative_to(place)
    if ours and code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return OSError(code, f"{place} is not writable ({error.strerror}); make it so{hint}")
    return None


def _part(path: Path) -> Path:
    """A temporary name next to a path, which nobody can guess and make a link of."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")


def stale_parts(folder: Path, names: str) -> list[Path]:
    """What a killed process left of `new_file` and `new_folder`.

    Args:
        folder: that they were to be in.
        names: regular expression of their final names.
    """
    temporary = re.compile(rf"\.(?:{names})\.[0-9a-f]{{16}}\.part")
    return [entry for entry in folder.iterdir() if temporary.fullmatch(entry.name)] if folder.is_dir() else []


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes `path` when the block ends without an exception, and is deleted otherwise.

    Raises:
        OSError: it cannot be written; the message names what is in the way.
    """
    make_folder(path.parent)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, f"{path} is a folder; a file is to be written there")
    part = _part(path)
    try:
        with writing(path.parent):
            yield part
            _sync(part)
            os.replace(part, path)
            _sync(path.parent)
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """As `new_file`, for a folder, which replaces an existing one. The caller holds `exclusive(path)`."""
    make_folder(path.parent)
    for stale in stale_parts(path.parent, re.escape(path.name)):
        shutil.rmtree(stale)  # of a killed process: this process holds the lock
    part = _part(path)
    make_folder(part)
    try:
        with writing(path.parent):
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


def unnamed_file(folder: Path) -> BinaryIO:
    """A new file in a folder, for reading and writing. It has no name, so nothing is left when it is closed or the process is
    killed; a map of it stays until it is deleted too."""
    make_folder(folder)
    with writing(folder):
        return tempfile.TemporaryFile(dir=folder, buffering=0)


def write_array(file: BinaryIO, array: Any) -> None:
    """Writes the bytes of an array to an unbuffered file."""
    left = memoryview(array).cast("B")
    while left:
        left = left[file.write(left) :]


def warn_of_writers(folder: Path) -> None:
    """Warns, once for a folder, if others than its owner may write to it or replace it; not of a folder that is missing.

    Warns:
        UserWarning: its mode lets its group or everybody write, or its parent's does without the sticky bit.
    """
    with suppress(OSError):
        if _writers(folder.stat()):
            _warn_once(folder, folder)
        elif _writers(parent := folder.parent.stat()) and not parent.st_mode & stat.S_ISVTX:
            _warn_once(folder, folder.parent)


@cache
def _warn_once(folder: Path, writable: Path) -> None:
    mode = stat.S_IMODE(writable.stat().st_mode)
    warnings.warn(
        f"other users may write to {writable} (mode {mode:04o}), so they can change what is read from {folder}; chmod go-w "
        f"{writable}",
        stacklevel=4,
    )


def _writers(status: os.stat_result) -> bool:
    """Whether others than the owner may write. Linux gives many users a group of their own, and a umask that lets it write."""
    return bool(status.st_mode & stat.S_IWOTH or status.st_mode & stat.S_IWGRP and not _alone(status))


def _alone(status: os.stat_result) -> bool:
    """Whether the group is the owner's own: it has the owner's name, and no further member."""
    import grp
    import pwd

    try:
        group, name = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        return False
    return group.gr_name == name and not {*group.gr_mem} - {name}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
