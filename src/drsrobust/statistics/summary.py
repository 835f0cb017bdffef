"""From one row per trial to one row per condition, every number with its interval."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust._arguments import check_instance, check_items, check_names
from drsrobust._choices import unknown
from drsrobust.statistics.columns import (
    CONDITION,
    DECISIONS,
    ENDS,
    OVER_ROWS,
    STRUCTURED,
    check_table,
    identifying,
    with_nan_rules,
)
from drsrobust.statistics.intervals import CONFIDENCE, UNIT
from drsrobust.statistics.strata import DROP, UNKNOWN, WEIGHT, Strata, check_trials

if TYPE_CHECKING:
    import pandas as pd

OUTCOMES = ("ok", "nonfinite", "raised")
INTERVAL = (
    f"{CONFIDENCE:.0%} interval of the mean, over error maps (Student's t, with Hall's correction of skewness; Stringer's "
    "bound where few trials are harmed; where all trials agree, what they may have missed), and over rows where column `over` "
    "says so (DeLong's variance, added in squares)"
)
EXACT = "exact"
MAPS, MAPS_AND_ROWS = "maps", "maps and rows"  # what an interval is over
# Least and greatest possible value of each metric; of `auc_drop` they depend on the AUC without errors.
BOUNDS = dict.fromkeys(
    ("auc", "detected", "repaired", "ndcg", "hit_rate", "recall", "overlap", "list_changed", "users_harmed"), UNIT
)
BOUNDS |= dict.fromkeys((*DECISIONS, "score_changed", "deviated_0.01", "deviated_0.1"), UNIT)
BOUNDS |= {"spearman": (-1.0, 1.0)}
BOUNDS |= dict.fromkeys(("logloss", "ne", "calibration", "median_change"), (0.0, float("inf")))


def known_bounds(name: str) -> tuple[float, float] | None:
    """Least and greatest possible value of a built-in metric; None if they are unknown, as of `auc_drop` and of own metrics.

    Args:
        name: with or without the length of a list and a task.

    Example:
        >>> known_bounds("ndcg@10/buy"), known_bounds("logloss"), known_bounds("mine")
        ((0.0, 1.0), (0.0, inf), None)
    """
    return BOUNDS.get(name.partition("/")[0].partition("@")[0])


def summarise(
    table: "pd.DataFrame",
    metrics: Sequence[str] = ("auc", "auc_drop", "logloss", "ne"),
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> "pd.DataFrame":
    """One row per condition, in the table's order.

    Args:
        table: of one or more campaigns, one row per trial; stratified ones are weighted by their column `weight`.
        metrics: columns to average over trials; also further ones, as `ndcg@10`, or own ones. One without values gives NaN.
            A decision metric comes with the other rules for NaN and the share of NaN rows (`columns.DECISIONS`), as far as the
            table has them.
        bounds: least and greatest possible value of own metrics, as {"mine": (0, 1)}. Of an own metric without bounds the
            interval is Student's t, which may leave the range of the metric; it is blank where all trials agree, where few were
            harmed, and where values are missing.

    Returns:
        the condition's columns, `mitigation_id`, `auc_golden`, `n` (trials), the structured
        columns, `interval` (the method of the intervals, as `Student's t` or `Stringer's bound`, several of strata; with the
        metrics in brackets where they differ), `over` (what they hold for: `maps`, other error maps on these rows; `maps and
        rows`, other rows too; by metric likewise) and `confidence`, `few_harmful` (so few trials were harmed that rare
        larger losses may be missing among them: intervals are Stringer's then, and blank for metrics without two bounds. Harm
        is a loss of AUC; for metrics in `bounds` it is a distance from their median too. Where there is no AUC, as of rankings,
        it is the latter for all metrics), `share_<outcome>`, `nan_rows` and `inf_rows` (mean per trial); of each metric its
        mean over the trials that have it, `_low` and `_high` (see `Strata.mean_interval`; of `auc` and `auc_drop` the worse end
        counts a trial whose model raised as an AUC of 0; the ends of metrics in `bounds` count missing values as the
        bound), its two parts `_maps_low`, `_maps_high` (over error maps alone) and `_rows` (standard error over rows; NaN:
        unknown, as of other metrics than `auc` and `auc_drop`, of rankings, streams and tables of version 0.8, and where no
        trial changed the order of any rows), and the quantiles `_q10`, `_q90`; `auc_drop_bound`, if `auc_drop` is among them,
        an upper bound of its mean over error maps that assumes nothing of the losses that were not seen (95 %, raised trials
        lose all); `realised`, the rate that was drawn (events over sites of all trials), with the central 99.9 % range
        `realised_low`, `realised_high` of Binomial(sites, rate) if the error model has a rate; `trials_harmed`, the share of
        trials that lost over 0.001 AUC or raised, with `_low` and `_high` (95 %, Wilson; NaN where there is no AUC). `attrs`
        describe the intervals.

    Raises:
        ValueError: a trial that the table holds twice; a metric that the table does not have, or with a value outside its
            bounds, or whose columns the summary has already; bounds of a column that the table does not have or of a built-in
            metric, or that are no range; or trials of several trained models or sets of rows in one condition.
    """
    import pandas as pd

    check_table(table, (*CONDITION, "auc_golden", "outcome"))
    metrics = check_names("metrics", metrics)
    for metric in metrics:
        if metric not in table:
            raise unknown("metric", metric, table.columns)
    metrics = [name for name in with_nan_rules(metrics) if name in table]
    bounds = _checked_bounds({} if bounds is None else bounds, table)
    check_trials(table)
    rows = []
    columns = identifying(table, CONDITION)
    for condition, group in table.groupby(columns, sort=False, dropna=False):
        row = dict(zip(columns, condition, strict=True))
        where = f"{row['error_model']} at {row['rate']} in {row['target']} of {row['model']} on {row['dataset']}"
        for column, thing in (("checkpoint", "trained models"), ("data", "sets of rows")):
            if (several := group[column].nunique()) > 1:
                raise ValueError(
                    f"{where} holds trials of {several} {thing} (column {column!r}); summarise them one by one"
                )
        golden = group["auc_golden"].to_numpy(float, na_value=np.nan)[0]
        has_auc = not np.isnan(golden)
        row |= {"auc_golden": golden, "n": len(group)}
        row |= {column: group[column].iloc[0] for column in STRUCTURED if column in group}
        try:
            strata = Strata.of(group if has_auc else group.drop(columns="auc_drop"))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        row |= {"interval": "", "over": "", "confidence": CONFIDENCE, "few_harmful": bool(strata.few_harmful.any())}
        outcomes = group["outcome"].to_numpy()
        row |= {f"share_{outcome}": strata.mean((outcomes == outcome).astype(float)) for outcome in OUTCOMES}
        row |= {
            column: strata.mean(group[column].to_numpy(float, na_value=np.nan)) for column in ("nan_rows", "inf_rows")
        }
        methods: dict[str, list[str]] = {}
        over: dict[str, list[str]] = {}
        for metric in metrics:
            values = group[metric].to_numpy(float, na_value=np.nan)
            judged = strata if has_auc and metric not in bounds else _judged(strata, group, values)
            row["few_harmful"] |= bool(judged.few_harmful.any())
            mean, low, high, method = _interval(judged, values, metric, bounds.get(metric), row)
            if metric in bounds and 0 < np.isnan(values).sum() < len(values):
                filled = [np.where(np.isnan(values), end, values) for end in bounds[metric]]
                worst = [
                    _interval(_judged(strata, group, filled_values), filled_values, metric, bounds[metric], row)
                    for filled_values in filled
                ]
                low, high = np.fmin(low, worst[0][1]), np.fmax(high, worst[1][2])
            elif metric != "auc_drop" and not known_bounds(metric) and 0 < np.isnan(values).sum() < len(values):
                low = high = np.nan  # the values that are missing may be any
                method = UNKNOWN
            if method:
                methods.setdefault(method, []).append(metric)
            error = rows_error(strata, group, metric)
            if low == low:  # not NaN
                over.setdefault(MAPS if np.isnan(error) else MAPS_AND_ROWS, []).append(metric)
            ends = with_rows(mean, low, high, error, _bounds_of(metric, golden))
            _add(row, metric, zip(ENDS, (mean, *ends), strict=True))
            _add(row, metric, [("_maps_low", low), ("_maps_high", high), ("_rows", error)])
            _add(row, metric, [(f"_q{quantile}", strata.quantile(values, quantile / 100)) for quantile in (10, 90)])
        row |= {"interval": _by_metric(methods), "over": _by_metric(over)}
        if "auc_drop" in metrics:
            losses = group["auc_drop"].to_numpy(float, na_value=golden)
            bound = strata.upper_bound(losses, (golden - 1, golden), CONFIDENCE) if has_auc else np.nan
            row["auc_drop_bound"] = bound
        _add(row, "realised", zip(ENDS, realised_rate(group), strict=True))
        harmed = (group["auc_drop"].to_numpy(float, na_value=np.nan) > DROP) | (outcomes == "raised")
        _add(row, "trials_harmed", zip(ENDS, strata.share(harmed) if has_auc else (np.nan,) * 3, strict=True))
        rows.append(row)
    summary = pd.DataFrame(rows)
    summary.attrs = {
        "interval": INTERVAL,
        "realised": "events over sites of all trials; central 99.9 % range of Binomial(sites, rate)",
        "trials_harmed": f"share of trials that lost over {DROP} AUC or raised; {CONFIDENCE:.0%} Wilson interval",
    }
    return summary


def rows_error(strata: Strata, group: "pd.DataFrame", metric: str) -> float:
    """The standard error over rows of a metric's mean over the trials of one condition, from the draws that its first trials
    hold (`OVER_ROWS`); NaN where a stratum has none, as of other metrics, and where no trial shows any: unknown, not 0."""
    columns = OVER_ROWS.get(metric, ())
    if not columns or not set(columns) <= set(group):
        return float("nan")
    draws = group[list(columns)].to_numpy(float, na_value=np.nan)
    has_draws = ~np.isnan(draws).any(axis=1)
    parts = [draws[member & has_draws] for member in strata.members]
    if not all(map(len, parts)):
        return float("nan")
    drawn = strata.weights @ [part.mean(axis=0) for part in parts]
    return float(np.sqrt((drawn**2).mean())) or float("nan")


def with_rows(mean: Any, low: Any, high: Any, error: Any, bounds: tuple[float, float] | None = None) -> tuple[Any, Any]:
    """The ends of an interval over error maps and rows: the distances of the ends over maps from the mean, and `z` standard
    errors over rows, added in squares, within the bounds; over maps alone where the error is NaN. Numbers or arrays."""
    from scipy.special import ndtri

    half = ndtri((1 + CONFIDENCE) / 2) * np.nan_to_num(error)
    least, greatest = bounds or (-np.inf, np.inf)
    below, above = np.hypot(mean - low, half), np.hypot(high - mean, half)
    wider = np.where(
        np.isnan(error), (low, high), (np.maximum(mean - below, least), np.minimum(mean + above, greatest))
    )
    return tuple(wider) if np.ndim(mean) else tuple(map(float, wider))


def _bounds_of(metric: str, golden: float) -> tuple[float, float] | None:
    return (golden - 1, golden) if metric == "auc_drop" else known_bounds(metric)


def _by_metric(groups: Mapping[str, Sequence[str]]) -> str:
    """What holds for some metrics, with their names where there are several groups."""
    return "; ".join(f"{text} ({', '.join(of)})" if len(groups) > 1 else text for text, of in groups.items())


def corrected_exactly(
    summary: "pd.DataFrame", trials: "pd.DataFrame", keys: Sequence[str], metrics: Sequence[str]
) -> "pd.DataFrame":
    """A summary of single memory faults whose intervals end at the mean where a code corrects all faults of a mode by its
    construction (`corrects_mode`), and no wrong bit was left in any trial: trials have missed nothing there.

    Args:
        summary: as `summarise` returns it.
        trials: that it is of, with `bits_left`, `corrects_mode` and `error_mode`.
        keys: columns that identify a condition in both.
        metrics: whose intervals are changed; all that the summary has.
    """
    import pandas as pd

    proven = (trials["corrects_mode"] == "any") | (trials["corrects_mode"] == trials["error_mode"])
    left = trials["bits_left"].where(proven, 1)
    if WEIGHT in trials:
        left = left.where(trials[WEIGHT] != 0, 0)  # pilots are no single faults
    bits_left = left.groupby([trials[key] for key in keys], dropna=False).max()
    wrong = (bits_left.reindex(pd.MultiIndex.from_frame(summary[list(keys)])) != 0).to_numpy(bool)
    ends = {}
    for metric in metrics:
        mean, error = summary[metric], summary[f"{metric}_rows"]
        ends |= {f"{metric}_maps{end}": summary[f"{metric}_maps{end}"].where(wrong, mean) for end in ENDS[1:]}
        exact = with_rows(*(column.to_numpy(float) for column in (mean, mean, mean, error)))
        ends |= {
            f"{metric}{end}": summary[f"{metric}{end}"].where(wrong, at)
            for end, at in zip(ENDS[1:], exact, strict=True)
        }
    return summary.assign(interval=summary["interval"].where(wrong, EXACT), **ends)


def _checked_bounds(bounds: Mapping[str, tuple[float, float]], table: "pd.DataFrame") -> dict[str, tuple[float, float]]:
    """Bounds of own metrics; raises ValueError for those of other columns, and where they are no range."""
    check_instance("bounds", bounds, Mapping, "a dictionary from own metrics to (least, greatest)")
    for name, ends in bounds.items():
        if name not in table:
            raise unknown("metric in bounds", name, table.columns)
        for end in check_items(f"bounds of {name!r}", ends, "the least and the greatest possible value"):
            check_instance(f"each bound of {name!r}", end, Real, "a number")
        if known_bounds(name) or name == "auc_drop":
            raise ValueError(f"bounds of {name!r}: it is built in, and its range is known; bounds are for own metrics")
        if len(ends) != 2 or not ends[0] < ends[1]:
            raise ValueError(f"bounds of {name!r} are {ends!r}; they must be the least and the greatest possible value")
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def _judged(strata: Strata, group: "pd.DataFrame", values: np.ndarray) -> Strata:
    """Strata that also have few harmful trials where few values lie far from the median, as seen from the farthest one."""
    if np.isnan(values).all():
        return strata
    with np.errstate(invalid="ignore"):  # of infinite values
        distance = np.abs(values - strata.quantile(values, 0.5))
        distance /= np.fmax.reduce(distance) or 1.0
    # The distance takes the place of the loss, in units of the farthest one: `few_harmful` asks which trials carry the mean.
    few_far = Strata.of(group.assign(auc_drop=distance)).few_harmful
    return replace(strata, few_harmful=strata.few_harmful | few_far)


def _interval(
    strata: Strata, values: np.ndarray, metric: str, bounds: tuple[float, float] | None, row: dict
) -> tuple[float, float, float, str]:
    """Mean and interval of a metric over the trials of one condition, and how it is made; at a rate of 0 the value is exact."""
    golden = row["auc_golden"]
    bounds = bounds or _bounds_of(metric, golden)
    if row["ber"] == 0 and len(set(values)) == 1:
        return *(float(values[0]),) * 3, EXACT
    try:
        mean, low, high = strata.mean_interval(values, bounds)
        if metric in ("auc", "auc_drop") and row["share_raised"] and not np.isnan(golden):
            lost = bounds[0] if metric == "auc" else bounds[1]
            worst = strata.mean_interval(np.where(np.isnan(values), lost, values), bounds)
            low, high = (np.fmin(low, worst[1]), high) if metric == "auc" else (low, np.fmax(high, worst[2]))
    except ValueError as error:
        raise ValueError(f"column {metric!r}: {error}") from error
    return mean, float(low), float(high), strata.methods(values, bounds)


def _add(row: dict, name: str, numbers: Iterable[tuple[str, float]]) -> None:
    """Adds columns `name` + end. Raises ValueError for an existing one."""
    for end, number in numbers:
        if name + end in row:
            raise ValueError(f"metrics gives the summary two columns {name + end!r}; rename the metric in the table")
        row[name + end] = number


def realised_rate(group: "pd.DataFrame") -> tuple[float, float, float]:
    """Events over sites in the trials of one condition, and the central 99.9 % range of Binomial(sites, rate).

    Returns:
        rate, low, high; all NaN for a sum of error models and for an empty target, the ends NaN for a fixed count.
    """
    from scipy.stats import binom

    if group["n_sites"].isna().any() or not group["n_sites"].sum():
        return float("nan"), float("nan"), float("nan")
    sites, events, rate = int(group["n_sites"].sum()), int(group["n_events"].sum()), group["rate"].iloc[0]
    if rate is None or rate != rate:
        return events / sites, float("nan"), float("nan")
    low, high = binom.ppf([0.0005, 0.9995], sites, rate)
    return events / sites, float(low / sites), float(high / sites)
