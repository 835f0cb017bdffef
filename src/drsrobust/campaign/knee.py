"""Where AUC gives way: the bit error rate at which the mean loss passes a threshold (experiment E3)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.campaign.statistics import LEVEL
from drsrobust.campaign.summary import caption
from drsrobust.data import Split
from drsrobust.tensors import declared_groups

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

LOSSES = (0.001, 0.01)  # AUC
HALF = "half"  # of what the AUC has over a coin toss's 0.5
RESAMPLES = 2000
_KEYS = ["model", "dataset", "protocol", "target"]
HOW = (
    "first rate at which the mean AUC loss over error maps reaches the threshold (between two rates it is taken to grow by as "
    f"much per error); {LEVEL:.0%} interval: percentile bootstrap over error maps, each kept with all its rates"
)


def knees(
    table: "pd.DataFrame", losses: Sequence[float] = LOSSES, *, level: float = LEVEL, seed: int = 0
) -> "pd.DataFrame":
    """The rate at which the mean AUC loss passes each threshold, with its interval.

    Between two rates the mean loss is interpolated linearly in the rate, below the lowest one from 0: exact where errors act
    each for itself, so that twice as many cost twice as much. Trials of one number hold nested error maps over the rates, so
    they are resampled together; the interval speaks of other error maps in the same model. With few harmful maps at low rates
    it is as uncertain as they are few.

    Args:
        table: of one or more campaigns of `BitFlip` over rates, one row per trial; each trial at each rate.
        losses: thresholds, as AUC, ascending; the rate at which half of what the AUC has over 0.5 is lost is added.
        level: of confidence.
        seed: of the resampling.

    Returns:
        one row per model, data set, protocol, target and threshold: these, `bits` (eligible), `n` (trials), `loss` (the
        threshold, text), `auc_drop` (the same as AUC), `knee`, `knee_low`, `knee_high` (bit error rates; infinite where
        the loss stays below up to the highest rate) and `errors` (flips that the knee's rate brings on average).

    Raises:
        ValueError: no trials of `BitFlip`, a trial that lacks a rate, or losses that do not ascend from above 0.

    Example:
        >>> import pandas as pd
        >>> trials = [{"ber": ber, "trial": t, "auc_drop": d} for t in (0, 1) for ber, d in ((1e-6, 0.0), (1e-5, 0.02))]
        >>> same = {"model": "m", "dataset": "d", "protocol": "p", "target": "all", "error_model": "BitFlip", "places": 1000}
        >>> knees(pd.DataFrame(trials).assign(auc_golden=0.8, **same))[["loss", "knee"]].to_dict("list")
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
        loss = group.pivot(index="trial", columns="ber", values="auc_drop")
        there = group.pivot(index="trial", columns="ber", values="auc_golden").notna()
        if not there.to_numpy().all():
            raise ValueError(f"{', '.join(keys)}: some trials lack a rate; knees need every trial at every rate")
        values, rates = loss.to_numpy(np.float64), loss.columns.to_numpy(np.float64)
        golden, bits = float(group["auc_golden"].iloc[0]), int(group["places"].iloc[0])
        means = _means(values, np.ones((1, len(values))))
        drawn = np.random.default_rng(seed).multinomial(len(values), np.full(len(values), 1 / len(values)), RESAMPLES)
        again = _means(values, drawn)
        for name, limit in [*((f"{loss:g}", loss) for loss in losses), (HALF, (golden - 0.5) / 2)]:
            knee = float(crossing(means, rates, limit)[0])
            ends = [(1 - level) / 2, (1 + level) / 2]
            low, high = np.quantile(crossing(again, rates, limit), ends, method="nearest")
            row = dict(zip(_KEYS, keys, strict=True)) | {
                "bits": bits,
                "n": len(values),
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


def knee_verdict(table: "pd.DataFrame", found: "pd.DataFrame", whole: Sequence[str]) -> tuple[str, str]:
    """What a sweep says of claim C3: AUC holds until a knee, then collapses; where the knee lies depends on the model and the
    data set.

    A curve has a knee where the mean loss at its lowest rate is under the smallest threshold and half of what the AUC has over
    0.5 is lost at some rate. Knees differ where two of them (of the second threshold, under one protocol) have intervals that
    lie apart, between models of one data set and between data sets of one model. All of it is `reproduced`, part of it
    `partly`, no curve with a knee `not`.

    Args:
        table: as for `knees`.
        found: `knees(table)`.
        whole: the study's data sets that must be there for more than `partly`, by name without schema.

    Returns:
        the verdict, and the sentence that says why.
    """
    losses = list(dict.fromkeys(found["loss"]))
    limit = found.loc[found["loss"] == losses[0], "auc_drop"].iloc[0]
    lowest = table[table["ber"] == table["ber"].min()].groupby(_KEYS, sort=False)["auc_drop"].mean()
    wide = found.set_index(_KEYS)
    lost = wide.loc[wide["loss"] == HALF, "knee"]
    curves = len(lost)
    kneed = int(((lowest.reindex(lost.index) < limit) & np.isfinite(lost)).sum())
    middle = found[found["loss"] == losses[min(1, len(losses) - 2)]]
    by = {
        "models": any(_apart(group) for _, group in middle.groupby(["dataset", "protocol"])),
        "data sets": any(_apart(group) for _, group in middle.groupby(["model", "protocol"])),
    }
    missing = [name for name in whole if name not in {dataset.split("/")[0] for dataset in found["dataset"]}]
    text = f"{kneed} of {curves} curves hold and then lose half of their AUC over 0.5; " + "; ".join(
        f"knees of different {what} {'lie apart' if apart else 'do not surely differ'}" for what, apart in by.items()
    )
    if missing:
        text += (
            f"; of the study's data sets {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not among these"
        )
    if not kneed:
        return "not", text
    return "reproduced" if kneed == curves and all(by.values()) and not missing else "partly", text


def has_group(model: "nn.Module", name: str) -> bool:
    """Whether a model declares a group of parameters, as the study's models declare `as_released`."""
    return name in declared_groups(model)


def sweep_caption(summary: "pd.DataFrame", splits: Sequence[Split]) -> str:
    """As `caption`, of several data sets: their rows, models without errors, trials, interval, what varies.

    Args:
        summary: as `summarise` returns it, of campaigns on these splits.
        splits: the rows that were scored, one per data set.
    """
    here = [caption(summary[summary["dataset"] == split.dataset], split) for split in splits]
    # What is the same of all stands once, at the end.
    parts = [text.partition(f" {summary['n'].min()} trials per point") for text in here]
    if len({rest for _, _, rest in parts}) > 1 or not all(middle for _, middle, _ in parts):
        return " ".join(here)
    return " ".join(start for start, _, _ in parts) + parts[0][1] + parts[0][2]


def _apart(group: "pd.DataFrame") -> bool:
    """Whether two of the intervals have no rate in common."""
    return bool(group["knee_low"].max() > group["knee_high"].min())


def _means(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Mean losses [draws, rates] of trials [trials, rates] taken so many times [draws, trials]; trials that raised (NaN) are
    left out at their rate."""
    there = ~np.isnan(values)
    n = counts @ there
    return np.where(n > 0, counts @ np.where(there, values, 0.0) / np.maximum(n, 1), 0.0)
