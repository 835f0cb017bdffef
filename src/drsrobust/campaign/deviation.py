"""How far outputs deviate by a model's sizes: intervals, trends over factors, and what each component contributes (E2)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from drsrobust._names import unknown
from drsrobust.campaign.dummy import FACTORS
from drsrobust.campaign.factors import ladders
from drsrobust.campaign.statistics import LEVEL, bootstrap_interval, mean_interval, quantile_interval
from drsrobust.campaign.summary import BOUNDS, ENDS

if TYPE_CHECKING:
    import pandas as pd

SHARES = ("deviated_0.01", "deviated_0.1")
VALUE = SHARES[0]
FALLS, DEPENDS = "falls", "depends"
_CELL = ["protocol", *FACTORS]


def deviation_summary(table: "pd.DataFrame", level: float = LEVEL) -> "pd.DataFrame":
    """One row per protocol, cell, target and rate.

    Args:
        table: as `dummy_trials` returns it, of one or both protocols.
        level: of the intervals.

    Returns:
        the columns that name the condition; `n_inputs`, `bits`, `present`, `n` (trials); `raised` (share of them); means over
        the trials that did not raise: `bits_flipped`, `nan_inputs`, `inf_inputs`, and with `_low` and `_high` (Student's t;
        where all trials are alike, what n trials may have missed) `deviated_0.01`, `deviated_0.1` and `spearman`; and the
        median over trials of `median_change`, with its interval between order statistics.
    """
    import pandas as pd

    rows = []
    for condition, trials in table.groupby([*_CELL, "target", "ber"], sort=False):
        row = dict(zip([*_CELL, "target", "ber"], condition, strict=True))
        row |= {name: trials[name].iloc[0] for name in ("n_inputs", "bits", "present")}
        row |= {"n": len(trials), "raised": float(trials[VALUE].isna().mean())}
        row |= {name: float(trials[name].astype(float).mean()) for name in ("bits_flipped", "nan_inputs", "inf_inputs")}
        for name in (*SHARES, "spearman"):
            interval = mean_interval(_known(trials, name), level, BOUNDS[name])
            row |= zip((f"{name}{end}" for end in ENDS), interval, strict=True)
        changes = _known(trials, "median_change")
        with np.errstate(invalid="ignore"):  # between infinities nothing is interpolated
            _, *interval = quantile_interval(changes, 0.5, level)
        median = float(np.median(changes)) if len(changes) else float("nan")
        row |= zip((f"median_change{end}" for end in ENDS), (median, *interval), strict=True)
        rows.append(row)
    return pd.DataFrame(rows)


def factor_trends(
    table: "pd.DataFrame",
    claims: Mapping[str, str],
    *,
    ber: float,
    value: str = VALUE,
    level: float = LEVEL,
) -> "pd.DataFrame":
    """What each factor does to the deviation at one rate, by protocol and target.

    Robustness falls with a factor where the deviation is larger at its greatest level than at its least. All differences
    are taken within a trial number (errors of one number are alike at all levels), and their mean over trials has an interval
    by Student's t (where all trials agree, with what they may have missed). In a full grid each is a mean over all settings of
    the other factors. If a model raised, all its outputs count as deviating; by other metrics the trial number is left out.

    Args:
        table: as `dummy_trials` returns it.
        claims: factor -> `falls` (robustness falls with it) or `depends` (it changes, in whichever direction).
        ber: nominal rate.
        value: which metric; a larger one is a larger deviation.
        level: of the intervals.

    Returns:
        one row per protocol, target and factor with two levels or more: `least`, `greatest` level, the mean deviation there
        (`at_least`, `at_greatest`), their difference `change` with `change_low` and `change_high`; `up` and `down`, numbers of
        steps between neighbouring levels at which the deviation surely rises or falls (level 1 - (1 - level) / steps each,
        Bonferroni), of `steps`; `differs`, whether the change or any step is surely not 0 (Bonferroni over all of them);
        `n` trials; `claim`; and `verdict`. Of `falls`: `reproduced` where the change is surely positive and no step goes
        down, `partly` where one does, `not` else. Of `depends`: `reproduced` where it `differs`, else `not`.

    Raises:
        ValueError: an unknown factor or claim, or a rate that the table does not hold.
    """
    import pandas as pd

    for factor, claim in claims.items():
        if factor not in FACTORS:
            raise unknown("factor", factor, FACTORS)
        if claim not in (FALLS, DEPENDS):
            raise unknown(f"claim of {factor}", claim, (FALLS, DEPENDS))
    if not (table["ber"] == ber).any():
        raise unknown("rate", f"{ber:g}", [f"{one:g}" for one in table["ber"].unique()])
    rows = []
    for (protocol, target), here in table[table["ber"] == ber].groupby(["protocol", "target"], sort=False):
        by_cell = here.pivot(index="trial", columns=list(FACTORS), values=value).astype(float)
        by_cell = (by_cell.fillna(1.0) if value in SHARES else by_cell).dropna()
        cells = [dict(zip(FACTORS, cell, strict=True)) for cell in by_cell.columns]
        for factor, claim in claims.items():
            if len(levels := sorted({cell[factor] for cell in cells})) < 2:
                continue
            found = [by_cell[[tuple(cell.values()) for cell in ladder]].to_numpy() for ladder in ladders(cells, factor)]
            row = {"protocol": protocol, "target": target, "factor": factor, "least": levels[0], "greatest": levels[-1]}
            row |= _trend(np.mean(found, axis=0), level, BOUNDS.get(value)) | {"claim": claim}
            rows.append(row | {"verdict": _verdict(row, claim)})
    return pd.DataFrame(rows)


def _trend(values: np.ndarray, level: float, bounds: tuple[float, float] | None) -> dict[str, float]:
    """Of values [trials, levels], within bounds."""
    bounds = bounds and (bounds[0] - bounds[1], bounds[1] - bounds[0])  # of differences
    whole = values[:, -1] - values[:, 0]
    change = mean_interval(whole, level, bounds)
    row = {"at_least": float(values[:, 0].mean()), "at_greatest": float(values[:, -1].mean())}
    row |= zip((f"change{end}" for end in ENDS), change, strict=True)
    pairs = [values[:, after] - values[:, before] for before, after in pairwise(range(values.shape[1]))]
    steps = [mean_interval(pair, 1 - (1 - level) / len(pairs), bounds) for pair in pairs]
    anywhere = [mean_interval(pair, 1 - (1 - level) / (len(pairs) + 1), bounds) for pair in (whole, *pairs)]
    up, down = sum(low > 0 for _, low, _ in steps), sum(high < 0 for _, _, high in steps)
    differs = any(low > 0 or high < 0 for _, low, high in anywhere)
    return row | {"up": up, "down": down, "steps": len(steps), "differs": differs, "n": len(values)}


def _verdict(row: Mapping[str, float], claim: str) -> str:
    if claim == DEPENDS:
        return "reproduced" if row["differs"] else "not"
    if not row["change_low"] > 0:
        return "not"
    return "partly" if row["down"] else "reproduced"


def component_shares(
    table: "pd.DataFrame", parts: Sequence[str] = ("mlp", "embedding"), *, ber: float, level: float = LEVEL
) -> "pd.DataFrame":
    """What errors in each of two components do at one rate: in total, and per bit that is wrong.

    Args:
        table: as `dummy_trials` returns it, with trials of both.
        parts: the two targets; shares are of the first.
        ber: nominal rate.
        level: of the intervals.

    Returns:
        one row per protocol and cell: `n` trials; `bits_share`, the share of the two components' bits that are the first's;
        `share`, its part of what errors do in either: mean deviation by errors in it, over the sum of both means (bootstrap
        over trials; NaN where no trial deviated); `per_bit_<part>`, inputs' share that deviates by over 1 % per bit that is
        wrong, on average (the rate times all bits), each with `_low` and `_high`; `verdict`: whether the first does `more`
        per bit than the second, or `less`, or `unclear`, by whether these two intervals overlap.
    """
    import pandas as pd

    rows = []
    for cell, here in table[table["ber"] == ber].groupby(_CELL, sort=False):
        row = dict(zip(_CELL, cell, strict=True))
        trials = [here[here["target"] == part].sort_values("trial") for part in parts]
        if empty := [part for part, one in zip(parts, trials, strict=True) if not len(one)]:
            raise ValueError(f"the table has no trials with errors in {empty[0]!r} at {ber:g}")
        both = np.stack([one[VALUE].to_numpy(float) for one in trials])
        first, second = np.nan_to_num(both, nan=1.0)  # of a model that raised all outputs count as deviating
        bits = [float(one["bits"].iloc[0]) for one in trials]
        row |= {"n": len(first), "bits_share": bits[0] / sum(bits)}
        row |= zip((f"share{end}" for end in ENDS), _share(first, second, level), strict=True)
        ends = []
        for part, values, one, size in zip(parts, (first, second), trials, bits, strict=True):
            wrong = float(one["present"].iloc[0]) * size
            per_bit = [number / wrong for number in mean_interval(values, level, (0.0, 1.0))]
            row |= zip((f"per_bit_{part}{end}" for end in ENDS), per_bit, strict=True)
            ends.append(per_bit)
        (_, low, high), (_, other_low, other_high) = ends
        row["verdict"] = "more" if low > other_high else "less" if high < other_low else "unclear"
        rows.append(row)
    return pd.DataFrame(rows)


def _share(first: np.ndarray, second: np.ndarray, level: float) -> tuple[float, float, float]:
    """Mean of first over the sum of both means, and its interval. Where one of them never deviated, n trials may have missed
    what its own interval leaves room for."""
    if not (first.any() or second.any()):
        return (float("nan"),) * 3
    if first.any() and second.any():
        return bootstrap_interval(_of_both, first, second, level=level)
    seen, unseen = (first, second) if first.any() else (second, first)
    _, _, most = mean_interval(unseen, level, (0.0, 1.0))
    room = most / (most + seen.mean())
    return (1.0, 1.0 - room, 1.0) if first.any() else (0.0, 0.0, room)


def _of_both(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
    return first.mean(axis) / (first.mean(axis) + second.mean(axis))


def _known(trials: "pd.DataFrame", name: str) -> np.ndarray:
    return trials[name].dropna().to_numpy(float)
