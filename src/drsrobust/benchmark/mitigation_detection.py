"""What checksums notice of single errors, and whether they are quiet without any."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from drsrobust._progress import progress
from drsrobust.benchmark.detection import by_bit, false_alarms, generated, single_errors
from drsrobust.benchmark.mitigation_cases import LARGE, Case, bag_checks, checks, with_int8_tables
from drsrobust.benchmark.pooled_rounding import beyond_rounding
from drsrobust.data import Split
from drsrobust.injection import resolve
from drsrobust.mitigation import ABFTLinear, Mitigation

if TYPE_CHECKING:
    from torchrec.datasets.utils import Batch

MOVED = {"provable": 1e-2, "calibrated": 1e-3}  # of a logit, by an error that a linear layer's check should notice
BATCH = 2048  # clean rows


def detected(
    big: Case,
    fitted: Sequence[Case],
    injections: int,
    int8_injections: int,
    test_rows: int,
    generated_rows: int,
    seed: int,
    show: bool,
) -> pd.DataFrame:
    """Single errors in the first fitted model (`in_layers`, `in_tables`), and clean rows of all models.

    Args:
        as in `mitigation_cost`.

    Returns:
        the columns of `detection.COLUMNS`; a model without injections has one row for each check, of no component and bit -1.
    """
    first, options = fitted[0], {"rows": test_rows, "seed": seed, "show": show}
    parts = [
        in_layers(first, injections, **options),
        in_tables(first, injections, **options),
        in_tables(with_int8_tables(first), int8_injections, **options),
    ]
    parts += [_alone(case, _quiet(case, checks(case))) for case in fitted[1:]]
    with progress(-(-generated_rows // BATCH), "generated rows", show=show) as bar:
        rows = _counted(big, generated_rows, 1 + seed, bar)  # the seed before made the rows it learnt from
        parts.append(_alone(big, false_alarms(big.model, checks(big), rows)))
    return pd.concat(parts, ignore_index=True)


def in_layers(case: Case, injections: int, *, rows: int, seed: int = 0, show: bool = True) -> pd.DataFrame:
    """Errors in linear layers, by both thresholds. Significant is one that moves a logit of the rows by more than `MOVED`, or
    makes it not finite.

    Args:
        case: a model with linear layers.
        injections: single errors; bits and tensors take turns.
        rows: of the test rows, on which errors are judged; all of them are to raise no alarm.
        seed: of the errors.
        show: a progress bar.

    Returns:
        the columns of `detection.COLUMNS`.
    """
    found = [one for one in checks(case) if isinstance(one, ABFTLinear)]
    errors = _errors(case, found, injections, "mlp", rows, seed, show)
    limit = errors["mitigation"].map({one.name: MOVED[one.mode] for one in found})
    return by_bit(errors, errors["moved"] > limit, _quiet(case, found))


def in_tables(case: Case, injections: int, *, rows: int, seed: int = 0, show: bool = True) -> pd.DataFrame:
    """Errors in embedding tables. Significant is one that changes a pooled value of the rows beyond rounding
    (`beyond_rounding`); in int8 rows, which are checked by residues, any in a row of a table that is read.

    Args, returns:
        as `in_layers`.
    """
    found = bag_checks(case)[:1]
    errors = _errors(case, found, injections, "embedding", rows, seed, show)
    significant = errors["rows_reached"] > 0
    if not case.int8:
        significant = beyond_rounding(case.model, _judged(case, rows), errors)
    return by_bit(errors, significant, _quiet(case, found))


def described(split: Split) -> str:
    """Which rows these are, for a caption."""
    generated_data = " (generated data, not real clicks)" if split.dataset.startswith("synthetic-") else ""
    rows = f"{len(split):,}" if len(split) == split.whole else f"{len(split):,} of {split.whole:,}"
    return f"{split.dataset}{generated_data}, {rows} {split.part} rows."


def _errors(
    case: Case, found: Sequence[Mitigation], injections: int, target: str, rows: int, seed: int, show: bool
) -> pd.DataFrame:
    options = {"targets": (target,), "seed": seed, "show": show}
    return single_errors(case.model, _judged(case, rows), found, injections, **options).assign(model=case.name)


def _judged(case: Case, rows: int) -> Split:
    return case.test.head(min(rows, len(case.test)))


def _quiet(case: Case, mitigations: Sequence[Mitigation]) -> dict[str, tuple[int, int]]:
    """False alarms on all test rows."""
    return false_alarms(case.model, mitigations, case.test.batches(BATCH))


def _counted(big: Case, rows: int, seed: int, bar) -> Iterator["Batch"]:
    table_rows = sum(tensor.shape[0] for tensor in resolve(big.model, "embedding").tensors)
    for batch in generated(table_rows, rows, BATCH, seed=seed):
        yield batch
        bar.update()


def _alone(case: Case, alarms: dict[str, tuple[int, int]]) -> pd.DataFrame:
    """Rows of clean rows alone."""
    nothing = dict.fromkeys(("injections", "significant", "significant_detected", "detected"), 0)
    name = case.name if case.name == LARGE else f"{case.name} on {case.data}"
    about = {"model": name, "component": "", "bit": -1} | nothing
    return pd.DataFrame(
        {"mitigation": one} | about | {"false_alarms": count, "clean_rows": rows}
        for one, (count, rows) in alarms.items()
    )
