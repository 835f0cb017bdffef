"""SHA-256 of source files, part of a data set's identity, and of the arrays in the cache. Those of large files are kept, since
11 GB take most of a minute to read: of a source in the cache, of an array as long as the process lives."""

import time
from pathlib import Path

from drsrobust._storage import cache_folder, digest, file_digest, new_file

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
