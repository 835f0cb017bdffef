import os

import pytest

from drsrobust._hashing import file_digest
from drsrobust_extras.data import raw_cache as cache


@pytest.fixture
def read(monkeypatch):
    """The files that were really read."""
    paths = []
    monkeypatch.setattr(cache, "_HASHED_ONCE_FROM", 10)
    monkeypatch.setattr(cache, "file_digest", lambda path: (paths.append(path), file_digest(path))[1])
    return paths


def write(path, text, time):
    path.write_text(text)
    os.utime(path, ns=(time, time))
    return file_digest(path)


def test_a_large_file_is_read_once(tmp_path, empty_cache, read):
    path = tmp_path / "large"
    first = write(path, "large enough", 10**18)
    assert cache.source_digest(path) == cache.source_digest(path) == first and len(read) == 1
    second = write(path, "LARGE ENOUGH", 10**18 + 1)  # same size, one nanosecond later
    assert cache.source_digest(path) == second != first and len(read) == 2
    third = write(path, "large enough and longer", 10**18 + 1)
    assert cache.source_digest(path) == third and len(read) == 3
    other = tmp_path / "other"
    fourth = write(other, "another file", 10**18)
    os.replace(other, path)  # another inode
    assert cache.source_digest(path) == fourth and len(read) == 4


def test_small_and_fresh_files_are_read_each_time(tmp_path, empty_cache, read):
    path = tmp_path / "small"
    write(path, "small", 10**18)
    assert cache.source_digest(path) == cache.source_digest(path) and len(read) == 2
    path.write_text("large, but written just now")
    assert cache.source_digest(path) == cache.source_digest(path) and len(read) == 4


def test_a_broken_note_is_not_believed(tmp_path, empty_cache, read):
    path = tmp_path / "large"
    expected = write(path, "large enough", 10**18)
    cache.source_digest(path)
    note = next((empty_cache / "digests").iterdir())
    note.write_text("")
    assert cache.source_digest(path) == expected and note.read_text().strip() == expected
