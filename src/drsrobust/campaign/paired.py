"""What protection is worth: the share of lost AUC that comes back, judged on the same error maps with it and without."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust.campaign.conditions import NONE
from drsrobust.campaign.schema import CONDITION
from drsrobust.campaign.statistics import LEVEL, bootstrap_interval, mean_interval, wilson
from drsrobust.campaign.summary import DROP, ENDS

if TYPE_CHECKING:
    import pandas as pd

_SAME = [column for column in CONDITION if column != "mitigation"]


def recovery(table: "pd.DataFrame", *, level: float = LEVEL, resamples: int = 9999, seed: int = 0) -> "pd.DataFrame":
    """What each mitigation gives back of the AUC that the same errors cost without it.

    Trials are paired by their seed, from which their error map follows. Recovery is a ratio of means over trials, (protected -
    faulty) / (golden - faulty), never a mean of ratios; golden is the AUC of the model without errors and without protection,
    so that what a mitigation costs without errors counts against it. Its interval is a bootstrap one over pairs
    (`bootstrap_interval`). Where the mean loss is under 0.001 AUC, or not surely over 0 (as where a few trials lose all that is
    lost, of which no bootstrap can make an interval), there is nothing to take shares of, and it is blank (NaN).

    Args:
        table: of one or more campaigns with `mitigations=[None, ...]`, one row per trial.
        level: of the intervals. Of the best of k rows use 1 - 0.05 / k (Bonferroni): it was chosen after the fact.
        resamples, seed: of the bootstrap.

    Returns:
        one row per condition and mitigation, in the table's order: the condition's columns; `n` trials; `raised`, the share
        of them in which the model raised, with the mitigation or without, so that there is no AUC: they are counted as
        `harmed`, and are in no mean; `auc_golden`; means over the other trials, each with `_low` and `_high`: `lost` (golden -
        faulty), `auc_faulty`, `auc` (protected) and `gained` (protected - faulty, paired) by Student's t, `recovery` by
        bootstrap; and `harmed`, the share of trials that lose over 0.001 AUC (or raise) with the mitigation, and
        `harmed_faulty`, without it (Wilson). `attrs["interval"]`: of `recovery`, for `caption`.

    Raises:
        ValueError: a condition without unprotected trials, mitigations that met other trials than these, trials that stand
            twice, several trained models or sets of rows in one condition, or no mitigation at all.
    """
    import pandas as pd

    rows = []
    for condition, group in table.groupby(_SAME, sort=False, dropna=False):
        about = dict(zip(_SAME, condition, strict=True))
        trials = _by_seed(about, group)
        for name in group["mitigation"].drop_duplicates():
            if name != NONE:
                both = _paired(about, name, trials)
                row = {column: about.get(column, name) for column in CONDITION}
                rows.append(row | _numbers(both, level, resamples, seed))
    if not rows:
        raise ValueError("the table holds no protected trials; give the campaign mitigations=[None, ...]")
    found = pd.DataFrame(rows)
    found.attrs["interval"] = (
        f"{100 * level:.4g}% bootstrap intervals of a ratio of means, over pairs of trials with the same error map; blank "
        f"where the mean loss is under {DROP} AUC or not surely over 0"
    )
    return found


def _by_seed(about: dict, group: "pd.DataFrame") -> "dict[str, pd.DataFrame]":
    """The trials of one condition by mitigation, each indexed by seed."""
    text = f"{about['error_model']} at {about['rate']} in {about['target']} of {about['model']} on {about['dataset']}"
    for column, thing in (("checkpoint", "trained models"), ("data", "sets of rows")):
        if (several := group[column].nunique()) > 1:
            raise ValueError(f"{text} holds trials of {several} {thing} (column {column!r}); judge them one by one")
    trials = {name: here.set_index("seed") for name, here in group.groupby("mitigation", sort=False)}
    if NONE not in trials:
        raise ValueError(
            f"{text} has no unprotected trials to compare {', '.join(trials)} with; give the campaign mitigations=[None, ...]"
        )
    for name, here in trials.items():
        if not here.index.is_unique:
            raise ValueError(f"{text}: trials with mitigation {name} stand twice in the table; drop the doubles")
    return trials


def _paired(about: dict, name: str, trials: "dict[str, pd.DataFrame]") -> "pd.DataFrame":
    """AUC with the mitigation (`auc`), without (`auc_faulty`) and without errors, by trial."""
    plain, protected = trials[NONE], trials[name]
    if alone := len(plain.index.symmetric_difference(protected.index)):
        raise ValueError(
            f"{about['error_model']} at {about['rate']}: {name} has {len(protected)} trials and no mitigation {len(plain)}, "
            f"and {alone} of them have no partner with the same seed; run both to the same number of trials, with one seed"
        )
    # In the order of seeds: a table in another order gives the same bootstrap.
    both = plain[["auc", "auc_golden"]].rename(columns={"auc": "auc_faulty"}).join(protected[["auc"]]).sort_index()
    return both.astype(float)


def _numbers(both: "pd.DataFrame", level: float, resamples: int, seed: int) -> dict:
    judged = both.dropna()
    faulty, protected, golden = (judged[column].to_numpy() for column in ("auc_faulty", "auc", "auc_golden"))
    lost, gained = golden - faulty, protected - faulty
    row = {"n": len(both), "raised": 1 - len(judged) / len(both), "auc_golden": float(both["auc_golden"].iloc[0])}
    for name, values in (("lost", lost), ("auc_faulty", faulty), ("auc", protected), ("gained", gained)):
        row |= zip((f"{name}{end}" for end in ENDS), mean_interval(values, level), strict=True)
    share = (float("nan"),) * 3
    if len(judged) and lost.mean() >= DROP and row["lost_low"] > 0:
        share = bootstrap_interval(_ratio, gained, lost, level=level, resamples=resamples, seed=seed)
    row |= zip((f"recovery{end}" for end in ENDS), share, strict=True)
    for name, column in (("harmed", "auc"), ("harmed_faulty", "auc_faulty")):
        kept = (both["auc_golden"] - both[column] <= DROP).sum()  # where it raised there is no AUC, and nothing is kept
        row |= zip((f"{name}{end}" for end in ENDS), wilson(len(both) - int(kept), len(both), level), strict=True)
    return row


def _ratio(gained: np.ndarray, lost: np.ndarray, axis: int) -> np.ndarray:
    return gained.mean(axis) / lost.mean(axis)
