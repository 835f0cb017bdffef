"""Effects of sizes and components on the untrained dummy recommender: claims C1 and C2 (notebook 02).

The unit is the drawn model: intervals are over the means of models, so that they hold for another one.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from drsrobust._choices import unknown
from drsrobust.statistics.columns import ENDS
from drsrobust.statistics.intervals import CONFIDENCE, bootstrap_interval, mean_interval
from drsrobust.statistics.summary import known_bounds
from drsrobust_study.findings import COUNTS
from drsrobust_study.model_factors import FACTORS, SHARES, VALUE, ladders, unit_interval
from drsrobust_study.thirds import by_thirds

if TYPE_CHECKING:
    import pandas as pd

CLAIMS = ("above", "differs")  # from the least to the greatest level
EXPECTED = {"width": "above", "depth": "above", "embedding_dim": "above", "density": "differs"}  # of the deviation
_CELL = ["protocol", *FACTORS]


def factor_trends(
    table: "pd.DataFrame",
    claims: Mapping[str, str],
    *,
    ber: float,
    value: str = VALUE,
    confidence: float = CONFIDENCE,
) -> "pd.DataFrame":
    """Findings on claim C1: the effect of each factor on the deviation at one rate, by protocol and target.

    The unit is the drawn model: differences are taken between the means of models of one number, and intervals are over models.
    In a full grid each is a mean over all settings of the other factors. If a model raised, all its outputs count as deviating;
    by metrics that are no shares, the trial is dropped.

    Args:
        table: as `dummy_trials` returns it.
        claims: factor -> `above` (the deviation rises with it) or `differs` (it changes, in whichever direction).
        ber: nominal rate.
        value: which metric; a larger one is a larger deviation.
        confidence: of the intervals.

    Returns:
        one row per protocol, target and factor with two levels or more: `least`, `greatest` level, the mean deviation there
        (`at_least`, `at_greatest`), their difference `value` with `low` and `high` (Student's t over models); `up` and `down`,
        numbers of steps between neighbouring levels whose interval (Bonferroni over the steps) lies above or below 0, of
        `steps`; `n` models; `interval`, `claim` and `reason`.

    Raises:
        ValueError: an unknown factor or claim, or a rate that the table does not hold.
    """
    import pandas as pd

    for factor, claim in claims.items():
        if factor not in FACTORS:
            raise unknown("factor", factor, FACTORS)
        if claim not in CLAIMS:
            raise unknown(f"claim of {factor}", claim, CLAIMS)
    if not (table["ber"] == ber).any():
        raise unknown("rate", f"{ber:g}", [f"{rate:g}" for rate in table["ber"].unique()])
    rows = []
    for (protocol, target), group in table[table["ber"] == ber].groupby(["protocol", "target"], sort=False):
        by_cell = group.pivot(index=["drawn", "trial"], columns=list(FACTORS), values=value).astype(float)
        by_cell = (by_cell.fillna(1.0) if value in SHARES else by_cell).dropna()
        cells = [dict(zip(FACTORS, cell, strict=True)) for cell in by_cell.columns]
        if group["drawn"].nunique() > 1:
            by_cell = by_cell.groupby(level="drawn").mean()
        for factor, claim in claims.items():
            if len(levels := sorted({cell[factor] for cell in cells})) < 2:
                continue
            values = [
                by_cell[[tuple(cell.values()) for cell in ladder]].to_numpy() for ladder in ladders(cells, factor)
            ]
            row = {"protocol": protocol, "target": target, "factor": factor, "least": levels[0], "greatest": levels[-1]}
            row |= _trend(np.mean(values, axis=0), confidence, known_bounds(value))
            rows.append(row | {"interval": "", "claim": claim, "reason": ""})
    return pd.DataFrame(rows)


def factors_claim(trends: "pd.DataFrame") -> "pd.DataFrame":
    """The finding on claim C1 as a whole: how many factors act as claimed.

    Args:
        trends: as `factor_trends` returns it.

    Returns:
        one row per protocol and target: these, `factor` (`all`), the share of the factors whose mean is as claimed (`value`),
        whose interval shows it (`low`), and whose interval does not contradict it (`high`), `n` factors, `interval`, `reason`,
        and `detail`: the factors by what was found.
    """
    import pandas as pd

    rows = []
    for (protocol, target), group in trends.groupby(["protocol", "target"], sort=False):
        row = {"protocol": protocol, "target": target, "factor": "all", "n": len(group)}
        either = group["claim"] == "differs"
        shown, reverse = (group["low"] > 0) | (either & (group["high"] < 0)), ~either & (group["high"] <= 0)
        kinds = {"as claimed": shown, "undecided": ~shown & ~reverse, "the reverse": reverse}
        row |= {"value": ((group["value"] > 0) | either).mean(), "low": shown.mean(), "high": 1 - reverse.mean()}
        row |= {"interval": COUNTS, "reason": ""}
        texts = [f"{words} {', '.join(group['factor'][kind])}" for words, kind in kinds.items() if kind.any()]
        rows.append(row | {"detail": "; ".join(texts).replace("_dim", " dimension")})
    return pd.DataFrame(rows)


def _trend(values: np.ndarray, confidence: float, bounds: tuple[float, float] | None) -> dict[str, float]:
    """The columns of `factor_trends` of values [models, levels] within bounds."""
    bounds = bounds and (bounds[0] - bounds[1], bounds[1] - bounds[0])  # of differences
    row = {"at_least": float(values[:, 0].mean()), "at_greatest": float(values[:, -1].mean())}
    change = mean_interval(values[:, -1] - values[:, 0], confidence, bounds)
    row |= zip(("value", "low", "high"), change, strict=True)
    pairs = [values[:, after] - values[:, before] for before, after in pairwise(range(values.shape[1]))]
    steps = [mean_interval(pair, 1 - (1 - confidence) / len(pairs), bounds) for pair in pairs]
    row |= {"up": sum(low > 0 for _, low, _ in steps), "down": sum(high < 0 for _, _, high in steps)}
    return row | {"steps": len(steps), "n": len(values)}


def component_shares(
    table: "pd.DataFrame", parts: Sequence[str] = ("mlp", "embedding"), *, ber: float, confidence: float = CONFIDENCE
) -> "pd.DataFrame":
    """Deviation by errors in each of two components at one rate: in total, and per wrong bit.

    Args:
        table: as `dummy_trials` returns it, with trials of both.
        parts: the two targets; shares are of the first.
        ber: nominal rate.
        confidence: of the intervals.

    Returns:
        one row per protocol and cell: `n` drawn models; `bits_share`, the share of the two components' bits that are the
        first's; `share`, mean deviation by errors in it over the sum of both means (bootstrap over models; NaN where no trial
        deviated); `per_bit_<part>`, share of inputs that deviate by over 1 % per wrong bit (the rate times all bits), each with
        `_low` and `_high`; `effect`: whether the first does `more` per bit than the second, or `less`, or `unclear` where these
        two intervals overlap.

    Raises:
        ValueError: no trials with errors in one of the parts.
    """
    import pandas as pd

    rows = []
    for cell, group in table[table["ber"] == ber].groupby(_CELL, sort=False):
        row = dict(zip(_CELL, cell, strict=True))
        trials = {part: group[group["target"] == part].sort_values(["drawn", "trial"]) for part in parts}
        if empty := [part for part in parts if not len(trials[part])]:
            raise ValueError(f"the table has no trials with errors in {empty[0]!r} at {ber:g}")
        # Of a model that raised all outputs count as deviating.
        trials = {
            part: trials_of.assign(**{VALUE: trials_of[VALUE].astype(float).fillna(1.0)})
            for part, trials_of in trials.items()
        }
        unit = ["drawn"] if group["drawn"].nunique() > 1 else ["drawn", "trial"]
        first, second = (trials_of.groupby(unit)[VALUE].mean().to_numpy(float) for trials_of in trials.values())
        bits = [float(trials_of["bits"].iloc[0]) for trials_of in trials.values()]
        row |= {"n": len(first), "bits_share": bits[0] / sum(bits)}
        row |= zip((f"share{end}" for end in ENDS), _share(first, second, confidence), strict=True)
        intervals = []
        for part, size in zip(parts, bits, strict=True):
            wrong = float(trials[part]["present"].iloc[0]) * size
            per_bit = [number / wrong for number in unit_interval(trials[part], VALUE, confidence, (0.0, 1.0))]
            row |= zip((f"per_bit_{part}{end}" for end in ENDS), per_bit, strict=True)
            intervals.append(per_bit)
        (_, low, high), (_, other_low, other_high) = intervals
        rows.append(row | {"effect": "more" if low > other_high else "less" if high < other_low else "unclear"})
    return pd.DataFrame(rows)


def _share(first: np.ndarray, second: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """Mean of first over the sum of both means, with its interval. Where one of them never deviated, n trials may have missed
    as much as its own interval allows."""

    def of_both(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
        return first.mean(axis) / (first.mean(axis) + second.mean(axis))

    if not (first.any() or second.any()):
        return (float("nan"),) * 3
    if first.any() and second.any():
        return bootstrap_interval(of_both, first, second, confidence=confidence)
    deviating, quiet = (first, second) if first.any() else (second, first)
    _, _, most = mean_interval(quiet, confidence, (0.0, 1.0))
    reach = most / (most + deviating.mean())
    return (1.0, 1.0 - reach, 1.0) if first.any() else (0.0, 0.0, reach)


def component_claims(shares: "pd.DataFrame", parts: Sequence[str] = ("mlp", "embedding")) -> "pd.DataFrame":
    """The finding on claim C2: in how many models errors in the MLPs do more per wrong bit than errors in the table.

    Args:
        shares: as `component_shares` returns it, with a column `protocol`.
        parts: as there.

    Returns:
        one row per protocol: `protocol`, the share of the cells in which the first part does more per wrong bit (`value`),
        clearly (`low`), and not clearly less (`high`), `n` cells, `interval`, `detail` and `reason`.
    """
    import pandas as pd

    rows = []
    for protocol, cells in shares.groupby("protocol", sort=False):
        is_more = cells[f"per_bit_{parts[0]}"] > cells[f"per_bit_{parts[1]}"]
        row = {"protocol": protocol, "n": len(cells), "value": is_more.mean()}
        row |= {"low": (cells["effect"] == "more").mean(), "high": 1 - (cells["effect"] == "less").mean()}
        medians = [f"{100 * cells[f'per_bit_{part}'].median():.2g} %" for part in parts]
        detail = f"inputs that one wrong bit changes: {medians[0]} by {parts[0]}, {medians[1]} by {parts[1]} (medians)"
        rows.append(row | {"interval": COUNTS, "detail": detail, "reason": ""})
    return pd.DataFrame(rows)


def claims(table: "pd.DataFrame", ber: float) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """All findings on claim C1, and those on C2, on all trials and on thirds of them.

    Args:
        table: as `dummy_trials` returns it.
        ber: nominal rate.
    """
    import pandas as pd

    def factors(trials: "pd.DataFrame") -> "pd.DataFrame":
        trends = factor_trends(trials[trials["target"] == "all"], EXPECTED, ber=ber)
        return pd.concat([trends.assign(detail=trend_text(trends)), factors_claim(trends)])

    def parts(trials: "pd.DataFrame") -> "pd.DataFrame":
        return component_claims(component_shares(trials, ber=ber))

    return by_thirds(factors, table), by_thirds(parts, table)


def trend_text(trends: "pd.DataFrame") -> list[str]:
    """Each row of `factor_trends` as a sentence with its numbers.

    Example:
        >>> import pandas as pd
        >>> row = {"factor": "width", "least": 64, "greatest": 512, "at_least": 0.1, "at_greatest": 0.3, "value": 0.2}
        >>> row |= {"low": 0.15, "high": 0.25, "up": 2, "down": 0, "steps": 3}
        >>> trend_text(pd.DataFrame([row]))
        ['width 64 to 512: 10.0 % to 30.0 % of inputs (+20.0 [+15.0, +25.0] points; clearly up at 2, down at 0 of 3 steps)']
    """
    return [
        f"{row.factor} {row.least:g} to {row.greatest:g}: {100 * row.at_least:.1f} % to {100 * row.at_greatest:.1f} % of "
        f"inputs ({100 * row.value:+.1f} [{100 * row.low:+.1f}, {100 * row.high:+.1f}] points; clearly up at "
        f"{row.up}, down at {row.down} of {row.steps} steps)"
        for row in trends.itertuples()
    ]
