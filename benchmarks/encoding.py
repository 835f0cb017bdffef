"""Memory and time of encoding a Criteo file, against its number of lines: each file in a process of its own.

The files are generated (`write_lines`): their categories grow with the number of lines as the real ones do. What was fitted,
per categorical field: the share of empty fields and of the ten most frequent values in a random sample of 109,711 lines of the
Kaggle file; and the number of distinct values D, there and in the whole file of 45,840,617 lines, by the law D(n) = c n^a. For
the five largest a is 0.88 (C3), 0.86 (C12), 0.85 (C21), 0.82 (C16) and 0.73 (C4). Values beyond the ten most frequent are drawn
independently from a Pareto law of tail exponent (1 - a) / a, which gives that growth; of fields that hardly grow (a under
0.25), the whole file's values with probabilities proportional to 1 / rank. Integer fields: the share of empty ones and of
zeros, and a log-normal law for the others. Fields are independent of each other and of the label (clicks: 25.7 %).

For comparison: pandas reads the same file and encodes its categories with `factorize`, all lines in memory.
"""

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

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from benchmarks.common import OURS, Result, about, text
from drsrobust._files import cache_folder, new_file
from drsrobust._hashing import splitmix64
from drsrobust._progress import progress_bar
from drsrobust_extras.data.click_logs import RAW

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


def run() -> Result:
    """The benchmark `encoding`."""
    table = encoding_memory()
    return Result({"encoding": table}, describe(table))


def describe(table: pd.DataFrame) -> str:
    """The table as text, and an estimate for the whole Kaggle file by a straight line.

    Args:
        table: as `encoding_memory` returns it.
    """
    whole = extrapolated(table)
    estimate = (
        f"A straight line gives, for the {WHOLE:,} lines of the Kaggle file: {whole['peak_rss_mib']:,.0f} MiB "
        f"({whole['peak_anon_mib']:,.0f} MiB without pages of files), {whole['seconds'] / 60:.0f} minutes"
    )
    return "\n\n".join([about("one thread; generated lines"), text(table.set_index(["method", "lines"])), estimate])


LINES = (1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000)
COLUMNS = ("method", "lines", "peak_rss_mib", "peak_anon_mib", "seconds", "lines_per_s", "vocabulary_rows")
COLUMNS += ("parse_seconds", "encode_seconds", "encode_rss_mib", "encode_anon_mib")
_INTERVAL = 0.01  # seconds between two readings of a process's memory

# The measured process. It prints its own peak: the kernel forgets it when the process ends.
_CHILD = """
import json, re, sys
from pathlib import Path
from drsrobust.data import load_dataset
data = load_dataset(f"criteo-sample/{sys.argv[2]}", path=sys.argv[1])
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"peak_kib": peak, "vocabulary_rows": sum(f.cardinality for f in data.schema.features)}))
"""
_PANDAS = """
import json, re, sys
from pathlib import Path
import numpy as np, pandas as pd
table = pd.read_csv(sys.argv[1], sep="\\t", header=None, dtype={n: "str" for n in range(14, 40)})
dense = np.log1p(table.loc[:, 1:13].fillna(0).clip(lower=0)).to_numpy(np.float32)
encoded = [pd.factorize(table[n]) for n in range(14, 40)]
ids = np.stack([codes + 1 for codes, _ in encoded], axis=1).astype(np.int32)
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"peak_kib": peak, "vocabulary_rows": sum(len(values) + 1 for _, values in encoded)}))
"""
METHODS = {OURS: _CHILD, "pandas": _PANDAS}


def encoding_memory(
    lines: Sequence[int] = LINES, *, schema: str = "dlrm", seed: int = 0, progress: bool = True
) -> pd.DataFrame:
    """Encodes generated files of so many lines, one thread each.

    Args:
        lines: of each file. The longest takes about 650 bytes per line on disk while it is measured.
        schema: of Criteo.
        seed: of the files' contents.
        progress: a progress bar.

    Returns:
        one row per method and file: `method`, `lines`; `peak_rss_mib` (most resident memory, with pages of files);
        `peak_anon_mib`
        (without pages of files, read every 10 ms); `seconds` of the whole process; `lines_per_s`; `vocabulary_rows` (ids of all
        features); of `drsrobust` also `parse_seconds`, and of the stage after parsing, whose memory alone grows with the lines,
        `encode_seconds`, `encode_rss_mib`, `encode_anon_mib`.

    Raises:
        RuntimeError: the measured process failed.
    """
    cache_folder("bench").mkdir(parents=True, exist_ok=True)
    rows = []
    with progress_bar(len(lines) * len(METHODS), "encoding", progress=progress) as bar:
        for n in lines:
            # In the cache folder: a folder for temporary files may itself be in memory.
            with tempfile.TemporaryDirectory(dir=cache_folder("bench")) as folder:
                write_lines(Path(folder) / "criteo.txt", n, seed)
                for method in METHODS:
                    rows.append({"method": method, "lines": n} | measure(Path(folder) / "criteo.txt", schema, method))
                    bar.update()
    table = pd.DataFrame(rows)
    table["lines_per_s"] = table["lines"] / table["seconds"]
    return table[list(COLUMNS)]


def measure(path: Path, schema: str = "dlrm", method: str = OURS) -> dict[str, float]:
    """Memory and time of encoding one file in a process of its own; see `encoding_memory`.

    Raises:
        RuntimeError: the process failed.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as cache, tempfile.TemporaryFile("w+") as errors:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "DRSROBUST_CACHE": cache}
        start, parsed = time.perf_counter(), None
        peaks = {"parse": (0, 0), "encode": (0, 0)}  # all resident memory, and what of it is anonymous
        command = [sys.executable, "-c", METHODS[method], str(path), schema]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            try:
                while process.poll() is None:
                    if parsed is None and any(Path(cache, "data").glob(f".*.part/{RAW}")):
                        parsed = time.perf_counter()
                    stage = "parse" if parsed is None else "encode"
                    peaks[stage] = tuple(map(max, peaks[stage], resident_kib(process.pid)))
                    time.sleep(_INTERVAL)
                end = time.perf_counter()
            finally:
                process.kill()
            printed = process.stdout.read()
        if process.returncode:
            errors.seek(0)
            reason = errors.read().strip().rpartition("\n")[2] or f"it ended with status {process.returncode}"
            raise RuntimeError(f"encoding {path} failed: {reason}")
    result = json.loads(printed)
    whole = {
        "peak_rss_mib": result["peak_kib"] / 1024,
        "peak_anon_mib": max(anonymous for _, anonymous in peaks.values()) / 1024,
        "seconds": end - start,
        "vocabulary_rows": result["vocabulary_rows"],
    }
    if method != OURS:
        return whole
    parsed = end if parsed is None else parsed
    return whole | {
        "parse_seconds": parsed - start,
        "encode_seconds": end - parsed,
        "encode_rss_mib": peaks["encode"][0] / 1024,
        "encode_anon_mib": peaks["encode"][1] / 1024,
    }


def extrapolated(table: pd.DataFrame, lines: int = WHOLE) -> dict[str, float]:
    """What `encoding_memory` would give for more lines: `peak_rss_mib`, `peak_anon_mib`, `seconds`.

    The memory of parsing does not depend on the length; that of encoding is extrapolated by a line, and the peak is the
    larger one.

    Raises:
        ValueError: fewer than two different lengths.
    """
    table = table[table["method"] == OURS]
    if table["lines"].nunique() < 2:
        raise ValueError(f"a straight line through {table['lines'].nunique()} length; at least two are needed")

    def line(column: str) -> float:
        return float(np.polyval(np.polyfit(table["lines"], table[column], 1), lines))

    peaks = {
        f"peak_{kind}_mib": max(float(table[f"peak_{kind}_mib"].max()), line(f"encode_{kind}_mib"))
        for kind in ("rss", "anon")
    }
    return peaks | {"seconds": line("seconds")}


def resident_kib(pid: int) -> tuple[int, int]:
    """Memory of a process that lies in RAM, and what of it is anonymous; 0 of one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    found = (re.search(rf"{name}:\s+(\d+)", status) for name in ("VmRSS", "RssAnon"))
    return tuple(int(match[1]) if match else 0 for match in found)
