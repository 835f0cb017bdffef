"""Where AUC gives way: the bit error rate at which the mean loss passes a threshold (experiment E3)."""

from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.statistics.columns import FIXED
from drsrobust.statistics.intervals import CONFIDENCE, mean_interval, rule_of_three
from drsrobust.statistics.summary import stopping_of

if TYPE_CHECKING:
    import pandas as pd

LOSSES = (0.001, 0.01)  # AUC
_ONE = {"model": "one model only", "dataset": "one data set only"}
HALF = "half"  # of what the AUC has over a coin toss's 0.5
FLIPS = 100  # in all trials of a rate: fewer are no test of whether AUC holds there
RESAMPLES = 2000
_KEYS = ["model", "dataset", "protocol", "target", "error_model", "mitigation"]
HOW = (
    "first rate at which the mean AUC loss over error maps reaches the threshold (between two rates it is taken to grow by as "
    f"much per error); {CONFIDENCE:.0%} interval: percentile bootstrap over error maps, each kept with all its rates; where "
    "all agree, what they may have missed"
)


def rate_at_loss(
    table: "pd.DataFrame", losses: Sequence[float] = LOSSES, *, confidence: float = CONFIDENCE, seed: int = 0
) -> "pd.DataFrame":
    """The rate at which the mean AUC loss passes each threshold, with its interval.

    Between two rates the mean loss is interpolated linearly in the rate, below the lowest one from 0: exact where errors act
    each for itself, so that twice as many cost twice as much. Trials of one number hold nested error maps over the rates, so
    they are resampled together; the interval speaks of other error maps in the same model. With few harmful maps at low rates
    it is as uncertain as they are few. Where all trials agree at the rate that decides (the first at which the threshold is
    reached, else the highest), a share of up to `rule_of_three(n)` of error maps may lose all the AUC, or raise it to 1.

    A trial whose model raised is in no mean, but the low end of the interval takes it as an AUC of 0; where all trials of a
    rate raised, all the AUC is lost there.

    Args:
        table: of one or more campaigns of `BitFlip` over rates, one row per trial; each trial at each rate. The number of
            trials must be fixed: the bootstrap does not hold for trials stopped by their AUC (`precision=`).
        losses: thresholds, as AUC, ascending; the rate at which half of what the AUC has over 0.5 is lost is added.
        confidence: of confidence.
        seed: of the resampling.

    Returns:
        one row per model, data set, protocol, target, error model, mitigation and threshold: these, `bits` (eligible), `n`
        (trials), `raised` (share of all trials at all rates in which the model raised), `loss` (the threshold, text),
        `auc_drop` (the same as AUC), `knee`, `knee_low`, `knee_high` (bit error rates; infinite where the loss stays below up
        to the highest rate) and `errors` (flips that the knee's rate brings on average).

    Raises:
        ValueError: no trials of `BitFlip`, trials that were stopped by their AUC, a trial that lacks a rate or has it twice,
            or losses that do not ascend from above 0.

    Example:
        >>> import pandas as pd
        >>> trials = [{"ber": ber, "trial": t, "auc_drop": d} for t in (0, 1) for ber, d in ((1e-6, 0.0), (1e-5, 0.02))]
        >>> same = {"model": "m", "dataset": "d", "protocol": "p", "target": "all", "error_model": "BitFlip"}
        >>> same |= {"mitigation": "none", "stopping": "fixed", "n_sites": 1000}
        >>> rate_at_loss(pd.DataFrame(trials).assign(auc_golden=0.8, **same))[["loss", "knee"]].to_dict("list")
        {'loss': ['0.001', '0.01', 'half'], 'knee': [1.45e-06, 5.5e-06, inf]}
    """
    import pandas as pd

    losses = [float(loss) for loss in losses]
    if not losses or losses[0] <= 0 or (np.diff(losses) <= 0).any():
        raise ValueError(f"losses is {losses!r}; they must ascend from above 0, as [0.001, 0.01]")
    table = table[table["error_model"].str.startswith("BitFlip") & (table["ber"] > 0)]
    if table.empty:
        raise ValueError("the table holds no trial of BitFlip at a rate above 0")
    rows = []
    for keys, group in table.groupby(_KEYS, sort=False):
        where = ", ".join(keys)
        if stopping_of(group, where) != FIXED:
            raise ValueError(
                f"{where}: trials were stopped by their AUC; knees need a fixed number of trials (trials=)"
            )
        if group.duplicated(["trial", "ber"]).any():
            raise ValueError(f"{where}: a trial has a rate twice; give the table of one campaign seed, without doubles")
        loss = group.pivot(index="trial", columns="ber", values="auc_drop")
        there = group.pivot(index="trial", columns="ber", values="auc_golden").notna()
        if not there.to_numpy().all():
            raise ValueError(f"{where}: some trials lack a rate; knees need every trial at every rate")
        values, rates = loss.to_numpy(np.float64), loss.columns.to_numpy(np.float64)
        golden, bits = float(group["auc_golden"].iloc[0]), int(group["n_sites"].iloc[0])
        n, raised = len(values), np.isnan(values)
        once = np.ones((1, n))
        drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES)
        worst = np.where(raised, golden, values)
        means, again, least = _means(values, once, golden), _means(values, drawn, golden), _means(worst, drawn, golden)
        for name, limit in [*((f"{loss:g}", loss) for loss in losses), (HALF, (golden - 0.5) / 2)]:
            knee = float(crossing(means, rates, limit)[0])
            low = np.quantile(crossing(least, rates, limit), (1 - confidence) / 2, method="nearest")
            high = np.quantile(crossing(again, rates, limit), (1 + confidence) / 2, method="nearest")
            decides = min(int(np.searchsorted(rates, knee)), len(rates) - 1)
            if low == high and np.ptp(worst[:, decides]) == 0:
                share, mean = rule_of_three(n, confidence), _means(worst, once, golden)
                low = crossing(mean + share * (golden - mean), rates, limit)[0]
                high = crossing(means - share * (means - (golden - 1)), rates, limit)[0]
            row = dict(zip(_KEYS, keys, strict=True)) | {
                "bits": bits,
                "n": n,
                "raised": float(raised.mean()),
                "loss": name,
                "auc_drop": limit,
            }
            rows.append(row | {"knee": knee, "knee_low": float(low), "knee_high": float(high), "errors": knee * bits})
    found = pd.DataFrame(rows)
    found.attrs = {"interval": HOW}
    return found


def crossing(means: np.ndarray, rates: np.ndarray, limit: float) -> np.ndarray:
    """The first rate at which each curve reaches a limit.

    Args:
        means: [curves, rates], of mean losses.
        rates: [rates], ascending, above 0.
        limit: above 0.

    Returns:
        [curves]; infinite where a curve stays below.
    """
    reached = means >= limit
    first = reached.argmax(axis=1)
    curve = np.arange(len(means))
    below = np.where(first > 0, means[curve, first - 1], 0.0)
    left = np.where(first > 0, rates[first - 1], 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (limit - below) / (means[curve, first] - below)
    return np.where(reached.any(axis=1), left + share * (rates[first] - left), np.inf)


def knee_verdict(table: "pd.DataFrame", found: "pd.DataFrame") -> "pd.DataFrame":
    """What a sweep says of claim C3: AUC holds until a knee, then collapses; where the knee lies depends on the model and the
    data set.

    Args:
        table: as for `rate_at_loss`.
        found: `rate_at_loss(table)`.

    Returns:
        rows with `reading`, `protocol`, `model`, `dataset`, `value`, `low`, `high`, `verdict` and `detail` (the sentence that
        says why). `knee`, one per curve: the rate at which half of what the AUC has over 0.5 is lost (NaN where it is not);
        `reproduced` where it is, and there is a rate that is a test (100 flips or more in all its trials together) at which the
        loss is surely under the smallest threshold, with raised trials counted as an AUC of 0; `partly` where one of both
        holds, else `not`. `models` and `data sets`, one each per protocol: the highest knee (of the second threshold) over the
        lowest, between models of one data set and between data sets of one model, where that is surely most; `reproduced`
        where the intervals of these lie apart, else `not`; where there is one only, the verdict says so. Knees are compared at
        the same target, error model and mitigation.
    """
    import pandas as pd

    losses = list(dict.fromkeys(found["loss"]))
    limit = found.loc[found["loss"] == losses[0], "auc_drop"].iloc[0]
    curves, highest, rows = dict(list(table.groupby(_KEYS, sort=False))), table["ber"].max(), []
    for row in found[found["loss"] == HALF].itertuples():
        held = _held(curves[tuple(getattr(row, key) for key in _KEYS)], limit)
        gone = bool(np.isfinite(row.knee))
        verdict = "reproduced" if held and gone else "partly" if held or gone else "not"
        detail = f"{held or f'at no rate with {FLIPS} flips surely under {limit:g} lost'}, "
        detail += f"half is {'lost' if gone else 'not lost'} up to {highest:g}"
        ends = (row.knee if gone else np.nan, row.knee_low, row.knee_high)
        rows.append(("knee", row.protocol, row.model, row.dataset, *ends, verdict, detail))
    second = losses[min(1, len(losses) - 2)]
    middle = found[found["loss"] == second]
    for protocol, here in middle.groupby("protocol", sort=False):
        rows.append(("models", protocol, "", *_differ(here, "model", "dataset", second)))
        rows.append(("data sets", protocol, "", *_differ(here, "dataset", "model", second)))
    columns = ["reading", "protocol", "model", "dataset", "value", "low", "high", "verdict", "detail"]
    return pd.DataFrame(rows, columns=columns)


def _held(curve: "pd.DataFrame", limit: float) -> str:
    """The highest rate that is a test and at which less is lost, surely, in words; empty where there is none."""
    held = ""
    for ber, trials in curve.groupby("ber"):
        flips = float(ber * trials["n_sites"].sum())
        golden = float(trials["auc_golden"].iloc[0])
        mean, _, high = mean_interval(trials["auc_drop"].fillna(golden).to_numpy(float), bounds=(golden - 1, golden))
        if flips >= FLIPS and high < limit:
            held = f"mean loss {mean:.1g}, surely under {limit:g}, at {ber:g} ({flips:,.0f} flips in all)"
    return held


def _differ(rate_at_loss: "pd.DataFrame", name: str, same: str, loss: str) -> tuple[str, float, float, float, str, str]:
    """Data sets, the highest knee over the lowest with the ends that both intervals allow, the verdict, and why: of the two
    knees of one `same` that clearly differ most. Knees that were not reached count where reached ones do not differ."""
    found, several = [], False
    for (key, *_), group in rate_at_loss.groupby([same, "target", "error_model", "mitigation"], sort=False):
        several |= group[name].nunique() > 1
        for first, last in permutations(group.to_dict("records"), 2):
            if first[name] != last[name] and np.isfinite(first["knee"]):
                apart = last["knee_low"] / first["knee_high"] if np.isfinite(first["knee_high"]) else 0.0
                found.append((apart, key, first, last))
    if reached := [one for one in found if one[0] > 1 and np.isfinite(one[3]["knee_high"])]:
        found = reached
    if not found:
        return (
            ", ".join(dict.fromkeys(rate_at_loss["dataset"])),
            *[np.nan] * 3,
            "none loses that much" if several else _ONE[name],
            "",
        )
    low, key, first, last = max(found, key=lambda one: one[0])
    ends = [f"{one[name]} {_shown(one)}" for one in (first, last)]
    ratio = last["knee"] / first["knee"] if np.isfinite(last["knee"]) else np.nan
    detail = f"{key}, {loss} AUC lost: {ends[0]}, {ends[1]}"
    sets = ", ".join(dict.fromkeys([first["dataset"], last["dataset"]]))
    return sets, ratio, low, last["knee_high"] / first["knee_low"], "reproduced" if low > 1 else "not", detail


def _shown(row: dict[str, Any]) -> str:
    if np.isinf(row["knee_low"]):
        return "not up to the highest rate"
    high = "over the highest rate" if np.isinf(row["knee_high"]) else f"{row['knee_high']:.1e}"
    knee = "not up to the highest rate" if np.isinf(row["knee"]) else f"{row['knee']:.1e}"
    return f"{knee} [{row['knee_low']:.1e}, {high}]"


def _means(values: np.ndarray, counts: np.ndarray, golden: float) -> np.ndarray:
    """Mean losses [draws, rates] of trials [trials, rates] taken so many times [draws, trials]; trials that raised (NaN) are
    left out at their rate. Where all raised, all the golden AUC is lost."""
    there = ~np.isnan(values)
    n = counts @ there
    return np.where(n > 0, counts @ np.where(there, values, 0.0) / np.maximum(n, 1), golden)
