"""The share of a lost metric that a mitigation recovers, from trials with and without it on the same error maps."""

from typing import TYPE_CHECKING

import numpy as np

from drsrobust._choices import unknown
from drsrobust.statistics.columns import CONDITION, ENDS, NONE, check_confidence, check_table, identifying
from drsrobust.statistics.headline import Headline, golden
from drsrobust.statistics.intervals import CONFIDENCE, stringer_interval
from drsrobust.statistics.strata import DROP, FEW_TRIALS, LOSS_IS_BOUNDED, STRATUM, WEIGHT, Strata, check_trials

if TYPE_CHECKING:
    import pandas as pd

_SAME = [column for column in CONDITION if column != "mitigation"]


def recovery(table: "pd.DataFrame", *, confidence: float = CONFIDENCE, metric: str | None = None) -> "pd.DataFrame":
    """The share of the AUC lost by errors that each mitigation recovers, on the same error maps; or of another headline.

    Trials are paired by their seed, from which their error map follows. Recovery is a ratio of means over trials, (protected -
    faulty) / (golden - faulty); golden is the AUC without errors and without mitigation, so that a mitigation's own cost counts
    against it. Its interval is Fieller's for a ratio of paired means (E. C. Fieller, JRSS-B 16, 1954). Where fewer than 12 of
    the harmed trials (over 0.001 AUC lost without the mitigation) keep over half of their loss, more such trials may have been
    missed: the low end is then at most that of Stringer's bound over the harmed trials, in which a missed one loses as much as
    the worst trial. The high end is widened in the same way where fewer than 12 regain half of their loss. Recovery is blank
    (NaN) where the mean loss is under 0.001 AUC or not clearly over 0; `why` says so.

    Args:
        table: of one or more campaigns with `mitigations=[None, ...]`, one row per trial.
        confidence: of the intervals. For the best of k rows use 1 - 0.05 / k (Bonferroni).
        metric: a headline, as `ndcg@10` of rankings, whose name then takes the place of `auc` below; None: the first one.

    Returns:
        one row per condition and mitigation, in the table's order: the condition's columns, `mitigation_id`; `n` trials;
        `raised`, the share of trials whose model raised, with the mitigation or without: they have no AUC, so they are in no
        mean and count as harmed; `auc_golden`; means over the other trials, each with `_low` and `_high`: `lost` (golden -
        faulty), `auc_faulty`, `auc` (protected) and `gained` (protected - faulty, paired) by `Strata.mean_interval`, and
        `recovery`; `why`, a text where `recovery` or an end of its interval is NaN, else None; `trials_harmed`, the share of
        trials that lose over 0.001 AUC (or raise) with the mitigation, and `trials_harmed_faulty` without it (Wilson). A raised
        trial counts as an AUC of 0 at the low end of `auc_faulty` and `auc` and at the high end of `lost`; at the low ends of
        `gained` and `recovery` as an AUC of 0 with the mitigation and as the golden AUC without. `attrs["interval"]` describes
        the interval of `recovery`.

    Raises:
        ValueError: trials without a headline, or without this one, a condition without unprotected trials, mitigations with
            other trials than these, duplicate trials, several trained models or sets of rows in a condition, or no mitigation.
    """
    import pandas as pd

    check_table(table, ("seed", *_SAME, "mitigation"))
    if metric not in (None, *golden(table)):
        raise unknown("metric", metric, golden(table))
    check_confidence(confidence)
    check_trials(table)
    rows, units = [], []
    for condition, group in table.groupby(_SAME, sort=False, dropna=False):
        labels = dict(zip(_SAME, condition, strict=True))
        headline = next((each for each in Headline.of(group) if metric in (None, each.name)), None)
        if headline is None:
            raise ValueError(
                f"{_text(labels)} has no {metric or 'metric'} without errors, of which a loss could be recovered"
            )
        units.append(headline.unit)
        trials = _by_seed(labels, group)
        for key in trials:
            if key[0] != NONE:
                pairs = _paired(labels, key, trials, headline.name)
                row = labels | dict(zip(identifying(table, ["mitigation"]), key, strict=True))
                rows.append(row | _numbers(pairs, headline, confidence))
    if not rows:
        raise ValueError("the table holds no protected trials; give the campaign mitigations=[None, ...]")
    recovered = pd.DataFrame(rows)
    unit = " or ".join(dict.fromkeys(units))
    recovered.attrs["interval"] = (
        f"{100 * confidence:.4g}% intervals of a ratio of means (Fieller's; Stringer's bound where few harmed trials remain "
        "so), over pairs of trials with the same error map; blank where the mean loss is under "
        f"{DROP} {unit} or not clearly over 0"
    )
    return recovered


def _text(labels: dict) -> str:
    return (
        f"{labels['error_model']} at {labels['rate']} in {labels['target']} of {labels['model']} on {labels['dataset']}"
    )


def _by_seed(labels: dict, group: "pd.DataFrame") -> "dict[tuple, pd.DataFrame]":
    """The trials of one condition by mitigation (its label first), in the table's order, each indexed by seed."""
    text = _text(labels)
    for column, thing in (("checkpoint", "trained models"), ("data", "sets of rows")):
        if (several := group[column].nunique()) > 1:
            raise ValueError(f"{text} holds trials of {several} {thing} (column {column!r}); compare them one by one")
    keys = identifying(group, ["mitigation"])
    trials = {key: part.set_index("seed") for key, part in group.groupby(keys, sort=False, dropna=False)}
    names = [name for name, *_ in trials]
    if NONE not in names:
        raise ValueError(
            f"{text} has no unprotected trials to compare {', '.join(names)} with; give the campaign mitigations=[None, ...]"
        )
    return trials


def _paired(labels: dict, key: tuple, trials: "dict[tuple, pd.DataFrame]", metric: str) -> "pd.DataFrame":
    """The metric with the mitigation (`protected`) and without (`faulty`), by trial."""
    name, protected = key[0], trials[key]
    plain = next(part for (label, *_), part in trials.items() if label == NONE)
    if n_unpaired := len(plain.index.symmetric_difference(protected.index)):
        raise ValueError(
            f"{labels['error_model']} at {labels['rate']}: {name} has {len(protected)} trials and no mitigation {len(plain)}, "
            f"and {n_unpaired} of them have no partner with the same seed; run both to the same number of trials, with one seed"
        )
    plain_columns = [metric, *(name for name in (STRATUM, WEIGHT) if name in plain)]
    protected_columns = [metric, *(name for name in [LOSS_IS_BOUNDED] if name in protected)]
    faulty = plain[plain_columns].rename(columns={metric: "faulty"})
    pairs = faulty.join(protected[protected_columns].rename(columns={metric: "protected"})).sort_index()
    return pairs.astype({"faulty": float, "protected": float})


def _numbers(pairs: "pd.DataFrame", headline: Headline, confidence: float) -> dict:
    raised = pairs[["protected", "faulty"]].isna().any(axis=1)
    faulty_losses = headline.loss(pairs["faulty"].to_numpy())
    strata = Strata.of(pairs.assign(outcome=np.where(raised, "raised", "ok")), faulty_losses)
    row = {"n": len(pairs), "raised": strata.mean(raised.to_numpy(float)), f"{headline.name}_golden": headline.golden}
    values = _values(pairs[["protected", "faulty"]].mask(raised, axis=0), headline)
    worst_value = headline.worst_of(headline.name)
    least = _values(pairs.fillna({"protected": worst_value, "faulty": headline.golden}), headline)
    worst = _values(pairs.fillna({"protected": worst_value, "faulty": worst_value}), headline)
    worst |= {"gained": least["gained"]}
    low, high = headline.bounds
    bounds = {name: headline.bounds for name in values} | {"gained": (low - high, high - low)}
    for name, bound in (bounds | {"lost": headline.bounds_of(headline.drop)}).items():
        mean, low, high = strata.mean_interval(values[name], bound, confidence)
        if row["raised"]:
            _, lowest, highest = strata.mean_interval(worst[name], bound, confidence)
            is_high = name == "lost" or (name != "gained" and not headline.higher_is_better)
            low, high = (low, np.fmax(high, highest)) if is_high else (np.fmin(low, lowest), high)
        row |= zip((f"{name}{end}" for end in ENDS), (mean, float(low), float(high)), strict=True)
    share, why = (float("nan"),) * 3, _no_loss(row, headline)
    if why is None:
        share = _share(strata, values, confidence)
        if row["raised"] and strata.mean(least["lost"]) > 0:
            share = (share[0], float(np.fmin(share[1], _share(strata, least, confidence)[1])), share[2])
        if np.isnan(share).any():
            harmed = int(np.count_nonzero(values["lost"] > DROP))
            few = (
                f"{harmed} of {len(pairs)} trials lose over {DROP} {headline.unit} without it, and an interval needs 2"
            )
            why = few if harmed < 2 else "the mean loss may be 0 by Fieller's interval, which has no end then"
    row |= zip((f"recovery{end}" for end in ENDS), share, strict=True)
    row["why"] = why
    for name, column in (("trials_harmed", "protected"), ("trials_harmed_faulty", "faulty")):
        harmed = ~(headline.loss(pairs[column]) <= DROP)  # NaN of a raised trial counts as harmed
        row |= zip((f"{name}{end}" for end in ENDS), strata.share(harmed.to_numpy(), confidence), strict=True)
    return row


def _no_loss(row: dict, headline: Headline) -> str | None:
    """Why there is no loss of which a share may be recovered; None if there is one."""
    if np.isnan(row["lost"]):
        return "the model raised in all trials"
    lost = f"the mean loss without it is {row['lost']:.2g} {headline.unit}"
    if row["lost"] < DROP:
        return f"{lost}, under {DROP}"
    return None if row["lost_low"] > 0 else f"{lost}, not clearly over 0: its interval begins at {row['lost_low']:.2g}"


def _values(pairs: "pd.DataFrame", headline: Headline) -> dict[str, np.ndarray]:
    """Of each pair of trials: float64 [n] each."""
    faulty, protected = pairs["faulty"].to_numpy(), pairs["protected"].to_numpy()
    gained = protected - faulty if headline.higher_is_better else faulty - protected
    return {
        "lost": headline.loss(faulty),
        f"{headline.name}_faulty": faulty,
        headline.name: protected,
        "gained": gained,
    }


def _share(strata: Strata, values: dict[str, np.ndarray], confidence: float) -> tuple[float, float, float]:
    """Recovery and its interval."""
    gained, lost = values["gained"], values["lost"]
    share, low, high = strata.ratio(gained, lost, confidence)
    harmed = lost > DROP  # NaN is not
    if harmed.sum() < 2:
        return share, float("nan"), float("nan")
    remaining, worst, mean = (lost - gained)[harmed], np.nanmax(lost), lost[harmed].mean()
    failed = remaining > lost[harmed] / 2
    if failed.sum() < FEW_TRIALS:
        low = min(
            low,
            1
            - stringer_interval(np.minimum(remaining, worst), (min(0.0, remaining.min()), worst), confidence)[2] / mean,
        )
    if (~failed).sum() < FEW_TRIALS:
        gains = np.minimum(gained[harmed], worst)
        high = max(high, stringer_interval(gains, (min(0.0, gains.min()), worst), confidence)[2] / mean)
    return share, float(low), float(high)
