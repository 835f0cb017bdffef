"""What a trial of a campaign costs, against the published way of running it: by model, target and bit error rate."""

import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from drsrobust._processes import cores
from drsrobust._progress import progress
from drsrobust._versions import machine, versions
from drsrobust.benchmark import cost_growth
from drsrobust.benchmark.cost_cases import ROWS, Case, large_case, small_cases
from drsrobust.benchmark.cost_profile import price_of_checks, profile
from drsrobust.benchmark.large_tables import TABLE_ROWS
from drsrobust.benchmark.reload_loop import LoopTrial, OneFlipLoop, ReloadLoop
from drsrobust.benchmark.trial_cost import TrialCost, one_thread
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, ErrorModel, FixedCount

if TYPE_CHECKING:
    import pandas as pd

OURS = "drsrobust"
COLUMNS = (
    *("method", "model", "target", "rate", "ms_per_trial", "forward_ms", "auc_ms", "rows_reached"),
    *("error_model", "rows", "parameters", "trials", "wall_ms_per_trial", "inject_undo_ms", "late_ms", "load_ms"),
    *("sum_ms", "over_sum", "over_late", "over_loop", "first_ms_per_trial", "remark"),
)
PROFILE_COLUMNS = ("model", "target", "error_model", "rate", "part", "ms_per_trial", "share")
RATES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
LOOP_RATE = 1e-6  # at which the loop is measured: what it does is the same at every rate
PROFILED: tuple[tuple[str, ErrorModel], ...] = (
    ("embedding", FixedCount(1)),
    ("embedding", BitFlip(1e-6)),
    ("over_mlp", BitFlip(1e-4)),
    ("all", BitFlip(1e-4)),
    ("all", BitFlip(1e-2)),
)
_PRICED = {None: 150, 1e-6: 100, 1e-4: 5, 1e-2: 3}  # rate -> trials a second of which checks are priced


def campaign_cost(
    cases: Sequence[Callable[[], Sequence[Case]]] | None = None,
    rates: Sequence[float] = RATES,
    targets: Sequence[str] | None = None,
    *,
    seconds: float = 3.0,
    loop_trials: int = 3,
    growth_rows: Sequence[int] = (12_500, 25_000, 50_000, ROWS),
    growth_table_rows: Sequence[int] = (TABLE_ROWS // 16, TABLE_ROWS // 4, TABLE_ROWS),
    workers: Sequence[int] = (1, 2),
    workers_seconds: float = 60.0,
    make: Callable[[int, int], Case] = large_case,
    show: bool = True,
) -> tuple["pd.DataFrame", "pd.DataFrame", "pd.DataFrame", list[str]]:
    """The benchmark `campaign`. Everything is timed on one thread of this process, CPU time where nothing else is said.

    Args:
        cases: each makes models with their rows when it is called, so that one need not lie in memory beside another; None:
            DeepFM and DLRM on MovieLens-1M, and the DLRM of 26 tables.
        rates: bit error rates; one error in each trial is measured too.
        targets: None: those of each case.
        seconds: CPU time of the trials of a point; at least 15 are run.
        loop_trials: of the loop, for each model and target.
        growth_rows, growth_table_rows: numbers of rows, and of rows of all tables, of the growth table; none of either: none.
        workers: numbers of processes there.
        workers_seconds: of one process there.
        make: (rows, rows of all tables) -> the case of which growth is measured.
        show: a progress bar.

    Returns:
        the table (`COLUMNS`), how costs grow (`cost_growth.COLUMNS`), where the time goes (`PROFILE_COLUMNS`), and remarks.

        In the table `rate` is null for one error in each trial. Of `drsrobust`, columns are as `TrialCost.point` gives them;
        of the loops `inject_undo_ms` is the dense map, `forward_ms` data and forward, and `wall_ms_per_trial` and `late_ms` are
        null. `sum_ms` is what the parts take together, `over_loop` how many trials drsrobust runs in the time of one of the
        reload loop.
    """
    import pandas as pd

    cases = (small_cases, lambda: [large_case()]) if cases is None else cases
    errors: list[ErrorModel] = [FixedCount(1), *(BitFlip(rate) for rate in rates)]
    rows, parts, remarks = [], [], [_about()]
    with progress(0, "campaign cost", show=show) as bar:
        for made in cases:
            for case in made():
                chosen = [target for target in case.targets if targets is None or target in targets]
                bar.total += len(chosen) * (len(errors) + 1)
                bar.set_postfix_str(case.name)
                remarks += [f"{case.name}: {case.remark}"] if case.remark else []
                judge = Evaluator(case.model, case.split)
                rows += _case(case, judge, chosen, errors, seconds, loop_trials, bar.update)
                parts += _profiles(case, judge, chosen, seconds)
                for target, error in PROFILED:
                    if target in chosen:
                        price = price_of_checks(judge, error, target, max(5, round(_PRICED[error.rate] * seconds)))
                        what = "one error" if error.rate is None else f"rate {error.rate:g}"
                        remarks.append(
                            f"{case.name}: checks for coupled rows, {target}, {what}: {price - 1:+.1%} of a rerun"
                        )
    grown = []
    if growth_rows and growth_table_rows:
        grown += cost_growth.growth(make, growth_rows, growth_table_rows, seconds)
        if workers:
            grown += cost_growth.workers(make(max(growth_rows), max(growth_table_rows)), workers, workers_seconds)
    return (
        with_ratios(pd.DataFrame(rows)),
        pd.DataFrame(grown, columns=list(cost_growth.COLUMNS)),
        pd.DataFrame(parts, columns=list(PROFILE_COLUMNS)),
        remarks,
    )


def with_ratios(table: "pd.DataFrame") -> "pd.DataFrame":
    """The table with `sum_ms` and `over_loop`, both from its measured columns; columns in order."""
    table = table.reindex(columns=list(COLUMNS))
    ours = table["method"] == OURS
    table["sum_ms"] = table[["inject_undo_ms", "forward_ms", "auc_ms", "load_ms"]].sum(axis=1)
    cell = ["model", "target", "error_model", "rate"]
    loop = table[table["method"] == ReloadLoop.name][[*cell, "ms_per_trial"]]
    beside = table[cell].merge(loop, on=cell, how="left")["ms_per_trial"].set_axis(table.index)
    table["over_loop"] = (beside / table["ms_per_trial"]).where(ours)
    return table


def _case(
    case: Case,
    judge: Evaluator,
    targets: Sequence[str],
    errors: Sequence[ErrorModel],
    seconds: float,
    loop_trials: int,
    tick: Callable[[], Any],
) -> list[dict[str, Any]]:
    """All rows of one model. Trials of the loop are run between the points of ours, so that both see the same machine."""
    about = {"model": case.name, "rows": len(case.split), "parameters": case.parameters}
    measuring, rows = TrialCost(judge, case.late), []
    with tempfile.TemporaryDirectory() as folder, one_thread():
        for target in targets:
            loops = {kind: kind(case.model, case.split, target, folder) for kind in (ReloadLoop, OneFlipLoop)}
            found: dict[type[ReloadLoop], list[LoopTrial]] = {kind: [] for kind in loops}
            turns = [round(turn * (len(errors) - 1) / max(1, loop_trials - 1)) for turn in range(loop_trials)]
            for place, error in enumerate(errors):
                for turn in (turn for turn, when in enumerate(turns) if when == place):
                    for kind, loop in loops.items():
                        found[kind].append(loop.trial(LOOP_RATE, turn))
                point = measuring.point(error, target, seconds)
                rows.append(_row(OURS, about, target, error, point | {"remark": case.remark}))
                tick()
            del loops
            measured = {kind: _loop_point(trials, len(case.split)) for kind, trials in found.items()}
            for error in errors:
                note = _same(error)
                rows.append(_row(ReloadLoop.name, about, target, error, measured[ReloadLoop] | {"remark": note}))
                if error.rate is None:
                    note = "reload, one flipped bit instead of a map, every row: kinder than the published tool"
                    rows.append(_row(OneFlipLoop.name, about, target, error, measured[OneFlipLoop] | {"remark": note}))
            tick()
    return rows


def _row(method: str, about: dict[str, Any], target: str, error: ErrorModel, point: dict[str, Any]) -> dict[str, Any]:
    rate = float("nan") if error.rate is None else error.rate
    return {"method": method, **about, "target": target, "error_model": error.label, "rate": rate} | point


def _loop_point(trials: Sequence[LoopTrial], rows: int) -> dict[str, Any]:
    """Means over trials."""

    def mean(part: str) -> float:
        return sum(getattr(trial, part) for trial in trials) / len(trials)

    return {
        "ms_per_trial": mean("total_ms"),
        "load_ms": mean("load_ms"),
        "inject_undo_ms": mean("inject_ms"),
        "forward_ms": mean("scoring_ms"),
        "auc_ms": mean("auc_ms"),
        "rows_reached": rows,
        "trials": len(trials),
    }


def _same(error: ErrorModel) -> str:
    """The remark on a row of the loop, which is measured at one rate."""
    if error.rate is None:
        return (
            f"measured at rate {LOOP_RATE:g}: the published tool knows rates only, and its map costs the same at each"
        )
    return "" if error.rate == LOOP_RATE else f"measured at rate {LOOP_RATE:g}: what it does is the same at each"


def _profiles(case: Case, judge: Evaluator, targets: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    found = []
    for target, error in PROFILED:
        if target not in targets:
            continue
        trials = max(5, min(1000, round(200 * seconds))) if error.rate in (None, LOOP_RATE) else 5
        about = {"model": case.name, "target": target, "error_model": error.label, "rate": error.rate}
        found += [about | part for part in profile(judge, error, target, trials)]
    return found


def _about() -> str:
    where = machine()
    return (
        f"{cores()} cores {where['architecture']}, torch {versions()['torch']}; CPU time on one thread (growth with "
        "processes: the wall clock too)"
    )
