"""Parameter vulnerability factor: the share of injections that make an output incorrect (Jiao et al., "PVF (Parameter
Vulnerability Factor): A Scalable Metric for Understanding AI Vulnerability Against SDCs in Model Parameters",
arXiv:2405.01741)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.extend import check_names, check_trials
from drsrobust.statistics import CONFIDENCE, Strata, check_confidence, check_table, identifying, wilson

if TYPE_CHECKING:
    import pandas as pd

# Definitions of an incorrect output; each is a metric, the share of incorrect outputs in a trial.
DEFINITIONS = {
    "decision_changed": "rows whose decision at the threshold changes",
    "list_changed": "users whose top-k list changes",
    "score_changed": "rows whose score moves by more than epsilon",
}


def pvf(table: "pd.DataFrame", by: Sequence[str] = ("target",), confidence: float = CONFIDENCE) -> "pd.DataFrame":
    """PVF of each group of trials, by up to three definitions of an incorrect output: those of the table's columns.

    `pvf` is the source's D / N: the share of injections that made at least one output incorrect, with its Wilson interval. It
    grows with the number of outputs, so `incorrect` is the mean share of outputs that an injection makes incorrect, with an
    interval by `Strata.mean_interval`, as in `summarise`: Stringer's where few injections make outputs incorrect. A trial whose
    model raised counts as incorrect in all outputs.

    Args:
        table: of a campaign, one row per trial, with columns `outcome` and any of `decision_changed`, `list_changed` and
            `score_changed`, also as `list_changed@10` or `decision_changed/<task>` (shares in [0, 1]; null where the model
            raised or the definition does not apply, as without users).
        by: columns to group by; `mitigation` adds `mitigation_id`, if the table has it.
        confidence: of the intervals.

    Returns:
        one row per group and definition, in the table's order: the group's columns, `definition`, `n` (trials with a value),
        `pvf`, `pvf_low`, `pvf_high`, `incorrect`, `incorrect_low`, `incorrect_high`. Where a definition is null in all trials
        that did not raise, it is null here, and n is 0.

    Raises:
        ValueError: columns that the table does not have, or no column of a definition; a trial that it holds twice; shares
            outside of [0, 1]; a group of several stratified conditions.

    Example:
        >>> import pandas as pd
        >>> trials = pd.DataFrame({"target": "all", "outcome": ["ok", "ok", "raised"], "decision_changed": [0.0, 0.5, None]})
        >>> trials = trials.assign(list_changed=None, score_changed=[0.0, 1.0, None])
        >>> pvf(trials)[["target", "definition", "n", "pvf", "incorrect"]]
          target        definition  n       pvf  incorrect
        0    all  decision_changed  3  0.666667   0.500000
        1    all      list_changed  0       NaN        NaN
        2    all     score_changed  3  0.666667   0.666667
    """
    import pandas as pd

    check_table(table)
    check_confidence(confidence)
    by = check_names("by", by)
    by = identifying(table, by) if "mitigation" in by else list(by)
    missing = [column for column in (*by, "outcome") if column not in table]
    if missing or not by:
        raise ValueError(f"PVF needs columns {', '.join(missing) or 'to group by'}; there are: {', '.join(table)}")
    definitions = {name: text for base, text in DEFINITIONS.items() for name in table if _base(name) == base}
    if not definitions:
        raise ValueError(
            f"PVF needs one or more of the columns {', '.join(DEFINITIONS)}, as of "
            f"Campaign(..., metrics=['decision_changed']); there are: {', '.join(table)}"
        )
    check_trials(table)
    defined = {name: bool(table[name].notna().any()) for name in definitions}
    rows = []
    for group, trials in table.groupby(by, sort=False, dropna=False):
        raised = (trials["outcome"] == "raised").to_numpy()
        for name in definitions:
            shares = pd.to_numeric(trials[name]).to_numpy(np.float64, na_value=np.nan).copy()
            # Where all trials of a group raised, the other groups show whether the definition applies.
            applies = not np.isnan(shares[~raised]).all() if (~raised).any() else defined[name]
            shares[raised] = 1.0
            measured = shares[~np.isnan(shares)] if applies else shares[:0]
            if not ((measured >= 0) & (measured <= 1)).all():
                raise ValueError(
                    f"column {name!r} holds {measured.min():g} to {measured.max():g}; shares lie between 0 and 1"
                )
            row = dict(zip(by, group, strict=True)) | {"definition": name, "n": len(measured)}
            share = mean = (float("nan"),) * 3
            if len(measured):
                strata = Strata.of(trials, shares)  # trials with incorrect outputs are the harmed ones
                mean = strata.mean_interval(shares, (0.0, 1.0), confidence)
                share = wilson(int((measured > 0).sum()), len(measured), confidence)
                if len(measured) == len(shares):
                    share = strata.share(shares > 0, confidence)
            row |= zip(("pvf", "pvf_low", "pvf_high"), share, strict=True)
            row |= zip(("incorrect", "incorrect_low", "incorrect_high"), mean, strict=True)
            rows.append(row)
    result = pd.DataFrame(rows)
    result.attrs = {
        "pvf": f"share of trials with an incorrect output, or that raised; {confidence:.0%} Wilson interval",
        "incorrect": f"mean share of incorrect outputs per trial; {confidence:.0%} interval by Student's t "
        "(Stringer's bound where few trials have incorrect outputs; where all trials agree, what they may have missed)",
        **definitions,
    }
    return result


def _base(column: str) -> str:
    """The metric of a column, without the length of its list and its task: of `list_changed@10` and `decision_changed/buy`."""
    return column.partition("/")[0].partition("@")[0]
