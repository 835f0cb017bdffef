"""From one row per trial to one row per condition, every number with its interval; and the caption that says so."""

from typing import TYPE_CHECKING

from drsrobust._names import unknown
from drsrobust.campaign.schema import CONDITION
from drsrobust.campaign.sequential import stopping_interval
from drsrobust.campaign.statistics import LEVEL, mean_interval, quantile_interval, wilson
from drsrobust.data import Split

if TYPE_CHECKING:
    import pandas as pd

OUTCOMES = ("ok", "nonfinite", "raised")
DROP = 0.001  # AUC: a loss over this is counted as harm
DROPS = (0.01, 0.1)  # AUC: larger losses that are counted too
QUANTILES = (10, 50, 90)  # percent
ENDS = ("", "_low", "_high")  # of column names: a value and its interval
INTERVAL = f"{LEVEL:.0%} interval of the mean over error maps (Student's t)"
ADAPTIVE = f"{LEVEL:.0%} interval of the mean over error maps, whatever the number of trials (betting, bounded values)"


def summarise(
    table: "pd.DataFrame", metrics: tuple[str, ...] = ("auc", "auc_drop", "logloss", "ne"), *, adaptive: bool = False
) -> "pd.DataFrame":
    """One row per condition, in the table's order.

    Args:
        table: of one or more campaigns, one row per trial.
        metrics: columns of it to average over trials, as `ndcg` or `flipped` besides these.
        adaptive: whether the number of trials followed from their AUC, as with `Campaign(precision=...)`. Then the intervals of
            `auc` and `auc_drop` are those that hold all the same (`stopping_interval`); Student's t would be too narrow.

    Returns:
        the condition's columns, `auc_golden`, `n` (trials), `share_<outcome>`, `nan_rows` and `inf_rows` (mean per
        trial); for each metric its mean over the trials that have it, `_low` and `_high` (95 % by Student's t) and the
        quantiles `_q10`, `_q90`; `realised`, the rate that was drawn (all trials' events over all places where errors could
        begin), with the central 99.9 % range `realised_low`, `realised_high` that Binomial(places, rate) gives it (where the
        error model has a rate); `harmed`, the share of trials that lost over 0.001 AUC (or raised), with `_low` and
        `_high` (95 %, Wilson); `harmed_0.01` and `harmed_0.1`, the same for losses over 0.01 and 0.1 AUC; for each metric
        the median, `_q50`, and for `_q10`, `_q50` and `_q90` the ends `_low` and `_high` of their 95 % intervals between
        order statistics (NaN where trials are too few for one). How is said in the frame's `attrs` too.

    Raises:
        ValueError: a metric that the table does not have; one condition holds trials of several trained models or of
            different rows, which have no common mean.
    """
    import pandas as pd

    for metric in metrics:
        if metric not in table:
            raise unknown("metric", metric, table.columns)
    rows = []
    for condition, group in table.groupby(list(CONDITION), sort=False, dropna=False):
        row = dict(zip(CONDITION, condition, strict=True))
        for column, thing in (("checkpoint", "trained models"), ("data", "sets of rows")):
            if (several := group[column].nunique()) > 1:
                raise ValueError(
                    f"{row['error_model']} at {row['rate']} in {row['target']} of {row['model']} on {row['dataset']} holds "
                    f"trials of {several} {thing} (column {column!r}); summarise them one by one"
                )
        row |= {"auc_golden": group["auc_golden"].iloc[0], "n": len(group)}
        row |= {f"share_{outcome}": float((group["outcome"] == outcome).mean()) for outcome in OUTCOMES}
        row |= {column: float(group[column].astype(float).mean()) for column in ("nan_rows", "inf_rows")}
        for metric in metrics:
            values = group[metric].dropna().to_numpy(float)
            interval = mean_interval(values)
            if adaptive and metric in ("auc", "auc_drop"):
                golden = group["auc_golden"].iloc[0]
                interval = stopping_interval(values, (0, 1) if metric == "auc" else (golden - 1, golden))
            row |= zip((metric, f"{metric}_low", f"{metric}_high"), interval, strict=True)
            for quantile in (10, 90):
                value = pd.Series(values).quantile(quantile / 100) if len(values) else float("nan")
                row[f"{metric}_q{quantile}"] = value
        row |= zip(("realised", "realised_low", "realised_high"), realised_rate(group), strict=True)
        harmed = int(((group["auc_drop"] > DROP) | (group["outcome"] == "raised")).sum())
        row |= zip(("harmed", "harmed_low", "harmed_high"), wilson(harmed, len(group)), strict=True)
        for drop in DROPS:
            harmed = int(((group["auc_drop"] > drop) | (group["outcome"] == "raised")).sum())
            row |= zip((f"harmed_{drop}{end}" for end in ENDS), wilson(harmed, len(group)), strict=True)
        for metric in metrics:
            values = group[metric].dropna().to_numpy(float)
            for percent in QUANTILES:
                for end, value in zip(ENDS, quantile_interval(values, percent / 100), strict=True):
                    row.setdefault(f"{metric}_q{percent}{end}", value)  # _q10 and _q90 stand above already
        rows.append(row)
    summary = pd.DataFrame(rows)
    summary.attrs = {
        "interval": ADAPTIVE if adaptive else INTERVAL,
        "realised": "events over places of all trials; central 99.9 % range of Binomial(places, rate)",
        "harmed": f"lost over {DROP} AUC (or as many as the column says), or the model raised; {LEVEL:.0%} Wilson interval",
        "quantiles": f"{LEVEL:.0%} interval between order statistics",
    }
    return summary


def realised_rate(group: "pd.DataFrame") -> tuple[float, float, float]:
    """The rate at which errors began in the trials of one condition, and the central 99.9 % range of Binomial(places, rate).

    Args:
        group: rows of a campaign's table, of one condition.

    Returns:
        events over places, low, high; NaN where the error model is a sum, or nothing was there to be hit; no range where it
        has a fixed count.
    """
    from scipy.stats import binom

    if group["places"].isna().any() or not group["places"].sum():
        return float("nan"), float("nan"), float("nan")
    places, events, rate = int(group["places"].sum()), int(group["events"].sum()), group["rate"].iloc[0]
    if rate is None or rate != rate:
        return events / places, float("nan"), float("nan")
    low, high = binom.ppf([0.0005, 0.9995], places, rate)
    return events / places, float(low / places), float(high / places)


def caption(summary: "pd.DataFrame", split: Split, *, marks: str | None = None) -> str:
    """What a reader must know of a figure made of this summary: data, rows, models, trials, interval, what varies.

    Args:
        summary: as `summarise` returns it, of one or more models.
        split: the rows that were scored.
        marks: a sentence on what is drawn; None: points are means, and bars the summary's intervals.
    """
    generated = " (generated data, not real clicks)" if split.dataset.startswith("synthetic-") else ""
    rows = f"{len(split):,}" if len(split) == split.whole else f"{len(split):,} of {split.whole:,}"
    fewest, most = summary["n"].min(), summary["n"].max()
    trials = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    golden = summary.groupby("model", sort=False)["auc_golden"].first()
    bars = summary.attrs.get("interval", INTERVAL)
    text = (
        f"Data: {split.dataset}{generated}, {rows} {split.part} rows. AUC without errors: "
        f"{', '.join(f'{model} {auc:.4f}' for model, auc in golden.items())}. {trials} trials per point, each with its own "
        f"error map; the trained model and the rows are fixed. {marks or f'Points: means; bars: {bars}.'}"
    )
    if (summary["auc_low"] == summary["auc_high"]).any():
        text += f" Where all {most} trials are alike, up to {3 / most:.2g} of all maps may still differ."
    if (summary["rate"].fillna(0) >= 1e-4).any():  # the field: `rates.field_rates()`
        text += " Rates of 1e-4 and more are a stress range; a day in DRAM in the field gives about 1e-9 before ECC."
    return text
