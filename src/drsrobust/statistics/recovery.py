"""The share of lost AUC that a mitigation recovers, from trials with and without it on the same error maps."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics.columns import CONDITION, ENDS, FIXED, NONE, identifying
from drsrobust.statistics.intervals import CONFIDENCE, bootstrap_interval, rule_of_three, wilson
from drsrobust.statistics.stopping import UNIT
from drsrobust.statistics.summary import DROP, metric_interval, stopping_of

if TYPE_CHECKING:
    import pandas as pd

_SAME = [column for column in CONDITION if column != "mitigation"]


def recovery(
    table: "pd.DataFrame", *, confidence: float = CONFIDENCE, resamples: int = 9999, seed: int = 0
) -> "pd.DataFrame":
    """The share of the AUC lost by errors that each mitigation recovers, on the same error maps.

    Trials are paired by their seed, from which their error map follows. Recovery is a ratio of means over trials, (protected -
    faulty) / (golden - faulty); golden is the AUC without errors and without mitigation, so that a mitigation's own cost counts
    against it. Its interval is a bootstrap one over pairs (`bootstrap_interval`). It is blank (NaN) where the mean loss is
    under 0.001 AUC, or not clearly over 0: a bootstrap fails if a few trials lose everything. Where all pairs have the same
    recovery, as with an exact repair, a share of up to `rule_of_three(n)` of error maps may have any AUC from 0 to 1. Trials
    stopped by their AUC (`precision=`) have no bootstrap interval; its ends are NaN.

    Args:
        table: of one or more campaigns with `mitigations=[None, ...]`, one row per trial.
        confidence: of the intervals. For the best of k rows use 1 - 0.05 / k (Bonferroni).
        resamples, seed: of the bootstrap.

    Returns:
        one row per condition and mitigation, in the table's order: the condition's columns, `mitigation_id`; `n` trials;
        `raised`, the share of trials whose model raised, with the mitigation or without: they have no AUC, so they are in no
        mean and count as harmed; `auc_golden`; means over the other trials, each with `_low` and `_high`: `lost` (golden -
        faulty), `auc_faulty`, `auc` (protected) and `gained` (protected - faulty, paired) by `metric_interval`, `recovery` by
        bootstrap; `trials_harmed`, the share of trials that lose over 0.001 AUC (or raise) with the mitigation, and
        `trials_harmed_faulty` without it (Wilson). A raised trial counts as an AUC of 0 at the low end of `auc_faulty` and
        `auc` and at the high end of `lost`; at the low ends of `gained` and `recovery` as an AUC of 0 with the mitigation and
        as the golden AUC without. `attrs["interval"]` describes the interval of `recovery`.

    Raises:
        ValueError: a condition without unprotected trials, mitigations with other trials than these, duplicate trials, several
            trained models or sets of rows in one condition, or no mitigation.
    """
    import pandas as pd

    rows = []
    for condition, group in table.groupby(_SAME, sort=False, dropna=False):
        about = dict(zip(_SAME, condition, strict=True))
        trials = _by_seed(about, group)
        for key in trials:
            if key[0] != NONE:
                both = _paired(about, key, trials)
                row = about | dict(zip(identifying(table, ["mitigation"]), key, strict=True))
                stopping = stopping_of(group, _text(about))
                rows.append(row | _numbers(both, stopping, confidence, resamples, seed))
    if not rows:
        raise ValueError("the table holds no protected trials; give the campaign mitigations=[None, ...]")
    found = pd.DataFrame(rows)
    found.attrs["interval"] = (
        f"{100 * confidence:.4g}% bootstrap intervals of a ratio of means, over pairs of trials with the same error map; blank "
        f"where the mean loss is under {DROP} AUC or not clearly over 0"
    )
    return found


def _text(about: dict) -> str:
    return f"{about['error_model']} at {about['rate']} in {about['target']} of {about['model']} on {about['dataset']}"


def _by_seed(about: dict, group: "pd.DataFrame") -> "dict[tuple, pd.DataFrame]":
    """The trials of one condition by mitigation (its label first), in the table's order, each indexed by seed."""
    text = _text(about)
    for column, thing in (("checkpoint", "trained models"), ("data", "sets of rows")):
        if (several := group[column].nunique()) > 1:
            raise ValueError(f"{text} holds trials of {several} {thing} (column {column!r}); compare them one by one")
    keys = identifying(group, ["mitigation"])
    trials = {key: here.set_index("seed") for key, here in group.groupby(keys, sort=False, dropna=False)}
    names = [name for name, *_ in trials]
    if NONE not in names:
        raise ValueError(
            f"{text} has no unprotected trials to compare {', '.join(names)} with; give the campaign mitigations=[None, ...]"
        )
    for (name, *_), here in trials.items():
        if not here.index.is_unique:
            raise ValueError(f"{text}: trials with mitigation {name} are in the table twice; drop the duplicates")
    return trials


def _paired(about: dict, key: tuple, trials: "dict[tuple, pd.DataFrame]") -> "pd.DataFrame":
    """AUC with the mitigation (`auc`), without (`auc_faulty`) and without errors, by trial."""
    name, protected = key[0], trials[key]
    plain = next(here for (label, *_), here in trials.items() if label == NONE)
    if alone := len(plain.index.symmetric_difference(protected.index)):
        raise ValueError(
            f"{about['error_model']} at {about['rate']}: {name} has {len(protected)} trials and no mitigation {len(plain)}, "
            f"and {alone} of them have no partner with the same seed; run both to the same number of trials, with one seed"
        )
    # In the order of seeds: a table in another order gives the same bootstrap.
    both = plain[["auc", "auc_golden"]].rename(columns={"auc": "auc_faulty"}).join(protected[["auc"]]).sort_index()
    return both.astype(float)


def _numbers(both: "pd.DataFrame", stopping: str, confidence: float, resamples: int, seed: int) -> dict:
    golden = float(both["auc_golden"].iloc[0])
    complete = both.dropna()
    row = {"n": len(both), "raised": 1 - len(complete) / len(both), "auc_golden": golden}
    bounds = {"lost": (golden - 1, golden), "auc_faulty": UNIT, "auc": UNIT, "gained": (-1.0, 1.0)}
    least = _values(both.fillna({"auc": 0.0, "auc_faulty": golden}))
    worst = _values(both.fillna(0.0)) | {"gained": least["gained"]}
    values = _values(complete)
    for name, bound in bounds.items():
        mean, low, high = metric_interval(values[name], bound, stopping, confidence)
        if row["raised"]:
            _, lowest, highest = metric_interval(worst[name], bound, stopping, confidence)
            low, high = (low, np.fmax(high, highest)) if name == "lost" else (np.fmin(low, lowest), high)
        row |= zip((f"{name}{end}" for end in ENDS), (mean, float(low), float(high)), strict=True)
    share = (float("nan"),) * 3
    if len(complete) and values["lost"].mean() >= DROP and row["lost_low"] > 0:
        options = {"confidence": confidence, "resamples": resamples, "seed": seed}
        share = _share(values, stopping, golden, **options)
        if row["raised"] and least["lost"].mean() > 0:
            share = (share[0], float(np.fmin(share[1], _share(least, stopping, golden, **options)[1])), share[2])
    row |= zip((f"recovery{end}" for end in ENDS), share, strict=True)
    for name, column in (("trials_harmed", "auc"), ("trials_harmed_faulty", "auc_faulty")):
        kept = (both["auc_golden"] - both[column] <= DROP).sum()  # NaN of a raised trial counts as harmed
        row |= zip((f"{name}{end}" for end in ENDS), wilson(len(both) - int(kept), len(both), confidence), strict=True)
    return row


def _values(both: "pd.DataFrame") -> dict[str, np.ndarray]:
    """Of each pair of trials: float64 [n] each."""
    faulty, protected, golden = (both[column].to_numpy() for column in ("auc_faulty", "auc", "auc_golden"))
    return {"lost": golden - faulty, "auc_faulty": faulty, "auc": protected, "gained": protected - faulty}


def _share(values: dict[str, np.ndarray], stopping: str, golden: float, **options) -> tuple[float, float, float]:
    """Recovery and its interval."""
    gained, lost = values["gained"], values["lost"]
    mean = float(gained.mean() / lost.mean())
    if stopping != FIXED:
        return mean, float("nan"), float("nan")
    ratios = gained * lost.mean() - lost * gained.mean()
    if len(lost) > 1 and abs(ratios).max() <= 1e-12:  # no resample differs but for rounding
        left = float((lost - gained).mean())
        room = rule_of_three(len(lost), options["confidence"]) / lost.mean()
        return mean, float(mean - room * (golden - left)), float(mean + room * (left - golden + 1))
    return bootstrap_interval(_ratio, gained, lost, **options)


def _ratio(gained: np.ndarray, lost: np.ndarray, axis: int) -> np.ndarray:
    return gained.mean(axis) / lost.mean(axis)
