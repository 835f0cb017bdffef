"""What mitigations cost and what they are worth: time at inference, memory, detection, repair, clean AUC."""

from collections.abc import Callable, Sequence

import pandas as pd

from drsrobust._progress import progress
from drsrobust.benchmark.mitigation_cases import (
    Case,
    bag_checks,
    checks,
    in_computation,
    large,
    trained,
    with_int8_tables,
)
from drsrobust.benchmark.mitigation_detection import detected
from drsrobust.benchmark.mitigation_effects import clean_auc, repair
from drsrobust.benchmark.mitigation_memory import memory_cost
from drsrobust.benchmark.overhead import overhead
from drsrobust.injection import resolve
from drsrobust.mitigation import Mitigation
from drsrobust.mitigation.abft import ABFT

COLUMNS = ("mitigation", "model", "scope", "batch", "plain_ms", "protected_ms", "overhead_percent")
COLUMNS += ("stored_bits_percent",)
BATCHES = (64, 512, 2048, 8192)
PASS = 16_384  # rows of a timed pass, in at most so many batches:
MOST = 64


def mitigation_cost(
    make_large: Callable[[], Case] = large,
    make_trained: Callable[[], Sequence[Case]] = trained,
    batches: Sequence[int] = BATCHES,
    turns: int = 5,
    injections: int = 10_000,
    int8_injections: int = 2_000,
    test_rows: int = 20_000,
    generated_rows: int = 10_000_000,
    trials: int = 300,
    *,
    seed: int = 0,
    show: bool = True,
) -> dict[str, pd.DataFrame]:
    """All tables of the benchmark.

    Args:
        make_large: the 26-table DLRM.
        make_trained: trained models; the first is a DLRM, the one that errors are put into.
        batches: sizes at which time is measured.
        turns: of each measurement.
        injections: single errors in the linear layers, and as many in the tables, of the first trained model.
        int8_injections: the same in its tables quantized to int8.
        test_rows: on which errors are judged, and repair; clean rows and clean AUC are of all test rows.
        generated_rows: clean rows for the 26-table DLRM.
        trials: error maps of each error model that are repaired.
        seed: of errors.
        show: progress bars.

    Returns:
        `mitigation` (`COLUMNS`), `detection`, `mitigation_repair`, `mitigation_clean`, `mitigation_storage`.
    """
    big, fitted = make_large(), list(make_trained())
    first = fitted[0]
    timed = [big, with_int8_tables(big), *(case for case in fitted if case.data == first.data)]
    return {
        "mitigation": time_cost(timed, batches, turns, show=show),
        "detection": detected(big, fitted, injections, int8_injections, test_rows, generated_rows, seed, show),
        "mitigation_repair": repair(first, test_rows, trials, seed=seed, show=show),
        "mitigation_clean": clean_auc(fitted, show=show),
        "mitigation_storage": memory_cost([first, big]),
    }


def time_cost(
    cases: Sequence[Case], batches: Sequence[int], turns: int, *, checks_only: bool = False, show: bool = True
) -> pd.DataFrame:
    """Inference with and without each mitigation, side by side (`overhead`); of checksums also as a share of the operators that
    they check, of those of one kind.

    Args:
        cases: models, with the rows that are scored: test rows, not those that bounds were learnt from.
        batches: sizes.
        turns: of `overhead`.
        checks_only: checksums alone.
        show: a progress bar.
    """
    rows = []
    with progress(len(cases) * len(batches), "inference time", show=show) as bar:
        for case in cases:
            mitigations = bag_checks(case) if case.int8 else checks(case) if checks_only else in_computation(case)
            bits = resolve(case.model, "all").bits  # int8 rows are no parameters
            for size in batches:
                rows += [_timed(case, one, size, turns, modules, bits) for one, modules in _scopes(mitigations)]
                bar.update()
    table = pd.DataFrame(rows)
    return table[list(COLUMNS)]


def _scopes(mitigations: Sequence[Mitigation]) -> list[tuple[Mitigation, list[str] | None]]:
    """Each for the whole model, checksums for their operators too."""
    found: list[tuple[Mitigation, list[str] | None]] = [(one, None) for one in mitigations]
    return found + [(one, one.covered) for one in mitigations if isinstance(one, ABFT)]


def _timed(case: Case, mitigation: Mitigation, size: int, turns: int, modules: list[str] | None, bits: int) -> dict:
    number = max(1, min(MOST, PASS // size))
    split = case.test.head(min(len(case.test), number * size))
    batches = [batch for batch in split.batches(size) if len(batch.labels) == size]
    if not batches:
        raise ValueError(f"{case.name} on {case.data} has {len(split)} test rows; a batch of {size} needs more")
    measured = overhead(case.model, batches, mitigation, modules=modules, turns=turns)
    stored = 100 * mitigation.cost(case.model).stored_bits / bits
    return {"mitigation": mitigation.name, "model": case.name, "stored_bits_percent": stored} | measured
