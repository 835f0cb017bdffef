"""How a trial's cost grows with the rows, with the parameters and with the number of processes."""

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from drsrobust.benchmark.cost_cases import Case
from drsrobust.benchmark.measure import cpu_seconds
from drsrobust.benchmark.trial_cost import TrialCost, campaign_of, one_thread
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, ErrorModel, FixedCount

COLUMNS = (
    *("varied", "model", "target", "error_model", "rate", "rows", "parameters", "workers", "trials"),
    *("ms_per_trial", "wall_ms_per_trial"),
)
POINTS: tuple[tuple[str, ErrorModel], ...] = (
    ("all", BitFlip(1e-6)),
    ("embedding", BitFlip(1e-6)),
    ("embedding", FixedCount(1)),
)
OF_WORKERS = POINTS[:2]


def growth(
    make: Callable[[int, int], Case], rows: Sequence[int], table_rows: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Rows of `COLUMNS`: with the largest tables for all numbers of rows, with the most rows for all sizes of tables.

    Args:
        make: (rows, rows of all tables together) -> case.
        rows: numbers of rows.
        table_rows: sizes.
        seconds: CPU time of the trials of a point.
    """
    found = []
    largest = (max(rows), max(table_rows))
    for size in dict.fromkeys([(n, largest[1]) for n in rows] + [(largest[0], n) for n in table_rows]):
        case = make(*size)
        measuring = TrialCost(Evaluator(case.model, case.split))
        for target, error in POINTS:
            point = measuring.point(error, target, seconds)
            one = {name: point[name] for name in ("trials", "ms_per_trial", "wall_ms_per_trial")}
            one |= _about(case, target, error) | {"workers": 1}
            found += [{"varied": "rows"} | one] if size[1] == largest[1] else []
            found += [{"varied": "parameters"} | one] if size[0] == largest[0] else []
    return found


def workers(case: Case, numbers: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Rows of `COLUMNS`, for several numbers of processes, by the wall clock: as many trials for all as one process does in
    about so many seconds. A pool's time holds its start: processes, imports, model and data.

    Args:
        case: a model with a factory.
        numbers: of processes.
        seconds: of one process.
    """
    found = []
    judge = Evaluator(case.model, case.split, case.factory)
    for target, error in OF_WORKERS:
        with one_thread():
            measured = TrialCost(judge).point(error, target, seconds / 10)
            trials = max(2, int(1e3 * seconds / measured["wall_ms_per_trial"]))
            for number in numbers:
                with tempfile.TemporaryDirectory() as folder:
                    campaign = campaign_of(judge, error, target, trials, 0, folder)
                    start = time.perf_counter()
                    _, cpu = cpu_seconds(lambda c=campaign, n=number: c.run(workers=n, show=False))
                    wall = time.perf_counter() - start
                found.append(
                    {"varied": "workers", "workers": number, "trials": trials}
                    # Of several processes this one only waits: its CPU time says nothing.
                    | {"ms_per_trial": 1e3 * cpu / trials if number == 1 else None}
                    | {"wall_ms_per_trial": 1e3 * wall / trials}
                    | _about(case, target, error)
                )
    return found


def _about(case: Case, target: str, error: ErrorModel) -> dict[str, Any]:
    return {
        "model": case.name,
        "target": target,
        "error_model": str(error),
        "rate": error.rate,
        "rows": len(case.split),
        "parameters": case.parameters,
    }
