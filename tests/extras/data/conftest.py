import gzip

import pytest


@pytest.fixture
def file(tmp_path):
    """Writes a file, by its name plain or .gz, and gives its path."""

    def write(content, name="rows.txt"):
        content = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write
