"""How a trial's cost grows with the rows, with the parameters and with the number of processes."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from drsrobust.benchmark.cost_cases import Case
from drsrobust.benchmark.trial_cost import TrialCost, campaign_of, one_thread
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, ErrorModel, FixedCount

COLUMNS = (
    *("varied", "model", "target", "error_model", "rate", "rows", "parameters", "workers", "trials"),
    *("ms_per_trial", "wall_ms_per_trial", "start_s"),
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
    """Rows of `COLUMNS`, for several numbers of processes: as many trials for all as one process does in about so many seconds.

    Times are those of the whole campaign: CPU time of all processes, and by the wall clock, which a busy machine disturbs.
    `start_s` is what of the latter passes when each process has one trial: processes, imports, model, data, golden run.

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
            trials = max(2, int(1e3 * seconds / measured["ms_per_trial"]))
            for number in numbers:
                start, _ = _pool(judge, error, target, number, number)
                wall, cpu = _pool(judge, error, target, trials, number)
                found.append(
                    {"varied": "workers", "workers": number, "trials": trials, "start_s": start}
                    | {"ms_per_trial": 1e3 * cpu / trials, "wall_ms_per_trial": 1e3 * wall / trials}
                    | _about(case, target, error)
                )
    return found


def _pool(judge: Evaluator, error: ErrorModel, target: str, trials: int, processes: int) -> tuple[float, float]:
    """Seconds of a campaign by the wall clock, and of CPU time of this process and of those that it started."""
    with tempfile.TemporaryDirectory() as folder:
        campaign = campaign_of(judge, error, target, trials, 0, f"{folder}/store")
        began, start = os.times(), time.perf_counter()
        campaign.run(workers=processes, show=False)
        wall, ended = time.perf_counter() - start, os.times()
    return wall, sum(ended[:4]) - sum(began[:4])


def _about(case: Case, target: str, error: ErrorModel) -> dict[str, Any]:
    return {
        "model": case.name,
        "target": target,
        "error_model": error.label,
        "rate": error.rate,
        "rows": len(case.split),
        "parameters": case.parameters,
    }
