"""The bit error rate at which the mean AUC loss passes a threshold, and claim C3."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.plots.names import display_name
from drsrobust.statistics.intervals import CONFIDENCE
from drsrobust.statistics.random_effects import SEEDS, across_models
from drsrobust.statistics.summary import summarise
from drsrobust_study.findings import COUNTS, EXTREMES, number
from drsrobust_study.thirds import by_thirds

if TYPE_CHECKING:
    import pandas as pd

LOSSES = (0.001, 0.01)  # AUC
HALF = "half"  # of the golden AUC over 0.5
FLIPS = 100  # in all trials of a rate; fewer do not test whether AUC holds there
# Most times the rate of the second loss at which half is lost in a collapse: two decades. A loss proportional to the rate needs
# about 15; one that grows over more than two decades is no collapse.
COLLAPSE = 100
_KEYS = ["model", "dataset", "protocol", "target", "error_model", "mitigation"]
HOW = (
    "first rate at which the mean AUC loss over error maps reaches the threshold (between two rates it is taken to grow as a "
    f"power of the rate); ends: where the upper and the lower end of its {CONFIDENCE:.0%} interval do"
)


def rate_at_loss(summary: "pd.DataFrame", losses: Sequence[float] = LOSSES) -> "pd.DataFrame":
    """The rate at which the mean AUC loss passes each threshold, with its interval over error maps.

    The logarithms of the mean loss and of both ends of its interval are interpolated linearly in the logarithm of the rate;
    the loss itself in the rate where it is not over 0 at the lower one, and from 0 below the lowest rate. The low end
    of the rate is where the upper end of the loss passes, which counts trials whose model raised as an AUC of 0. Where all
    trials of a rate raised, all the AUC is lost.

    Args:
        summary: `summarise` of campaigns of `BitFlip`, with the metric `auc_drop`.
        losses: thresholds in AUC, ascending; half of the golden AUC over 0.5 is added.

    Returns:
        one row per model, data set, protocol, target, error model, mitigation and threshold: these, `bits` (eligible), `n`
        (trials of a rate), `raised` (share of trials in which the model raised), `train_seeds` if the summary has it, `loss`
        (the threshold as text), `auc_drop` (in AUC), `knee`, `knee_low`, `knee_high` (bit error rates; infinite where the loss
        stays below up to the highest rate) and `errors` (expected flips at `knee`).

    Raises:
        ValueError: no rates of `BitFlip`, a rate twice, or losses that do not ascend from above 0.

    Example:
        >>> import pandas as pd
        >>> points = [{"ber": 1e-6, "auc_drop": 0.0}, {"ber": 1e-5, "auc_drop": 0.02}]
        >>> same = {"model": "m", "dataset": "d", "protocol": "p", "target": "all", "error_model": "BitFlip"}
        >>> same |= {"mitigation": "none", "n_bits": 1000, "n": 9, "share_raised": 0.0, "auc_golden": 0.8}
        >>> points = pd.DataFrame(points).assign(rate=[1e-6, 1e-5])
        >>> summary = points.assign(auc_drop_low=[0.0, 0.01], auc_drop_high=[0.0, 0.03], **same)
        >>> rate_at_loss(summary, [0.01])[["loss", "knee", "knee_low"]].map("{}".format).to_dict("list")
        {'loss': ['0.01', 'half'], 'knee': ['5.5e-06', 'inf'], 'knee_low': ['4.0...e-06', 'inf']}
    """
    import pandas as pd

    losses = [float(loss) for loss in losses]
    if not losses or losses[0] <= 0 or (np.diff(losses) <= 0).any():
        raise ValueError(f"losses must ascend from above 0, as [0.001, 0.01], got {losses!r}")
    summary = summary[(summary["rate"] == summary["ber"]) & (summary["ber"] > 0)]
    if summary.empty:
        raise ValueError("summary must hold BitFlip at a rate above 0, got none")
    rows = []
    for keys, curve in summary.groupby(_KEYS, sort=False):
        curve = curve.sort_values("ber")
        if curve["ber"].duplicated().any():
            raise ValueError(f"{', '.join(keys)}: a rate is there twice; give the summary of one campaign")
        golden, rates = float(curve["auc_golden"].iloc[0]), curve["ber"].to_numpy(float)
        means = curve["auc_drop"].fillna(golden).to_numpy(float)
        lower, upper = (curve[f"auc_drop_{end}"].to_numpy(float) for end in ("low", "high"))
        curves = np.stack([means, np.where(np.isnan(upper), golden, upper), np.where(np.isnan(lower), means, lower)])
        row = dict(zip(_KEYS, keys, strict=True)) | {"bits": int(curve["n_bits"].iloc[0]), "n": int(curve["n"].max())}
        row |= {"raised": float(curve["share_raised"].mean())}
        row |= {SEEDS: int(curve[SEEDS].min())} if SEEDS in curve else {}
        for name, limit in [*((f"{loss:g}", loss) for loss in losses), (HALF, (golden - 0.5) / 2)]:
            knee, low, high = crossing(curves, rates, limit).tolist()
            numbers = {"knee": knee, "knee_low": low, "knee_high": high, "errors": knee * row["bits"]}
            rows.append(row | {"loss": name, "auc_drop": limit} | numbers)
    knees = pd.DataFrame(rows)
    knees.attrs = {"interval": HOW}
    return knees


def crossing(means: np.ndarray, rates: np.ndarray, limit: float) -> np.ndarray:
    """The first rate at which each curve reaches a limit.

    Args:
        means: [curves, rates], of mean losses.
        rates: [rates], ascending, above 0.
        limit: above 0.

    Returns:
        [curves]; infinite where a curve stays below.
    """
    is_reached = means >= limit
    first = is_reached.argmax(axis=1)
    curve = np.arange(len(means))
    above, below = means[curve, first], np.where(first > 0, means[curve, first - 1], 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.log(limit / below) / np.log(above / below)
        knee = rates[first - 1] * (rates[first] / rates[first - 1]) ** share
        # A loss that is not over 0 at the lower rate has no logarithm.
        lower = np.where(first > 0, rates[first - 1], 0.0)
        line = lower + (limit - below) / (above - below) * (rates[first] - lower)
    return np.where(is_reached.any(axis=1), np.where(below > 0, knee, line), np.inf)


def knee_claims(summary: "pd.DataFrame", losses: Sequence[float] = LOSSES, model: str = "dlrm") -> "pd.DataFrame":
    """Findings on claim C3: AUC holds, then collapses, at a rate that depends on model and data set.

    Args:
        summary, losses: as of `rate_at_loss`; a column `train_seeds` counts the trained models of a row (`across_models`).
        model: that is compared with the others.

    Returns:
        four rows per protocol and more: `reading`, `protocol`, `dataset`, `value`, `low`, `high`, `n`, `interval`, `reason`,
        `detail`, `first`, `last` and `loss`. `collapse`: the share of the `n` curves that lose half of the AUC over 0.5 at a
        rate at most 100 times that at which the second threshold is lost (ends: by the ends of both rates). `hold`: the share
        that loses under the smallest threshold at some rate with 100 flips or more (a trial that raised counts as an AUC of 0;
        low: by the high end of the mean loss). `models` and `data sets`: the highest knee (of the second threshold, `loss`)
        over the lowest, between models of one data set and between data sets of one model, of the two whose intervals differ
        most, of `n` error maps of a rate; `first` and `last` name them, from the lowest knee; models are compared where they
        were trained with most seeds. `model`, by the name of the model: per data set with it and two others or more, the rate
        at which it loses half over the median rate of the `n` others.
    """
    import pandas as pd

    rates_found = rate_at_loss(summary, losses)
    names, rows = list(dict.fromkeys(rates_found["loss"])), []
    second = names[min(1, len(names) - 2)]
    for protocol, of_protocol in rates_found.groupby("protocol", sort=False):
        labels = {"protocol": protocol, "dataset": ", ".join(dict.fromkeys(of_protocol["dataset"]))}
        half = of_protocol[of_protocol["loss"] == HALF]
        knees = of_protocol[of_protocol["loss"] == second]
        rows.append({"reading": "collapse"} | labels | _collapsed(half, knees, second, summary["ber"].max()))
        rows.append({"reading": "hold"} | labels | _held(summary[summary["protocol"] == protocol], losses[0]))
        most = knees[knees[SEEDS] == knees[SEEDS].max()] if SEEDS in knees else knees
        rows.append({"reading": "models", "protocol": protocol} | _most_different(most, "model", "dataset", second))
        rows.append({"reading": "data sets", "protocol": protocol} | _most_different(knees, "dataset", "model", second))
        rows += [{"reading": model, "protocol": protocol} | row for row in _against_others(half, model)]
    return pd.DataFrame(rows).fillna(dict.fromkeys(("first", "last"), ""))


def _collapsed(half: "pd.DataFrame", knees: "pd.DataFrame", loss: str, highest: float) -> dict[str, Any]:
    """The row `collapse` of the knees of one protocol, at half and at the second loss."""
    of_half, of_loss = half.set_index(_KEYS), knees.set_index(_KEYS)
    ends = {"value": ("knee", "knee"), "low": ("knee_high", "knee_low"), "high": ("knee_low", "knee_high")}
    # A half that is not lost is no collapse: infinity over infinity is not at most 100 either.
    is_steep = {end: of_half[top] / of_loss[bottom] <= COLLAPSE for end, (top, bottom) in ends.items()}
    n, lost = len(half), int(np.isfinite(half["knee"]).sum())
    detail = f"half is lost by {number(highest)} in {lost} of {n} curves, at most {COLLAPSE} times the rate that "
    detail += f"costs {loss} in {is_steep['value'].sum()}, clearly in {is_steep['low'].sum()}"
    shares = {end: float(steep.mean()) for end, steep in is_steep.items()}
    return shares | {"n": n, "interval": COUNTS, "reason": "", "detail": detail, "loss": HALF}


def _against_others(half: "pd.DataFrame", model: str) -> Iterator[dict[str, Any]]:
    """The rows of one model of one protocol, from the knees at half."""
    for (dataset, *_), group in half.groupby(["dataset", "target", "error_model", "mitigation"], sort=False):
        own, others = group[group["model"] == model], group[group["model"] != model]
        if own.empty or len(others) < 2:
            continue
        row, middle = own.iloc[0], others[["knee", "knee_low", "knee_high"]].median()
        ends = {"low": row["knee_low"] / middle["knee_high"], "high": row["knee_high"] / middle["knee_low"]}
        is_known = np.isfinite(row["knee"]) and np.isfinite(middle["knee"]) and not np.isnan([*ends.values()]).any()
        ratio = {"value": row["knee"] / middle["knee"]} | ends if is_known else dict.fromkeys(("value", *ends), np.nan)
        rank, n = 1 + int((others["knee"] < row["knee"]).sum()), len(group)
        place = {1: "the least robust of", n: "the most robust of"}.get(rank, f"number {rank} from the least robust of")
        detail = f"{display_name(model)} is {place} {n}: half is lost at {_words(row)}, "
        detail += f"median of the others {middle['knee']:.1e}"
        row = {"dataset": dataset} | ratio | {"n": len(others), "interval": f"{EXTREMES}, median of the others"}
        reason = "" if is_known else "half is not lost up to the highest rate"
        yield row | {"reason": reason, "detail": detail if is_known else reason, "loss": HALF}


def _held(summary: "pd.DataFrame", limit: float) -> dict[str, Any]:
    """The row `hold` of curves of one protocol."""
    enough = summary[summary["ber"] * summary["n"] * summary["n_bits"] >= FLIPS]
    curves = enough.groupby(_KEYS, sort=False)[["auc_drop", "auc_drop_low", "auc_drop_high"]].min()
    n = summary.groupby(_KEYS).ngroups
    value, high, low = ((curves[name] < limit).sum() / n for name in curves)
    detail = (
        f"under {number(limit)} is lost at some rate in {round(value * n)} of {n} curves, clearly in {round(low * n)}"
    )
    return {
        "value": value,
        "low": low,
        "high": max(high, value),
        "n": n,
        "interval": COUNTS,
        "reason": "",
        "detail": detail,
        "loss": f"{limit:g}",
    }


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
        nothing = {"value": np.nan, "low": np.nan, "high": np.nan, "n": 0, "interval": EXTREMES, "loss": loss}
        return {"dataset": names, "first": "", "last": ""} | nothing | {"reason": reason, "detail": reason}
    low, key, first, last = max(pairs, key=lambda pair: pair[0])
    return {
        "dataset": ", ".join(dict.fromkeys([first["dataset"], last["dataset"]])),
        "value": last["knee"] / first["knee"] if np.isfinite(last["knee"]) else np.nan,
        "low": low,
        "high": last["knee_high"] / first["knee_low"],
        "n": first["n"] + last["n"],
        "interval": f"{EXTREMES}, of the two that differ most",
        "reason": "",
        "first": first[name],
        "last": last[name],
        "loss": loss,
        "detail": f"{key}, {loss} AUC lost: {', '.join(f'{knee[name]} {_words(knee)}' for knee in (first, last))}",
    }


def _words(row: dict[str, Any]) -> str:
    if np.isinf(row["knee_low"]):
        return "not up to the highest rate"
    high = "over the highest rate" if np.isinf(row["knee_high"]) else f"{row['knee_high']:.1e}"
    knee = "not up to the highest rate" if np.isinf(row["knee"]) else f"{row['knee']:.1e}"
    return f"{knee} [{row['knee_low']:.1e}, {high}]"


def summarise_models(table: "pd.DataFrame") -> "pd.DataFrame":
    """`summarise` of each trained model; of models that differ in their training seed, as one (`across_models`)."""
    return across_models([summarise(trials) for _, trials in table.groupby("checkpoint", sort=False)])


def claims(table: "pd.DataFrame", losses: Sequence[float] = LOSSES) -> "pd.DataFrame":
    """All findings on claim C3, on all trials and on thirds of them.

    Args:
        table: trials of campaigns of `BitFlip` over rates.
        losses: as of `rate_at_loss`.
    """
    return by_thirds(lambda trials: knee_claims(summarise_models(trials), losses), table)
