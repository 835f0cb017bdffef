"""How a trial's cost grows with the rows, with the parameters and with the number of processes.

What is read from the benchmark `campaign`: whether a trial costs what it should, and where the time goes.

What a trial of a campaign costs, against the published way of running it: by model, target and bit error rate."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import campaign as cost_growth
from benchmarks.op_profile import price_of_checks, profile
from benchmarks.published_loop import LoopTrial, OneFlipLoop, ReloadLoop
from benchmarks.trial_cost import ROWS, Case, TrialCost, campaign_of, large_case, small_cases
from drsrobust._environment import cores, machine, progress_bar, versions
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, ErrorModel, FixedCount
from drsrobust.study.mitigations import TABLE_ROWS
from drsrobust.timing import one_thread

if TYPE_CHECKING:
    import pandas as pd

GROWTH_COLUMNS = (
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
            one |= _growth_about(case, target, error) | {"workers": 1}
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
    evaluator = Evaluator(case.model, case.split, case.factory)
    for target, error in OF_WORKERS:
        with one_thread():
            measured = TrialCost(evaluator).point(error, target, seconds / 10)
            trials = max(2, int(1e3 * seconds / measured["ms_per_trial"]))
            for number in numbers:
                start, _ = _pool(evaluator, error, target, number, number)
                wall, cpu = _pool(evaluator, error, target, trials, number)
                found.append(
                    {"varied": "workers", "workers": number, "trials": trials, "start_s": start}
                    | {"ms_per_trial": 1e3 * cpu / trials, "wall_ms_per_trial": 1e3 * wall / trials}
                    | _growth_about(case, target, error)
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


def _growth_about(case: Case, target: str, error: ErrorModel) -> dict[str, Any]:
    return {
        "model": case.name,
        "target": target,
        "error_model": error.label,
        "rate": error.rate,
        "rows": len(case.split),
        "parameters": case.parameters,
    }


OVER_SUM = 1.10  # times inject and undo, a forward pass and an AUC, at most
OVER_LATE = 1.25  # the same with the forward pass of the affected modules alone
SMALL, LARGE, ONE = 100, 150, 2000  # times the loop's trials per second, at least
LARGE_MODEL = "dlrm, 26 tables"


def verdicts(table: "pd.DataFrame") -> "pd.DataFrame":
    """By what is asked for: `asked` (with its direction), `worst` (of all points it is asked of), `where` that is, and `met`.

    Args:
        table: as `campaign_cost` gives it.
    """
    import pandas as pd

    ours = table[table["method"] == OURS]
    rate = ours["rate"]
    embedding, large = ours["target"] == "embedding", ours["model"] == LARGE_MODEL
    single = rate.isna()
    rows = []
    for model in ours["model"].unique():
        here = ours[ours["model"] == model]
        rows.append(_at_most(f"{model}: over the sum of its parts", here, "over_sum", OVER_SUM))
        late = here[here["late_ms"].notna()]
        rows.append(_at_most(f"{model}: late layers alone, over theirs", late, "over_late", OVER_LATE))
    up_to = ours[embedding & ~large & (rate <= LOOP_RATE * 1.001)]
    rows += [
        _at_least(f"{model}: embedding up to {LOOP_RATE:g}, over the loop", up_to[up_to["model"] == model], SMALL)
        for model in up_to["model"].unique()
    ]
    at = ours[embedding & large & (rate / LOOP_RATE - 1).abs().lt(1e-3)]
    rows.append(_at_least(f"{LARGE_MODEL}: embedding at {LOOP_RATE:g}, over the loop", at, LARGE))
    rows.append(
        _at_least(f"{LARGE_MODEL}: one error in embedding, over the loop", ours[embedding & large & single], ONE)
    )
    columns = ["what", "asked", "worst", "where", "met"]
    return pd.DataFrame([row for row in rows if row], columns=columns).set_index("what")


def _at_most(what: str, here: "pd.DataFrame", column: str, bound: float) -> tuple | None:
    if here.empty:
        return None
    worst = here.loc[here[column].idxmax()]
    return what, f"<= {bound:g}", worst[column], _place(worst), bool(worst[column] <= bound)


def _at_least(what: str, here: "pd.DataFrame", bound: float) -> tuple | None:
    if here.empty:
        return None
    worst = here.loc[here["over_loop"].idxmin()]
    return what, f">= {bound:,}", worst["over_loop"], _place(worst), bool(worst["over_loop"] >= bound)


def _place(row: "pd.Series") -> str:
    return f"{row['target']}, {'1 error' if row['rate'] != row['rate'] else format(row['rate'], 'g')}"


def one_flip(table: "pd.DataFrame") -> "pd.DataFrame":
    """Trials of ours in the time of one of the loop that flips one bit and draws no map, by `model` and `target`."""
    single = table[table["rate"].isna()].pivot_table(
        index=["model", "target"], columns="method", values="ms_per_trial", sort=False
    )
    return single.assign(ratio=single[OneFlipLoop.name] / single[OURS])


def describe(table: "pd.DataFrame", growth: "pd.DataFrame", parts: "pd.DataFrame", remarks: list[str]) -> str:
    """All of it as text."""
    ours = table[table["method"] == OURS]
    text = ["\n".join(remarks)]
    for title, column in (
        ("CPU time of a trial (ms)", "ms_per_trial"),
        ("Over the sum of inject and undo, one forward pass and one AUC", "over_sum"),
        ("Over the same with the forward of the reached layers alone", "over_late"),
        (f"Times the trials per second of the {ReloadLoop.name}", "over_loop"),
        ("Rows reached, mean", "rows_reached"),
    ):
        wide = _by_rate(ours, column)
        text.append(f"{title}\n{_text(wide)}") if len(wide) else None
    loops = (
        table[table["method"] != OURS]
        .drop_duplicates(["method", "model", "target"])
        .set_index(["method", "model", "target"])
    )
    loops = loops[["ms_per_trial", "load_ms", "inject_undo_ms", "forward_ms", "auc_ms", "trials"]]
    text.append(f"The loop, CPU time of a trial and its parts (ms)\n{_text(loops)}")
    text.append(f"One error, against a loop that flips one bit and draws no map\n{_text(one_flip(table))}")
    if len(growth):
        text.append(
            f"Growth\n{_text(growth.drop(columns=['model']).set_index(['varied', 'target', 'error_model', 'rate']))}"
        )
    if len(parts):
        cell = ["model", "target", "error_model", "rate"]
        wide = parts.fillna({"rate": -1.0}).pivot_table(index=cell, columns="part", values="share", sort=False)
        total = parts.fillna({"rate": -1.0}).groupby(cell, sort=False)["ms_per_trial"].sum()
        wide = wide.map("{:.0%}".format).assign(ms_per_trial=total.map("{:,.3g}".format))
        text.append(f"Where the time goes\n{wide.rename(index={-1.0: ''}).to_string()}")
    found = verdicts(table)
    found = found.assign(met=found["met"].map({True: "yes", False: "NO"}))
    text.append(f"Asked and measured (the worst of all points)\n{_text(found)}")
    return "\n\n".join(text)


def _by_rate(ours: "pd.DataFrame", column: str) -> "pd.DataFrame":
    labels = ours["rate"].map(lambda rate: "1 error" if rate != rate else f"{rate:g}")
    ours = ours.assign(rate=labels).dropna(subset=[column])
    return ours.pivot_table(index=["model", "target"], columns="rate", values=column, sort=False)


def _text(frame: "pd.DataFrame") -> str:
    return frame.to_string(float_format=lambda value: f"{value:,.3g}" if value < 1e3 else f"{value:,.0f}", na_rep="-")


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
    progress: bool = True,
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
        progress: a progress bar.

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
    with progress_bar(0, "campaign cost", progress=progress) as bar:
        for made in cases:
            for case in made():
                chosen = [target for target in case.targets if targets is None or target in targets]
                bar.total += len(chosen) * (len(errors) + 1)
                bar.set_postfix_str(case.name)
                remarks += [f"{case.name}: {case.remark}"] if case.remark else []
                evaluator = Evaluator(case.model, case.split)
                rows += _case(case, evaluator, chosen, errors, seconds, loop_trials, bar.update)
                parts += _profiles(case, evaluator, chosen, seconds)
                for target, error in PROFILED:
                    if target in chosen:
                        price = price_of_checks(evaluator, error, target, max(5, round(_PRICED[error.rate] * seconds)))
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
    evaluator: Evaluator,
    targets: Sequence[str],
    errors: Sequence[ErrorModel],
    seconds: float,
    loop_trials: int,
    tick: Callable[[], Any],
) -> list[dict[str, Any]]:
    """All rows of one model. Trials of the loop are run between the points of ours, so that both see the same machine."""
    about = {"model": case.name, "rows": len(case.split), "parameters": case.parameters}
    measuring, rows = TrialCost(evaluator, case.late), []
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


def _profiles(case: Case, evaluator: Evaluator, targets: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    found = []
    for target, error in PROFILED:
        if target not in targets:
            continue
        trials = max(5, min(1000, round(200 * seconds))) if error.rate in (None, LOOP_RATE) else 5
        about = {"model": case.name, "target": target, "error_model": error.label, "rate": error.rate}
        found += [about | part for part in profile(evaluator, error, target, trials)]
    return found


def _about() -> str:
    where = machine()
    return (
        f"{cores()} cores {where['architecture']}, torch {versions()['torch']}; CPU time on one thread (growth with "
        "processes: the wall clock too)"
    )
