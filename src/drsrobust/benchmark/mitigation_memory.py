"""Mitigations of memory: what they store, and how long it takes to look at all of a model's words once."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import nn

from drsrobust.benchmark.measure import cpu_seconds
from drsrobust.benchmark.mitigation_cases import Case, in_memory
from drsrobust.injection import resolve
from drsrobust.mitigation import Mitigation, WeightRange
from drsrobust.mitigation.storage import StorageProtection

_AT_ONCE = 1 << 16  # units whose check bits are reckoned at once


def memory_cost(cases: Sequence[Case]) -> pd.DataFrame:
    """One row per mitigation and model: `mitigation`, `model`, `stored_bits_percent` (of the parameters' bits), `scrub_ms`: the
    CPU time of one pass of this library over all words, which makes their check bits (or compares them with their ranges); null
    for what hardware votes on at each read. None of them takes time at inference.
    """
    rows = []
    for case in cases:
        bits = resolve(case.model, "all").bits
        for mitigation in in_memory(case):
            stored = 100 * mitigation.cost(case.model).stored_bits / bits
            rows.append((mitigation.name, case.name, stored, _scrub_ms(mitigation, case.model)))
    return pd.DataFrame(rows, columns=["mitigation", "model", "stored_bits_percent", "scrub_ms"])


def _scrub_ms(mitigation: Mitigation, model: nn.Module) -> float | None:
    if isinstance(mitigation, WeightRange):
        return 1e3 * cpu_seconds(lambda: mitigation.outside(model))[1]
    areas = list(mitigation.areas(model)) if isinstance(mitigation, StorageProtection) else []
    found = [(area, mitigation.checks(area)) for area in areas]
    if not found or any(one is None for _, one in found):
        return None

    def scrub() -> None:
        for area, one in found:
            for start in range(0, one.units, _AT_ONCE):
                mitigation.content(area, np.arange(start, min(one.units, start + _AT_ONCE)))

    return 1e3 * cpu_seconds(scrub)[1]
