"""Files that lie in place of data or weights."""

import json
import re
import zipfile
from pathlib import Path

_ENDS = {b"PAR1": b"PAR1", b"ARROW1": b"ARROW1"}  # of complete files, by how they begin
_ZIP = b"PK\x03\x04"


def other_file(path: Path) -> str | None:
    """What a file is in place of data or weights, and what to do: a Git LFS pointer, a web page, or a file that is cut off, of
    those of Parquet, Arrow, ZIP (as PyTorch saves) and safetensors; None: nothing of these."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(512)
        file.seek(max(0, size - 8))
        end = file.read()
    if not size:
        return "the file is empty; get it again"
    if start.startswith(b"version https://git-lfs"):
        return "the file is a Git LFS pointer; `git lfs pull` gets what it points to"
    if re.match(rb"\s*(<!doctype html|<html)", start, re.IGNORECASE):
        return "the file is a web page, saved in place of what it offers; get the file itself"
    begin = next((begin for begin in _ENDS if start.startswith(begin)), None)
    is_cut = not zipfile.is_zipfile(path) if start.startswith(_ZIP) else begin is not None and _ENDS[begin] not in end
    if path.suffix == ".safetensors":
        header = int.from_bytes(start[:8], "little")
        is_cut = start[8:9] == b"{" and header < 100_000_000 and size < 8 + header + _last_byte(path, header)
    return "the file is cut off; get it again" if is_cut else None


def _last_byte(path: Path, header: int) -> int:
    """Where the last tensor of a .safetensors ends, from its header of so many bytes; 0 if that is cut off itself."""
    with path.open("rb") as file:
        text = file.read(8 + header)[8:]
    try:
        entries = json.loads(text)
        return max((entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError):
        return 0
