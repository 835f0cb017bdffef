"""Text files of Criteo's form and of any length, whose categories grow with the number of lines as the real ones do.

What was fitted, per categorical field: the share of empty fields and of the ten most frequent values in a random sample of
109,711 lines of the Kaggle file; and the number of distinct values D, there and in the whole file of 45,840,617 lines, by the
law D(n) = c n^a of n lines. For the five largest a is 0.88 (C3), 0.86 (C12), 0.85 (C21), 0.82 (C16) and 0.73 (C4). The values
beyond the ten most frequent are drawn independently from a Pareto law of tail exponent (1 - a) / a, which gives that growth;
of fields that hardly grow (a under 0.25), the whole file's values with probabilities proportional to 1 / rank. Integer
fields: the share of empty ones and of zeros, and a log-normal law for the others. Fields are independent of each other and of
the label (clicks: 25.7 %), so there is nothing to learn in such a file: it is for measuring time and memory.

What encoding a large file costs, against its number of lines.

Memory and time of encoding a Criteo file, against its number of lines: each file in a process of its own.

python -m drsrobust.benchmark criteo"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import gamma, log
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv

from drsrobust._environment import progress_bar
from drsrobust._files import cache_folder, new_file
from drsrobust._hashing import splitmix64
from drsrobust.data.large_files import PARSED
from drsrobust.plots.style import new_panels, series_style, styled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SAMPLE, WHOLE = 109_711, 45_840_617  # lines
HEAD = 10  # most frequent values, drawn with probabilities proportional to 1 / rank
CHUNK = 1 << 17  # lines that are made at once

# Share of empty fields, of zeros among the others; mean and deviation of log(1 + x) of the positive ones.
_INTEGERS = (
    *((0.453, 0.421, 1.51, 0.83), (0.000, 0.173, 2.90, 1.95), (0.211, 0.004, 2.15, 1.18), (0.213, 0.054, 1.80, 0.83)),
    *((0.026, 0.019, 7.42, 2.78), (0.223, 0.066, 3.64, 1.56), (0.042, 0.227, 2.11, 1.20), (0.001, 0.113, 2.30, 0.95)),
    *((0.042, 0.032, 3.64, 1.52), (0.453, 0.473, 0.76, 0.17), (0.042, 0.237, 1.21, 0.66), (0.768, 0.744, 1.13, 0.74)),
    (0.213, 0.064, 1.84, 0.88),
)
# Share of empty fields, share of the ten most frequent values among the others, distinct values in the sample and in all.
_CATEGORIES = (
    *((0.000, 0.909, 560, 1460), (0.000, 0.406, 515, 583), (0.035, 0.104, 50503, 10131227)),
    *((0.035, 0.172, 27126, 2202608), (0.000, 0.979, 141, 305), (0.123, 0, 11, 24), (0.000, 0.089, 8167, 12517)),
    *((0.000, 0.956, 264, 633), (0.000, 0, 3, 3), (0.000, 0.275, 12598, 93145), (0.000, 0.136, 3932, 5683)),
    *((0.035, 0.121, 46201, 8351593), (0.000, 0.154, 2878, 3194), (0.000, 0, 26, 27), (0.000, 0.094, 5511, 14992)),
    *((0.035, 0.123, 38264, 5461306), (0.000, 0, 10, 10), (0.000, 0.217, 2689, 5652), (0.441, 0.726, 1282, 2173)),
    *((0.441, 0, 3, 4), (0.035, 0.122, 42912, 7046547), (0.761, 0, 12, 18), (0.000, 0, 14, 15)),
    *((0.035, 0.306, 12776, 286181), (0.441, 0, 52, 105), (0.441, 0.260, 9729, 142572)),
)


def write_lines(path: Path, lines: int, seed: int = 0) -> None:
    """Writes a file of so many lines, complete or absent; a longer one with the same seed begins with the same chunks."""
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with new_file(path) as part, open(part, "wb") as handle:
        for number, start in enumerate(range(0, lines, CHUNK)):
            rng = np.random.default_rng((seed, number))
            table = pa.table(dict(_columns(rng, CHUNK))).slice(0, min(CHUNK, lines - start))
            pyarrow.csv.write_csv(table, handle, options)


def _columns(rng: np.random.Generator, n: int) -> Iterator[tuple[str, pa.Array]]:
    yield "label", pa.array((rng.random(n) < 0.257).astype(np.int8))
    for number, (empty, zero, mean, deviation) in enumerate(_INTEGERS, 1):
        counts = np.maximum(np.expm1(rng.normal(mean, deviation, n)).round(), 1).astype(np.int64)
        counts[rng.random(n) < zero] = 0
        yield f"I{number}", pa.array(counts, mask=rng.random(n) < empty)
    for number, (empty, head, sample, whole) in enumerate(_CATEGORIES, 1):
        rank = categories(rng, n, empty, head, sample, whole)
        value = splitmix64(rank.astype(np.uint64) ^ np.uint64(number << 56)) >> np.uint64(32)
        yield f"C{number}", _hexadecimal(value, rng.random(n) < empty)


def categories(rng: np.random.Generator, n: int, empty: float, head: float, sample: int, whole: int) -> np.ndarray:
    """n values as numbers, the most frequent first: distinct values grow from `sample` in SAMPLE lines, of which a share
    `empty` has none, to `whole` in WHOLE lines."""
    growth = log(whole / sample) / log(WHOLE / SAMPLE)
    if growth < 0.25:
        return _zipf(rng, n, whole)
    tail = (1 - growth) / growth
    # With P(rank >= r) = (r / first)^-tail, n values have about gamma(1 - growth) (tail first^tail n)^growth distinct ones.
    lines = WHOLE * (1 - empty) * (1 - head)
    first = ((whole / gamma(1 - growth)) ** (1 / growth) / (tail * lines)) ** (1 / tail)
    rank = np.minimum(HEAD + first * rng.random(n) ** (-1 / tail), 2.0**55)
    return np.where(rng.random(n) < head, _zipf(rng, n, HEAD), rank.astype(np.int64))


def _zipf(rng: np.random.Generator, n: int, values: int) -> np.ndarray:
    """Numbers 0 .. values - 1 [n] with probabilities about proportional to 1 / (rank from 1)."""
    return np.exp(rng.random(n) * log(values + 1)).astype(np.int64) - 1


_DIGITS = np.frombuffer(b"".join(b"%04x" % number for number in range(1 << 16)), np.uint8).reshape(-1, 4)


def _hexadecimal(values: np.ndarray, empty: np.ndarray) -> pa.Array:
    """8 hexadecimal digits each, or nothing."""
    text = np.concatenate([_DIGITS[values >> np.uint64(16)], _DIGITS[values & np.uint64(0xFFFF)]], axis=1)
    ends = np.arange(0, 8 * len(values) + 1, 8, dtype=np.int32)
    there = np.packbits(~empty, bitorder="little")
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(text), pa.py_buffer(there))


_SERIES = {
    "peak_rss_mib": "whole call (parsing: constant)",
    "encode_rss_mib": "encoding, column by column",
    "encode_anon_mib": "of it, not pages of files",
}


@styled
def encoding_memory_figure(table: "pd.DataFrame", ax: "Axes | None" = None) -> "Axes":
    """Peak memory of encoding a Criteo file against its lines, from 0 up, so that growth is seen as it is.

    Args:
        table: as the benchmark `criteo` writes it: `lines`, and MiB in `peak_rss_mib`, `encode_rss_mib`, `encode_anon_mib`.
        ax: where to draw; None: a new figure.
    """
    ax = ax or new_panels()[0]
    for index, (column, label) in enumerate(_SERIES.items()):
        ax.plot(table["lines"] / 1e6, table[column], label=label, linewidth=1.6, markersize=6, **series_style(index))
    ax.set(xlabel="million lines", ylabel="peak memory (MiB)", title="Encoding a Criteo file", xlim=(0, None))
    ax.set_ylim(0, 1.35 * table[list(_SERIES)].to_numpy().max())
    ax.legend(loc="upper left")
    return ax


LINES = (1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000)
COLUMNS = ("lines", "peak_rss_mib", "peak_anon_mib", "seconds", "lines_per_s", "vocabulary_rows")
COLUMNS += ("parse_seconds", "encode_seconds", "encode_rss_mib", "encode_anon_mib")
_INTERVAL = 0.01  # seconds between two series_styles at a process's memory

# What the measured process does. It tells its own high-water mark: the kernel forgets it when the process ends.
_CHILD = """
import json, re, sys
from pathlib import Path
from drsrobust.data import load_dataset
data = load_dataset(f"criteo-sample/{sys.argv[2]}", path=sys.argv[1])
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"peak_kib": peak, "vocabulary_rows": sum(f.cardinality for f in data.schema.features)}))
"""


def encoding_memory(
    lines: Sequence[int] = LINES, *, schema: str = "dlrm", seed: int = 0, progress: bool = True
) -> "pd.DataFrame":
    """Encodes generated files of so many lines (see `criteo_text`), one thread each.

    Args:
        lines: of each file. The longest takes about 650 bytes per line on disk while it is measured.
        schema: of Criteo.
        seed: of what is in the files.
        progress: a progress bar.

    Returns:
        one row per file: `lines`; `peak_rss_mib` (most memory that lay in RAM, with pages of files); `peak_anon_mib` (without
        those, which the system can take back; looked at every 10 ms); `seconds` of the whole process; `lines_per_s`;
        `vocabulary_rows` (ids of all features together); `parse_seconds`, and what comes after parsing by itself, since that
        alone grows with the lines: `encode_seconds`, `encode_rss_mib`, `encode_anon_mib` (looked at every 10 ms).

    Raises:
        RuntimeError: the measured process failed.
    """
    import pandas as pd

    cache_folder("bench").mkdir(parents=True, exist_ok=True)
    rows = []
    with progress_bar(len(lines), "encoding", progress=progress) as bar:
        for n in lines:
            # Beside the caches: a folder for temporary files may itself lie in memory.
            with tempfile.TemporaryDirectory(dir=cache_folder("bench")) as folder:
                write_lines(Path(folder) / "criteo.txt", n, seed)
                rows.append({"lines": n} | measure(Path(folder) / "criteo.txt", schema))
            bar.update()
    table = pd.DataFrame(rows)
    table["lines_per_s"] = table["lines"] / table["seconds"]
    return table[list(COLUMNS)]


def measure(path: Path, schema: str = "dlrm") -> dict[str, float]:
    """Memory and time of encoding one file in a process of its own; see `encoding_memory`.

    Raises:
        RuntimeError: the process failed.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as cache, tempfile.TemporaryFile("w+") as errors:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "DRSROBUST_CACHE": cache}
        start, parsed = time.perf_counter(), None
        peaks = {"parse": (0, 0), "encode": (0, 0)}  # all resident memory, and what of it is anonymous
        command = [sys.executable, "-c", _CHILD, str(path), schema]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            try:
                while process.poll() is None:
                    if parsed is None and any(Path(cache, "data").glob(f".*.part/raw/{PARSED}")):
                        parsed = time.perf_counter()
                    stage = "parse" if parsed is None else "encode"
                    peaks[stage] = tuple(map(max, peaks[stage], _resident_kib(process.pid)))
                    time.sleep(_INTERVAL)
                end = time.perf_counter()
            finally:
                process.kill()
            told = process.stdout.read()
        if process.returncode:
            errors.seek(0)
            reason = errors.read().strip().rpartition("\n")[2] or f"it ended with status {process.returncode}"
            raise RuntimeError(f"encoding {path} failed: {reason}")
    told = json.loads(told)
    parsed = end if parsed is None else parsed
    return {
        "peak_rss_mib": told["peak_kib"] / 1024,
        "peak_anon_mib": max(anonymous for _, anonymous in peaks.values()) / 1024,
        "seconds": end - start,
        "vocabulary_rows": told["vocabulary_rows"],
        "parse_seconds": parsed - start,
        "encode_seconds": end - parsed,
        "encode_rss_mib": peaks["encode"][0] / 1024,
        "encode_anon_mib": peaks["encode"][1] / 1024,
    }


def extrapolated(table: "pd.DataFrame", lines: int = WHOLE) -> dict[str, float]:
    """What `encoding_memory` would give for more lines: `peak_rss_mib`, `peak_anon_mib`, `seconds`.

    Parsing needs the same memory however long the file is; that of encoding goes by a straight line through the measured
    points, and the peak is the larger one.

    Raises:
        ValueError: fewer than two different lengths.
    """
    import numpy as np

    if table["lines"].nunique() < 2:
        raise ValueError(f"a straight line through {table['lines'].nunique()} length; at least two are needed")

    def line(column: str) -> float:
        return float(np.polyval(np.polyfit(table["lines"], table[column], 1), lines))

    peaks = {
        f"peak_{kind}_mib": max(float(table[f"peak_{kind}_mib"].max()), line(f"encode_{kind}_mib"))
        for kind in ("rss", "anon")
    }
    return peaks | {"seconds": line("seconds")}


def _resident_kib(pid: int) -> tuple[int, int]:
    """Memory of a process that lies in RAM, and what of it is anonymous; 0 of one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    found = (re.search(rf"{name}:\s+(\d+)", status) for name in ("VmRSS", "RssAnon"))
    return tuple(int(match[1]) if match else 0 for match in found)
