"""CPU time of a trial by model, target and bit error rate, against the published way of running it; how it grows with rows,
parameters and processes; where it goes."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from benchmarks.common import (
    OURS,
    ROWS,
    Case,
    Result,
    Verdict,
    about,
    at_least,
    at_most,
    large_case,
    rate_label,
    small_cases,
    text,
    verdict_text,
)
from benchmarks.op_profile import price_of_checks, price_of_opening, price_of_seeing, profile
from benchmarks.published_loop import LoopTrial, OneFlipLoop, ReloadLoop
from benchmarks.trial_cost import TrialCost, campaign_of
from drsrobust._processes import threads
from drsrobust._progress import progress_bar
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, ErrorModel, FixedCount
from drsrobust_study.mitigations import LARGE, TABLE_ROWS

# The targets of speed.
OVER_SUM = 1.10  # times inject and undo, a forward pass and an AUC, at most
OVER_LATE = 1.25  # the same with a forward pass of the affected modules alone
OVER_FORWARD = {
    "over_mlp": 0.35,
    "all": 0.80,
}  # target -> of a forward pass, a trial of the large model at `LOOP_RATE`, at most
LOOP_SMALL, LOOP_LARGE, LOOP_ONE_ERROR = 100, 150, 2000  # times the loop's trials per second, at least

COLUMNS = (
    *("method", "model", "target", "rate", "ms_per_trial", "forward_ms", "auc_ms", "rows_reached"),
    *("error_model", "rows", "parameters", "trials", "wall_ms_per_trial", "inject_undo_ms", "late_ms", "load_ms"),
    *("sum_ms", "over_sum", "over_late", "over_loop", "first_ms_per_trial", "remark"),
)
GROWTH_COLUMNS = (
    *("varied", "model", "target", "error_model", "rate", "rows", "parameters", "workers", "trials"),
    *("ms_per_trial", "wall_ms_per_trial", "start_s"),
)
PROFILE_COLUMNS = ("model", "target", "error_model", "rate", "part", "ms_per_trial", "share")
CELL = ["model", "target", "error_model", "rate"]
RATES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
LOOP_RATE = 1e-6  # at which the loop is measured: its cost is the same at every rate
GROWN: tuple[tuple[str, ErrorModel], ...] = (
    ("all", BitFlip(1e-6)),
    ("embedding", BitFlip(1e-6)),
    ("embedding", FixedCount(1)),
)
PROFILED: tuple[tuple[str, ErrorModel], ...] = (
    ("embedding", FixedCount(1)),
    ("embedding", BitFlip(1e-6)),
    ("over_mlp", BitFlip(1e-4)),
    ("all", BitFlip(1e-4)),
    ("all", BitFlip(1e-2)),
)
_PRICED = {None: 150, 1e-6: 100, 1e-4: 5, 1e-2: 3}  # rate -> trials a second on which the checks of reruns are timed


def run() -> Result:
    """The benchmark `campaign`."""
    table, growth, parts, remarks = campaign_cost()
    tables = {"campaign": table, "campaign_growth": growth, "campaign_profile": parts}
    return Result(tables, describe(table, growth, parts, remarks))


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
    opened: int = 1000,
    progress: bool = True,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, list[str]]:
    """Measures on one thread of this process; CPU time unless a column says otherwise.

    Args:
        cases: calls that make models with their rows, one call at a time in memory; None: DeepFM and DLRM on MovieLens-1M, and
            the DLRM of 26 tables.
        rates: bit error rates; one error per trial is measured too.
        targets: None: all of each case.
        seconds: CPU time of the trials of a point; at least 15 are run.
        loop_trials: of the loop, for each model and target.
        growth_rows, growth_table_rows: rows, and rows of all tables, of the growth table; empty: no growth is measured.
        workers, workers_seconds: numbers of processes there, and the time of one process.
        make: (rows, rows of all tables) -> the case whose growth is measured.
        opened: conditions of the finished campaign of the first model that is opened.
        progress: shows a progress bar.

    Returns:
        the table (`COLUMNS`), growth (`GROWTH_COLUMNS`), parts (`PROFILE_COLUMNS`), and remarks. `rate` is null for one error
        per trial. Columns of `drsrobust` are those of `TrialCost.point`; of the loops `inject_undo_ms` is the dense map and
        `forward_ms` data and forward. `sum_ms` is the sum of the parts, `over_loop` the number of trials of `drsrobust` in the
        time of one trial of the reload loop.
    """
    cases = (small_cases, lambda: [large_case()]) if cases is None else cases
    errors: list[ErrorModel] = [FixedCount(1), *(BitFlip(rate) for rate in rates)]
    rows, parts, remarks = [], [], [about("CPU time on one thread (growth with processes: wall clock too)")]
    with progress_bar(0, "campaign cost", progress=progress) as bar:
        for made in cases:
            for case in made():
                chosen = [target for target in case.targets if targets is None or target in targets]
                bar.total += len(chosen) * (len(errors) + 1)
                bar.set_postfix_str(case.name)
                remarks += [f"{case.name}: {case.remark}"] if case.remark else []
                evaluator, made, probed = price_of_seeing(case)
                remarks.append(f"{case.name}: an Evaluator takes {made:.1f} golden runs, its probes {probed:.1f}, once")
                if not rows:
                    opening, repeats = price_of_opening(evaluator, opened)
                    remarks.append(
                        f"{case.name}: a finished campaign of {opened:,} conditions opens in {opening:.2f} s of CPU, and "
                        f"repeats trials in {repeats:.2f} s"
                    )
                rows += _case(case, evaluator, chosen, errors, seconds, loop_trials, bar.update)
                parts += _profiles(case, evaluator, chosen, seconds)
                for target, error in PROFILED:
                    if target in chosen:
                        price = price_of_checks(evaluator, error, target, max(5, round(_PRICED[error.rate] * seconds)))
                        point = f"{target}, {rate_label(_rate(error))}"
                        remarks.append(f"{case.name}: checks for coupled rows, {point}: {price - 1:+.1%} of a rerun")
    grown = []
    if growth_rows and growth_table_rows:
        grown += measured_growth(make, growth_rows, growth_table_rows, seconds)
        if workers:
            grown += measured_workers(make(max(growth_rows), max(growth_table_rows)), workers, workers_seconds)
    return (
        with_ratios(pd.DataFrame(rows)),
        pd.DataFrame(grown, columns=list(GROWTH_COLUMNS)),
        pd.DataFrame(parts, columns=list(PROFILE_COLUMNS)),
        remarks,
    )


def with_ratios(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `sum_ms` and `over_loop` from its measured columns; columns in order."""
    table = table.reindex(columns=list(COLUMNS))
    ours = table["method"] == OURS
    table["sum_ms"] = table[["inject_undo_ms", "forward_ms", "auc_ms", "load_ms"]].sum(axis=1)
    loop = table[table["method"] == ReloadLoop.name][[*CELL, "ms_per_trial"]]
    loop_ms = table[CELL].merge(loop, on=CELL, how="left")["ms_per_trial"].set_axis(table.index)
    table["over_loop"] = (loop_ms / table["ms_per_trial"]).where(ours)
    return table


def _case(
    case: Case,
    evaluator: Evaluator,
    targets: Sequence[str],
    errors: Sequence[ErrorModel],
    seconds: float,
    loop_trials: int,
    tick: Callable[[], Any],
) -> list[dict[str, Any]]:
    """All rows of one model. Trials of the loop are run between the points of ours, so that both see the same machine."""
    base = {"model": case.name, "rows": len(case.rows), "parameters": case.parameters}
    measuring, rows = TrialCost(evaluator, case.late), []
    with tempfile.TemporaryDirectory() as folder, threads(1):
        for target in targets:
            loops = {kind: kind(case.model, case.rows, target, folder) for kind in (ReloadLoop, OneFlipLoop)}
            found: dict[type[ReloadLoop], list[LoopTrial]] = {kind: [] for kind in loops}
            turns = [round(turn * (len(errors) - 1) / max(1, loop_trials - 1)) for turn in range(loop_trials)]
            for place, error in enumerate(errors):
                for turn in (turn for turn, when in enumerate(turns) if when == place):
                    for kind, loop in loops.items():
                        found[kind].append(loop.trial(LOOP_RATE, turn))
                point = measuring.point(error, target, seconds)
                rows.append(_row(OURS, base, target, error, point | {"remark": case.remark}))
                tick()
            del loops
            measured = {kind: _loop_point(trials, len(case.rows)) for kind, trials in found.items()}
            for error in errors:
                same = (
                    ""
                    if error.rate == LOOP_RATE
                    else f"measured at rate {LOOP_RATE:g}: the cost is the same at each rate"
                )
                rows.append(_row(ReloadLoop.name, base, target, error, measured[ReloadLoop] | {"remark": same}))
                if error.rate is None:
                    note = "one flipped bit instead of a map: cheaper than the published tool"
                    rows.append(_row(OneFlipLoop.name, base, target, error, measured[OneFlipLoop] | {"remark": note}))
            tick()
    return rows


def _row(method: str, base: dict[str, Any], target: str, error: ErrorModel, point: dict[str, Any]) -> dict[str, Any]:
    return {"method": method, **base, "target": target, "error_model": error.label, "rate": _rate(error)} | point


def _rate(error: ErrorModel) -> float:
    return float("nan") if error.rate is None else error.rate


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


def _profiles(case: Case, evaluator: Evaluator, targets: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    rows = []
    for target, error in PROFILED:
        if target not in targets:
            continue
        trials = max(5, min(1000, round(200 * seconds))) if error.rate in (None, LOOP_RATE) else 5
        cell = {"model": case.name, "target": target, "error_model": error.label, "rate": error.rate}
        rows += [cell | part for part in profile(evaluator, error, target, trials)]
    return rows


def measured_growth(
    make: Callable[[int, int], Case], rows: Sequence[int], table_rows: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Rows of `GROWTH_COLUMNS`: all numbers of rows with the largest tables, all sizes of tables with the most rows."""
    found = []
    largest = (max(rows), max(table_rows))
    for size in dict.fromkeys([(n, largest[1]) for n in rows] + [(largest[0], n) for n in table_rows]):
        case = make(*size)
        costs = TrialCost(Evaluator(case.model, case.rows))
        for target, error in GROWN:
            point = costs.point(error, target, seconds)
            one = {name: point[name] for name in ("trials", "ms_per_trial", "wall_ms_per_trial")}
            one |= _cell(case, target, error) | {"workers": 1}
            found += [{"varied": "rows"} | one] if size[1] == largest[1] else []
            found += [{"varied": "parameters"} | one] if size[0] == largest[0] else []
    return found


def measured_workers(case: Case, numbers: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Rows of `GROWTH_COLUMNS` for several numbers of processes, with the trials that one process does in so many seconds.

    CPU time of all processes, and wall time, of whole campaigns. `start_s` is the wall time of one trial per process:
    processes, imports, model, data, golden run.
    """
    found = []
    evaluator = Evaluator(case.model, case.rows, factory=case.factory)
    for target, error in GROWN[:2]:
        with threads(1):
            measured = TrialCost(evaluator).point(error, target, seconds / 10)
            trials = max(2, int(1e3 * seconds / measured["ms_per_trial"]))
            for number in numbers:
                start, _ = _pool(evaluator, error, target, number, number)
                wall, cpu = _pool(evaluator, error, target, trials, number)
                found.append(
                    {"varied": "workers", "workers": number, "trials": trials, "start_s": start}
                    | {"ms_per_trial": 1e3 * cpu / trials, "wall_ms_per_trial": 1e3 * wall / trials}
                    | _cell(case, target, error)
                )
    return found


def _pool(evaluator: Evaluator, error: ErrorModel, target: str, trials: int, processes: int) -> tuple[float, float]:
    """Seconds of a campaign by the wall clock, and of CPU time of this process and of those that it started."""
    with tempfile.TemporaryDirectory() as folder:
        campaign = campaign_of(evaluator, error, target, trials, 0, f"{folder}/store")
        began, start = os.times(), time.perf_counter()
        campaign.run(workers=processes, progress=False)
        wall, ended = time.perf_counter() - start, os.times()
    return wall, sum(ended[:4]) - sum(began[:4])


def _cell(case: Case, target: str, error: ErrorModel) -> dict[str, Any]:
    return {
        "model": case.name,
        "target": target,
        "error_model": error.label,
        "rate": error.rate,
        "rows": len(case.rows),
        "parameters": case.parameters,
    }


def verdicts(table: pd.DataFrame) -> Iterator[Verdict]:
    """The verdict on each target of speed, by its worst point.

    Args:
        table: as `campaign_cost` returns it.
    """
    ours = table[table["method"] == OURS]
    embedding = ours[ours["target"] == "embedding"]
    large, small = embedding[embedding["model"] == LARGE], embedding[embedding["model"] != LARGE]
    for model, points in ours.groupby("model", sort=False):
        yield from _worst(f"{model}: over the sum of its parts", points, "over_sum", OVER_SUM)
        yield from _worst(f"{model}: late layers alone, over theirs", points, "over_late", OVER_LATE)
    for model, points in small[small["rate"] <= LOOP_RATE * 1.001].groupby("model", sort=False):
        yield from _worst(f"{model}: embedding up to {LOOP_RATE:g}, over the loop", points, "over_loop", LOOP_SMALL)
    at_rate = large[(large["rate"] / LOOP_RATE - 1).abs() < 1e-3]
    yield from _worst(f"{LARGE}: embedding at {LOOP_RATE:g}, over the loop", at_rate, "over_loop", LOOP_LARGE)
    of_large = ours[(ours["model"] == LARGE) & ((ours["rate"] / LOOP_RATE - 1).abs() < 1e-3)]
    of_large = of_large.assign(over_forward=of_large["ms_per_trial"] / of_large["forward_ms"])
    for target, limit in OVER_FORWARD.items():
        points = of_large[of_large["target"] == target]
        yield from _worst(f"{LARGE}: {target} at {LOOP_RATE:g}, over a forward pass", points, "over_forward", limit)
    single = large[large["rate"].isna()]
    yield from _worst(f"{LARGE}: one error in embedding, over the loop", single, "over_loop", LOOP_ONE_ERROR)


def _worst(name: str, points: pd.DataFrame, column: str, limit: float) -> Iterator[Verdict]:
    """The verdict on the worst point, if the column was measured at any."""
    values = points[column].dropna().astype(float)
    if len(values):
        lower = column == "over_loop"
        worst = points.loc[values.idxmin() if lower else values.idxmax()]
        note = f"{worst['target']}, {rate_label(worst['rate'])}"
        yield (at_least if lower else at_most)(name, float(worst[column]), limit, note=note)


def one_flip(table: pd.DataFrame) -> pd.DataFrame:
    """Trials of `drsrobust` in the time of one trial of the loop that flips one bit and draws no map, by `model`, `target`."""
    single = table[table["rate"].isna()].pivot_table(
        index=["model", "target"], columns="method", values="ms_per_trial", sort=False
    )
    return single.assign(ratio=single[OneFlipLoop.name] / single[OURS])


def describe(table: pd.DataFrame, growth: pd.DataFrame, parts: pd.DataFrame, remarks: list[str]) -> str:
    """All of it as text."""
    ours, sections = table[table["method"] == OURS], ["\n".join(remarks)]
    for title, column in (
        ("CPU time of a trial (ms)", "ms_per_trial"),
        ("Over the sum of inject and undo, one forward pass and one AUC", "over_sum"),
        ("Over the same with the forward pass of the late layers alone", "over_late"),
        (f"Times the trials per second of the {ReloadLoop.name}", "over_loop"),
        ("Rows reached, mean", "rows_reached"),
    ):
        points = ours.assign(rate=ours["rate"].map(rate_label)).dropna(subset=[column])
        if len(points):
            wide = points.pivot_table(index=["model", "target"], columns="rate", values=column, sort=False)
            sections.append(f"{title}\n{text(wide)}")
    key = ["method", "model", "target"]
    loops = table[table["method"] != OURS].drop_duplicates(key).set_index(key)
    loops = loops[["ms_per_trial", "load_ms", "inject_undo_ms", "forward_ms", "auc_ms", "trials"]]
    sections.append(f"The loop, CPU time of a trial and its parts (ms)\n{text(loops)}")
    sections.append(f"One error, against a loop that flips one bit and draws no map\n{text(one_flip(table))}")
    if len(growth):
        by_size = growth.drop(columns=["model"]).set_index(["varied", "target", "error_model", "rate"])
        sections.append(f"Growth\n{text(by_size)}")
    if len(parts):
        parts = parts.assign(rate=parts["rate"].astype(float).map(rate_label))
        wide = parts.pivot_table(index=CELL, columns="part", values="share", sort=False)
        total = parts.groupby(CELL, sort=False)["ms_per_trial"].sum()
        wide = wide.map("{:.0%}".format).assign(ms_per_trial=total.map("{:,.3g}".format))
        sections.append(f"Where the time goes\n{wide.to_string()}")
    return "\n\n".join([*sections, verdict_text(verdicts(table))])
