"""The bit error rate at which the mean AUC loss passes a threshold, and claim C3 (experiment E3)."""

from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.statistics.columns import FIXED
from drsrobust.statistics.intervals import CONFIDENCE, mean_interval, rule_of_three
from drsrobust.statistics.summary import stopping_of
from drsrobust.study.findings import verdicts

if TYPE_CHECKING:
    import pandas as pd

LOSSES = (0.001, 0.01)  # AUC
HALF = "half"  # of the golden AUC over 0.5
FLIPS = 100  # in all trials of a rate; fewer do not test whether AUC holds there
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
    """The rate at which the mean AUC loss passes each threshold, with its interval over error maps.

    The mean loss is interpolated linearly in the rate, from 0 below the lowest one. Trials of one number hold nested error
    maps, so they are resampled together. Where all trials agree at the rate that decides (the first that reaches the
    threshold, else the highest), a share of up to `rule_of_three(n)` of error maps may lose all the AUC, or raise it to 1.
    A trial whose model raised is in no mean; the low end counts it as an AUC of 0. Where all trials of a rate raised, all
    the AUC is lost.

    Args:
        table: of one or more campaigns of `BitFlip`, one row per trial; each trial at each rate, of a fixed number
            (`trials=`; the bootstrap does not hold for `precision=`).
        losses: thresholds in AUC, ascending; half of the golden AUC over 0.5 is added.
        confidence: of the intervals.
        seed: of the resampling.

    Returns:
        one row per model, data set, protocol, target, error model, mitigation and threshold: these, `bits` (eligible), `n`
        (trials), `raised` (share of trials in which the model raised), `loss` (the threshold as text), `auc_drop` (in AUC),
        `knee`, `knee_low`, `knee_high` (bit error rates; infinite where the loss stays below up to the highest rate) and
        `errors` (expected flips at `knee`).

    Raises:
        ValueError: no trials of `BitFlip`, trials stopped by precision, a trial that lacks a rate or has it twice, or losses
            that do not ascend from above 0.

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
        raise ValueError(f"losses must ascend from above 0, as [0.001, 0.01], got {losses!r}")
    table = table[table["error_model"].str.startswith("BitFlip") & (table["ber"] > 0)]
    if table.empty:
        raise ValueError("table must hold trials of BitFlip at a rate above 0, got none")
    rows = []
    for keys, group in table.groupby(_KEYS, sort=False):
        golden, bits = float(group["auc_golden"].iloc[0]), int(group["n_sites"].iloc[0])
        values, rates = _losses(group, ", ".join(keys))
        n, raised = len(values), np.isnan(values)
        once = np.ones((1, n))
        resampled = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES)
        worst = np.where(raised, golden, values)
        means = _means(values, once, golden)
        curves, lowest = _means(values, resampled, golden), _means(worst, resampled, golden)
        for name, limit in [*((f"{loss:g}", loss) for loss in losses), (HALF, (golden - 0.5) / 2)]:
            knee = float(crossing(means, rates, limit)[0])
            low = np.quantile(crossing(lowest, rates, limit), (1 - confidence) / 2, method="nearest")
            high = np.quantile(crossing(curves, rates, limit), (1 + confidence) / 2, method="nearest")
            decides = min(int(np.searchsorted(rates, knee)), len(rates) - 1)
            if low == high and np.ptp(worst[:, decides]) == 0:
                share, mean = rule_of_three(n, confidence), _means(worst, once, golden)
                low = crossing(mean + share * (golden - mean), rates, limit)[0]
                high = crossing(means - share * (means - (golden - 1)), rates, limit)[0]
            row = dict(zip(_KEYS, keys, strict=True)) | {"bits": bits, "n": n, "raised": float(raised.mean())}
            row |= {"loss": name, "auc_drop": limit, "knee": knee, "knee_low": float(low), "knee_high": float(high)}
            rows.append(row | {"errors": knee * bits})
    found = pd.DataFrame(rows)
    found.attrs = {"interval": HOW}
    return found


def _losses(group: "pd.DataFrame", condition: str) -> tuple[np.ndarray, np.ndarray]:
    """AUC losses [trials, rates] of one curve, NaN where the model raised, and its rates, ascending."""
    if stopping_of(group, condition) != FIXED:
        raise ValueError(f"{condition}: trials were stopped by precision; give a fixed number of trials (trials=)")
    if group.duplicated(["trial", "ber"]).any():
        raise ValueError(
            f"{condition}: a trial has a rate twice; give the table of one campaign seed, without duplicates"
        )
    losses = group.pivot(index="trial", columns="ber", values="auc_drop")
    if not group.pivot(index="trial", columns="ber", values="auc_golden").notna().to_numpy().all():
        raise ValueError(f"{condition}: some trials lack a rate; give every trial at every rate")
    return losses.to_numpy(np.float64), losses.columns.to_numpy(np.float64)


def _means(values: np.ndarray, counts: np.ndarray, golden: float) -> np.ndarray:
    """Mean losses [draws, rates] of trials [trials, rates] weighted by counts [draws, trials], without trials that raised
    (NaN). Where all raised, all the golden AUC is lost."""
    measured = ~np.isnan(values)
    n = counts @ measured
    return np.where(n > 0, counts @ np.where(measured, values, 0.0) / np.maximum(n, 1), golden)


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
    """Findings and verdicts on claim C3: AUC holds, then collapses, at a rate that depends on model and data set.

    Args:
        table: as of `rate_at_loss`.
        found: what `rate_at_loss` returns of it.

    Returns:
        rows with `reading`, `protocol`, `model`, `dataset`, `value`, `low`, `high`, `held`, `verdict`, `reason` and `detail`.
        `knee`, one per curve: the rate at which half of the AUC over 0.5 is lost (NaN: at none), and `held`, the highest rate
        with 100 flips or more at which the interval of the loss lies under the smallest threshold (a trial that raised counts
        as an AUC of 0). `models` and `data sets`, one each per protocol: the highest knee (of the second threshold) over the
        lowest, between models of one data set and between data sets of one model, of the two whose intervals differ most, at
        the same target, error model and mitigation.
    """
    import pandas as pd

    losses = list(dict.fromkeys(found["loss"]))
    limit = found.loc[found["loss"] == losses[0], "auc_drop"].iloc[0]
    curves, highest, rows = dict(list(table.groupby(_KEYS, sort=False))), table["ber"].max(), []
    for row in found[found["loss"] == HALF].itertuples():
        held, words = _held(curves[tuple(getattr(row, key) for key in _KEYS)], limit)
        lost = bool(np.isfinite(row.knee))
        where = {"reading": "knee", "protocol": row.protocol, "model": row.model, "dataset": row.dataset}
        numbers = {"value": row.knee if lost else np.nan, "low": row.knee_low, "high": row.knee_high, "held": held}
        detail = f"{words}, half is {'lost' if lost else 'not lost'} up to {highest:g}"
        rows.append(where | numbers | {"reason": "", "detail": detail})
    second = losses[min(1, len(losses) - 2)]
    for protocol, knees in found[found["loss"] == second].groupby("protocol", sort=False):
        for reading, name, same in (("models", "model", "dataset"), ("data sets", "dataset", "model")):
            where = {"reading": reading, "protocol": protocol, "model": ""}
            rows.append(where | _most_different(knees, name, same, second) | {"held": np.nan})
    findings = pd.DataFrame(rows)
    knee = findings["reading"] == "knee"
    words = [*verdicts(findings[knee], "knee"), *verdicts(findings[~knee], "above", bound=1.0)]
    return findings.assign(verdict=words)


def _held(curve: "pd.DataFrame", limit: float) -> tuple[float, str]:
    """The highest rate with enough flips at which the loss's interval lies under the limit (NaN: none), and a sentence."""
    held, words = np.nan, f"at no rate with {FLIPS} flips clearly under {limit:g} lost"
    for ber, trials in curve.groupby("ber"):
        flips = float(ber * trials["n_sites"].sum())
        golden = float(trials["auc_golden"].iloc[0])
        mean, _, high = mean_interval(trials["auc_drop"].fillna(golden).to_numpy(float), bounds=(golden - 1, golden))
        if flips >= FLIPS and high < limit:
            held, words = ber, f"mean loss {mean:.1g}, clearly under {limit:g}, at {ber:g} ({flips:,.0f} flips in all)"
    return held, words


def _most_different(knees: "pd.DataFrame", name: str, same: str, loss: str) -> dict[str, Any]:
    """The highest knee over the lowest, of the two knees of one `same` whose intervals differ most. Curves that lose less at
    all rates are compared only if no two measured knees differ."""
    pairs, several = [], False
    for (key, *_), group in knees.groupby([same, "target", "error_model", "mitigation"], sort=False):
        several |= group[name].nunique() > 1
        for first, last in permutations(group.to_dict("records"), 2):
            if first[name] != last[name] and np.isfinite(first["knee"]):
                apart = last["knee_low"] / first["knee_high"] if np.isfinite(first["knee_high"]) else 0.0
                pairs.append((apart, key, first, last))
    if measured := [pair for pair in pairs if pair[0] > 1 and np.isfinite(pair[3]["knee_high"])]:
        pairs = measured
    if not pairs:
        names = ", ".join(dict.fromkeys(knees["dataset"]))
        only = {"model": "one model only", "dataset": "one data set only"}[name]
        reason = "none loses that much" if several else only
        return {"dataset": names, "value": np.nan, "low": np.nan, "high": np.nan, "reason": reason, "detail": reason}
    low, key, first, last = max(pairs, key=lambda pair: pair[0])
    return {
        "dataset": ", ".join(dict.fromkeys([first["dataset"], last["dataset"]])),
        "value": last["knee"] / first["knee"] if np.isfinite(last["knee"]) else np.nan,
        "low": low,
        "high": last["knee_high"] / first["knee_low"],
        "reason": "",
        "detail": f"{key}, {loss} AUC lost: {', '.join(f'{knee[name]} {_words(knee)}' for knee in (first, last))}",
    }


def _words(row: dict[str, Any]) -> str:
    if np.isinf(row["knee_low"]):
        return "not up to the highest rate"
    high = "over the highest rate" if np.isinf(row["knee_high"]) else f"{row['knee_high']:.1e}"
    knee = "not up to the highest rate" if np.isinf(row["knee"]) else f"{row['knee']:.1e}"
    return f"{knee} [{row['knee_low']:.1e}, {high}]"
