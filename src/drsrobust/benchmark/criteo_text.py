"""Text files of Criteo's form and of any length, whose categories grow with the number of lines as the real ones do.

What was fitted, per categorical field: the share of empty fields and of the ten most frequent values in a random sample of
109,711 lines of the Kaggle file; and the number of distinct values D, there and in the whole file of 45,840,617 lines, by the
law D(n) = c n^a of n lines. For the five largest a is 0.88 (C3), 0.86 (C12), 0.85 (C21), 0.82 (C16) and 0.73 (C4). The values
beyond the ten most frequent are drawn independently from a Pareto law of tail exponent (1 - a) / a, which gives that growth;
of fields that hardly grow (a under 0.25), the whole file's values with probabilities proportional to 1 / rank. Integer
fields: the share of empty ones and of zeros, and a log-normal law for the others. Fields are independent of each other and of
the label (clicks: 25.7 %), so there is nothing to learn in such a file: it is for measuring time and memory.
"""

from collections.abc import Iterator
from math import gamma, log
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from drsrobust._storage import new_file
from drsrobust.data.encoding import splitmix64

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
