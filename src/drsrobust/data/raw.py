"""Pass 1 over text of any size: each block of lines becomes one file of raw columns, so that columns can be read one by one.

A block file is complete or absent, and its name says which block of which source it is: after a kill, parsing goes on
behind the last one. Integers are stored as differences from the block's smallest value, in the narrowest type that holds
them: 4 bytes for a category of 8 hexadecimal digits, 1 to 4 for a count.
"""

import ctypes
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tqdm import tqdm

from drsrobust._progress import progress
from drsrobust._storage import new_file
from drsrobust.data import text
from drsrobust.data.skipped import Skipped, check_share
from drsrobust.data.text import BadLines

PARSED = "parsed"  # an empty file that says: all blocks are there
LABEL = "label"
SHOWN = 256 << 20  # bytes of source from which on progress is shown


@dataclass(frozen=True)
class Table:
    """What the lines of a click log become.

    Attributes:
        blocks: (path, bad lines, first block) -> blocks of columns, name -> array [rows of the block]: `label` (0 or 1),
            the dense columns (float32) and the features (int64). Blocks are cut alike whichever the first one is.
        dense: names of the dense columns.
        features: names of the features, each with the value that stands for "missing" (None: none does).
    """

    blocks: Callable[[Path, BadLines, int], Iterator[dict[str, np.ndarray]]]
    dense: tuple[str, ...]
    features: dict[str, int | None]


def parse(folder: Path, table: Table, files: Sequence[Path], bad_lines: str) -> "Raw":
    """Parses the files into block files in `folder`, from where an earlier call was stopped.

    Raises:
        DataError: an unreadable file, a bad line (`strict`), or more bad lines than good ones (`skip`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(".*.part"):
        stale.unlink()  # of a killed process; nobody else writes here
    raw = Raw(folder)
    if (folder / PARSED).exists():
        return raw
    size = sum(file.stat().st_size for file in files)
    with progress(size // text.BLOCK + 1, "parsing", show=size > SHOWN) as bar:
        bar.update(len(raw.blocks))
        done = [tuple(map(int, block.path.stem.split("-"))) for block in raw.blocks]
        last_file, last_block = done[-1] if done else (0, -1)
        for number in range(last_file, len(files)):
            first = last_block + 1 if number == last_file else 0
            _parse_file(raw, table, files[number], number, first, bad_lines, bar)
    raw.check_share()
    _give_back_memory()
    with new_file(folder / PARSED) as path:
        path.touch()
    return raw


def _parse_file(raw: "Raw", table: Table, file: Path, number: int, first: int, bad_lines: str, bar: tqdm) -> None:
    """Parses one file, from block `first` on; it is the file `number` of the source, from 0."""
    bad, seen = BadLines(bad_lines), 0
    for position, columns in enumerate(table.blocks(file, bad, first), first):
        raw.add(f"{number:03}-{position:06}", columns, bad.found[seen:])
        seen = len(bad.found)
        bar.update()


def _give_back_memory() -> None:
    """Returns freed memory to the system: Arrow and glibc keep some 150 MiB for a next block that does not come."""
    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@dataclass(frozen=True)
class Block:
    """One block file: its rows, smallest and largest value of each integer column, and how many lines were bad."""

    path: Path
    rows: int
    ranges: dict[str, tuple[int, int]]
    bad: int


class Raw:
    """The block files in a folder, as columns of all rows in the order of the source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks: list[Block] = []
        self.rows = self.bad = 0  # rows, and lines left out
        for path in sorted(folder.glob("*.safetensors")):
            try:
                facts = _facts(path)
            except SafetensorError:
                facts = {}
            if facts.get("cut") != [text.BLOCK, text.PIECE]:
                # Damaged, or of a version that cut the text otherwise: it and what follows is parsed again.
                (folder / PARSED).unlink(missing_ok=True)
                for rest in sorted(folder.glob("*.safetensors"))[len(self.blocks) :]:
                    rest.unlink()
                break
            self._append(Block(path, facts["rows"], facts["ranges"], len(facts["bad"])))

    def __len__(self) -> int:
        return self.rows

    def add(self, name: str, columns: dict[str, np.ndarray], bad: list[Skipped]) -> None:
        """Writes one block file."""
        ranges, packed, rows = {}, {}, len(columns[LABEL])
        for column, values in columns.items():
            if rows and values.dtype.kind == "i":
                ranges[column] = low, high = int(values.min()), int(values.max())
                values = _shifted(values, low, _narrowest(high - low))
            packed[column] = values
        path = self.folder / f"{name}.safetensors"
        with new_file(path) as part:
            facts = {"rows": rows, "ranges": ranges, "bad": bad, "cut": [text.BLOCK, text.PIECE]}
            save_file(packed, part, {"facts": json.dumps(facts)})
        self._append(Block(path, rows, ranges, len(bad)))

    def column(self, name: str) -> tuple[np.ndarray, int]:
        """One column [n] as differences from its smallest value, in the narrowest unsigned type, and that value; a float
        column as it is, and 0."""
        ranges = [block.ranges[name] for block in self.blocks if name in block.ranges]
        low = min((low for low, _ in ranges), default=0)
        values, start = None, 0
        for block in self.blocks:
            with safe_open(block.path, "np") as file:
                part = file.get_tensor(name)
            if values is None:
                kind = _narrowest(max(high for _, high in ranges) - low) if ranges else part.dtype
                values = np.empty(len(self), kind)
            if name in block.ranges:
                values[start : start + block.rows] = part
                values[start : start + block.rows] += kind.type((block.ranges[name][0] - low) % 2**64)
            elif block.rows:
                values[start : start + block.rows] = part
            start += block.rows
        return values, low

    def skipped(self) -> Iterator[Skipped]:
        """The lines that were left out, in order."""
        for block in self.blocks:
            if block.bad:
                yield from _facts(block.path)["bad"]

    def _append(self, block: Block) -> None:
        self.blocks.append(block)
        self.rows += block.rows
        self.bad += block.bad

    def check_share(self) -> None:
        """Raises DataError when more than half of the lines so far were bad."""
        if self.bad:
            check_share(next(self.skipped()), self.bad, len(self))


def _facts(path: Path) -> dict:
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["facts"])


def _narrowest(span: int) -> np.dtype:
    """The narrowest unsigned type that holds 0 .. span."""
    return np.min_scalar_type(span)


def _shifted(values: np.ndarray, low: int, kind: np.dtype) -> np.ndarray:
    """values - low, in arithmetic modulo 2^64: no difference of two int64 is too large for it."""
    return (values.astype(np.uint64) - np.uint64(low % 2**64)).astype(kind)
