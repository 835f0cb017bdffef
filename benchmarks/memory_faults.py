"""One fault of a memory chip in a model of 1e8 parameters: drawing it, applying it and undoing it, by mode and map.

No published tool has faults with an extent: the peer is a dense error map of the same model, one XOR of all of its words.
"""

import time
from collections.abc import Iterator

import pandas as pd
import torch
from torch import nn

import drsrobust as dr
from benchmarks.common import Result, Verdict, about, at_most, text, verdict_text
from drsrobust._processes import threads
from drsrobust_extras.protection.memory_map import MAPS, Geometry

PARAMETERS = 100_000_000
MODES = ("column", "row", "bank")
LIMITS_MS = {"column": 50.0, "row": 50.0, "bank": 1000.0}
CHIP = 7  # of data, so that bits are wrong


def run() -> Result:
    """The benchmark `memory_faults`."""
    table = fault_times(PARAMETERS)
    return Result({"memory_faults": table}, describe(table))


def fault_times(parameters: int, repeats: int = 5) -> pd.DataFrame:
    """Wall time of one fault, the median of some after a first one: the first touches new memory, which takes longer.

    Returns:
        one row per mode and map: `mode`, `mapping`, `words` that were hit, `first_ms` and `ms` (draw, apply and undo),
        `dense_ms` (the peer).
    """
    model = nn.Embedding(parameters // 16, 16)
    space, rows = dr.resolve(model), []
    with threads(1):
        dense = _dense_ms(model)
        for mode in MODES:
            for mapping in MAPS:
                fault = dr.MemoryFault(mode, chips=(CHIP,), geometry=Geometry(mapping=mapping))
                # Of a fault in the last, partly filled bank there is less to do.
                seeds = sorted(range(40), key=lambda seed, f=fault: -len(f.extent(space, seed=seed).address))[
                    : repeats + 1
                ]
                took = [_fault(model, fault, space, seed) for seed in seeds]
                row = {"mode": mode, "mapping": mapping, "words": took[0][0], "first_ms": took[0][1]}
                rows.append(row | {"ms": pd.Series([ms for _, ms in took[1:]]).median(), "dense_ms": dense})
    return pd.DataFrame(rows)


def _fault(model: nn.Module, fault: dr.MemoryFault, space: dr.injection.AddressSpace, seed: int) -> tuple[int, float]:
    start = time.perf_counter()
    error_map = fault.sample(space, seed=seed)
    with error_map.applied(model):
        pass
    return len(error_map), 1e3 * (time.perf_counter() - start)


def _dense_ms(model: nn.Module) -> float:
    """A Bernoulli mask of every word's highest four bits, applied and undone."""
    words = model.weight.detach().view(torch.int32)
    start = time.perf_counter()
    mask = torch.randint_like(words, 16) << 28
    words ^= mask
    words ^= mask
    return 1e3 * (time.perf_counter() - start)


def verdicts(table: pd.DataFrame) -> Iterator[Verdict]:
    """The verdict on the target of each mode, by the slower map."""
    for mode, rows in table.groupby("mode", sort=False):
        worst = rows.loc[rows["ms"].idxmax()]
        note = f"{worst['mapping']}, {worst['words']:,} words; the first one {worst['first_ms']:,.0f} ms"
        yield at_most(f"{mode}: draw, apply, undo", worst["ms"], LIMITS_MS[mode], " ms", note)


def describe(table: pd.DataFrame) -> str:
    """Times and targets as text."""
    parts = [about(f"one fault in {PARAMETERS:,} float32 parameters, one thread, wall time")]
    return "\n\n".join([*parts, text(table.set_index(["mode", "mapping"])), verdict_text(verdicts(table))])
