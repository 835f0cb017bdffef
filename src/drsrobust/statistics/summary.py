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
    ENDS,
    OVER_ROWS,
    STRUCTURED,
    check_table,
    identifying,
    with_nan_rules,
)
from drsrobust.statistics.headline import HIGHER_IS_BETTER, Headline, golden, known_bounds
from drsrobust.statistics.intervals import CONFIDENCE
from drsrobust.statistics.strata import DROP, UNKNOWN, Strata, check_trials

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


def summarise(
    table: "pd.DataFrame",
    metrics: Sequence[str] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> "pd.DataFrame":
    """One row per condition, in the table's order.

    Args:
        table: of one or more campaigns, one row per trial; stratified ones are weighted by their column `weight`.
        metrics: columns to average over trials; None: `auc`, `auc_drop`, `logloss` and `ne`, or of rankings their headline (the
            first metric with its value without errors in a column `<metric>_golden`) and its `_drop`; also further ones, as
            `ndcg@10`, or own ones. One without values gives NaN. A decision metric comes with the other rules for NaN and the
            share of NaN rows (`columns.DECISIONS`), as far as the table has them.
        bounds: least and greatest possible value of own metrics, as {"mine": (0, 1)}. Of an own metric without bounds the
            interval is Student's t, which may leave the range of the metric; it is blank where all trials agree, where few were
            harmed, and where values are missing.

    Returns:
        the condition's columns, `mitigation_id`, `auc_golden` (and those of other headlines), `n` (trials), the structured
        columns, `interval` (the method of the intervals, as `Student's t` or `Stringer's bound`, several of strata; with the
        metrics in brackets where they differ), `over` (what they hold for: `maps`, other error maps on these rows; `maps and
        rows`, other rows too; by metric likewise) and `confidence`, `few_harmful` (so few trials were harmed that rare
        larger losses may be missing among them: intervals are Stringer's then, and blank for metrics without two bounds. Harm
        is a loss of the headline; for metrics in `bounds` it is a distance from their median too. Where there is no headline
        it is the latter for all metrics), `share_<outcome>`, `nan_rows` and `inf_rows` (mean per trial); of each metric its
        mean over the trials that have it, `_low` and `_high` (see `Strata.mean_interval`; of headlines and their losses
        the worse end counts a trial whose model raised as the worst value, an AUC of 0; the ends of metrics in `bounds` count
        missing values as the bound), its two parts `_maps_low`, `_maps_high` (over error maps alone) and `_rows` (standard
        error over rows; NaN: unknown, as of other metrics than `auc` and `auc_drop`, of rankings, streams and tables of
        version 0.8, and where no trial changed the order of any rows), and the quantiles `_q10`, `_q90`; `auc_drop_bound`, if
        `auc_drop` is among them, an upper bound of its mean over error maps that assumes nothing of the losses that were not
        seen (95 %, raised trials lose all); `realised`, the rate that was drawn (events over sites of all trials), with the
        central 99.9 % range `realised_low`, `realised_high` of Binomial(sites, rate) if the error model has a rate;
        `trials_harmed`, the share of trials that lost over 0.001 of the headline or raised, with `_low` and `_high` (95 %,
        Wilson; NaN without one). `attrs` describe the intervals.

    Raises:
        ValueError: a trial that the table holds twice; a metric that the table does not have, or with a value outside its
            bounds, or whose columns the summary has already; bounds of a column that the table does not have or of a built-in
            metric, or that are no range; or trials of several trained models or sets of rows in one condition.
    """
    import pandas as pd

    check_table(table, (*CONDITION, "outcome"))
    golden_columns = golden(table).values()
    metrics = _default(table) if metrics is None else check_names("metrics", metrics)
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
        headlines = Headline.of(group)
        losses = headlines[0].losses(group) if headlines else None
        row |= {name: group[name].to_numpy(float, na_value=np.nan)[0] for name in golden_columns} | {"n": len(group)}
        row |= {column: group[column].iloc[0] for column in STRUCTURED if column in group}
        try:
            strata = Strata.of(group, losses)
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
            judged = strata if headlines and metric not in bounds else _judged(strata, group, values)
            headline = next((each for each in headlines if metric in each.columns), None)
            known = known_bounds(metric) if headline is None else headline.bounds_of(metric)
            row["few_harmful"] |= bool(judged.few_harmful.any())
            mean, low, high, method = _interval(judged, values, metric, bounds.get(metric, known), row, headline)
            if metric in bounds and 0 < np.isnan(values).sum() < len(values):
                filled = [np.where(np.isnan(values), end, values) for end in bounds[metric]]
                worst = [_interval(_judged(strata, group, part), part, metric, bounds[metric], row) for part in filled]
                low, high = np.fmin(low, worst[0][1]), np.fmax(high, worst[1][2])
            elif not known and 0 < np.isnan(values).sum() < len(values):
                low = high = np.nan  # the values that are missing may be any
                method = UNKNOWN
            if method:
                methods.setdefault(method, []).append(metric)
            error = rows_error(strata, group, metric)
            if low == low:  # not NaN
                over.setdefault(MAPS if np.isnan(error) else MAPS_AND_ROWS, []).append(metric)
            ends = with_rows(mean, low, high, error, known)
            _add(row, metric, zip(ENDS, (mean, *ends), strict=True))
            _add(row, metric, [("_maps_low", low), ("_maps_high", high), ("_rows", error)])
            _add(row, metric, [(f"_q{quantile}", strata.quantile(values, quantile / 100)) for quantile in (10, 90)])
        row |= {"interval": _by_metric(methods), "over": _by_metric(over)}
        for headline in headlines:
            if headline.drop in metrics:
                at_worst = np.nan_to_num(headline.losses(group), nan=headline.worst_of(headline.drop))
                row[f"{headline.drop}_bound"] = strata.upper_bound(
                    at_worst, headline.bounds_of(headline.drop), CONFIDENCE
                )
        _add(row, "realised", zip(ENDS, realised_rate(group), strict=True))
        harmed = (np.nan,) * 3 if losses is None else strata.share((losses > DROP) | (outcomes == "raised"))
        _add(row, "trials_harmed", zip(ENDS, harmed, strict=True))
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


def _default(table: "pd.DataFrame") -> list[str]:
    """What is averaged if nothing is asked for: headlines and their losses, and the other metrics of clicks."""
    names = [column for name in golden(table) for column in (name, f"{name}_drop")]
    return [name for name in (*names, "logloss", "ne") if name in table and table[name].notna().any()]


def _by_metric(groups: Mapping[str, Sequence[str]]) -> str:
    """What holds for some metrics, with their names where there are several groups."""
    return "; ".join(f"{text} ({', '.join(of)})" if len(groups) > 1 else text for text, of in groups.items())


def _checked_bounds(bounds: Mapping[str, tuple[float, float]], table: "pd.DataFrame") -> dict[str, tuple[float, float]]:
    """Bounds of own metrics; raises ValueError for those of other columns, and where they are no range."""
    check_instance("bounds", bounds, Mapping, "a dictionary from own metrics to (least, greatest)")
    for name, ends in bounds.items():
        if name not in table:
            raise unknown("metric in bounds", name, table.columns)
        for end in check_items(f"bounds of {name!r}", ends, "the least and the greatest possible value"):
            check_instance(f"each bound of {name!r}", end, Real, "a number")
        if known_bounds(name) or name.removesuffix("_drop") in HIGHER_IS_BETTER:
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
    few_far = Strata.of(group, distance).few_harmful
    return replace(strata, few_harmful=strata.few_harmful | few_far)


def _interval(
    strata: Strata,
    values: np.ndarray,
    metric: str,
    bounds: tuple[float, float] | None,
    row: dict,
    headline: Headline | None = None,
) -> tuple[float, float, float, str]:
    """Mean and interval of a metric over the trials of one condition, and how it is made; at a rate of 0 the value is exact."""
    if row["ber"] == 0 and len(set(values)) == 1:
        return *(float(values[0]),) * 3, EXACT
    try:
        mean, low, high = strata.mean_interval(values, bounds)
        if headline is not None and row["share_raised"]:
            lost = headline.worst_of(metric)
            worst = strata.mean_interval(np.where(np.isnan(values), lost, values), bounds)
            low, high = (np.fmin(low, worst[1]), high) if lost == bounds[0] else (low, np.fmax(high, worst[2]))
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
