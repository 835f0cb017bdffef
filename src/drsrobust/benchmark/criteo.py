"""Memory and time of encoding a Criteo file, against its number of lines: each file in a process of its own.

python -m drsrobust.benchmark criteo
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drsrobust._progress import progress
from drsrobust._storage import cache_folder
from drsrobust.benchmark.criteo_text import WHOLE, write_lines
from drsrobust.data.raw import PARSED

if TYPE_CHECKING:
    import pandas as pd

LINES = (1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000)
COLUMNS = ("lines", "peak_rss_mib", "peak_anon_mib", "seconds", "lines_per_s", "vocabulary_rows")
COLUMNS += ("parse_seconds", "encode_seconds", "encode_rss_mib", "encode_anon_mib")
_INTERVAL = 0.01  # seconds between two looks at a process's memory

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
    lines: Sequence[int] = LINES, *, schema: str = "dlrm", seed: int = 0, show: bool = True
) -> "pd.DataFrame":
    """Encodes generated files of so many lines (see `criteo_text`), one thread each.

    Args:
        lines: of each file. The longest takes about 650 bytes per line on disk while it is measured.
        schema: of Criteo.
        seed: of what is in the files.
        show: a progress bar.

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
    with progress(len(lines), "encoding", show=show) as bar:
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
