"""CPU time of what protected memory makes of an error map (`screen`), over that of drawing the map."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import pandas as pd

from benchmarks.common import Verdict, at_most
from drsrobust._processes import threads
from drsrobust.injection import BitFlip, resolve
from drsrobust.mitigation import ECC
from drsrobust_extras.protection.bit_protection import BitProtection
from drsrobust_extras.protection.replication import Replication
from drsrobust_extras.risk.timing import cpu_seconds
from drsrobust_study.mitigations import Case

RATE = 1e-2
_BITS = range(22, 32)  # sign, exponent and the highest bit of the mantissa of float32
LIMITS = (  # a protection, and how many times the drawing of the map its screening takes, at most
    *((ECC(), 3.8), (Replication(), 3.5)),
    *((BitProtection(_BITS, code="secded"), 7.0), (BitProtection(_BITS, code="tmr"), 2.8)),
)
COLUMNS = ("mitigation", "model", "draw_ms", "screen_ms", "over_draw")
_MAPS = 20


def screening_cost(cases: Sequence[Case]) -> pd.DataFrame:
    """One row per protection and model (`COLUMNS`), medians over error maps of rate `RATE`, drawn and screened in turns."""
    rows = []
    for case in cases:
        space = resolve(case.model)
        for protection, _ in LIMITS:
            draws, screens = [], []
            with threads(1):
                for seed in range(_MAPS):
                    drawn, took = cpu_seconds(partial(BitFlip(RATE).sample, space, seed=seed))
                    draws.append(took)
                    screen = cpu_seconds(partial(protection.screen, drawn, space, seed=seed))
                    screens.append(screen[1])
            over = median(screen / draw for screen, draw in zip(screens, draws, strict=True))
            rows.append((protection.name, case.name, 1e3 * median(draws), 1e3 * median(screens), over))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def verdicts(table: pd.DataFrame) -> Iterator[Verdict]:
    """The verdict on each target, by the slowest model."""
    for protection, limit in LIMITS:
        rows = table[table["mitigation"] == protection.name]
        worst = rows.loc[rows["over_draw"].idxmax()]
        yield at_most(
            f"{protection.name}: screening over drawing", worst["over_draw"], limit, note=f"{worst['model']}, {RATE:g}"
        )
