"""Numbers that hold for another trained model: means over several training seeds, with intervals of both sources of chance.

With S models whose means m_s have intervals over error maps of standard error e_s, the mean has the standard error
sqrt(max(v, mean(e_s^2)) / S), where v is the variance of the m_s (sum over s of (m_s - mean)^2 / (S - 1)). Since v holds both
the models' differences and the maps', it is no smaller than the maps' part in the long run; the maximum keeps it so in three
models (C. Roever et al., BMC Medical Research Methodology 15:99, 2015). The interval is Student's, with S - 1 degrees of
freedom. The part of the rows, where summaries have it, is added afterwards in squares: it is common to all models.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.extend import check_instance, check_items, check_names, wrong
from drsrobust.metrics import known_bounds
from drsrobust.statistics import CONDITION, CONFIDENCE, check_confidence, with_rows

if TYPE_CHECKING:
    import pandas as pd

SEEDS = "train_seeds"  # column: number of models behind a row


def across_models(
    frames: "Sequence[pd.DataFrame]",
    values: Sequence[str] = ("auc", "auc_drop"),
    *,
    by: Sequence[str] = CONDITION,
    confidence: float = CONFIDENCE,
) -> "pd.DataFrame":
    """Summaries of models that differ in their training seed, as one.

    Args:
        frames: `summarise` or `recovery` of each model; models of one name and data set are taken together.
        values: columns with `_low` and `_high`, whose intervals are to hold for another trained model.
        by: columns that name a row; those that the frames do not have are ignored.
        confidence: of the intervals.

    Returns:
        one row per condition, in the order of their first rows, with `train_seeds`, the number of models. Of several models `n`
        is the sum, other numbers are means; of one the row is as it was, and its interval holds for this model.

    Raises:
        ValueError: a frame with two rows of one condition, as of mitigations with one label.

    Example:
        >>> import pandas as pd
        >>> row = {"model": "fm", "dataset": "d", "rate": 1e-4, "target": "all", "mitigation": "none", "n": 50}
        >>> row |= { "auc": 0.7, "auc_low": 0.69, "auc_high": 0.71}
        >>> both = across_models([pd.DataFrame([row]), pd.DataFrame([row | {"auc": 0.8}])], values=["auc"])
        >>> both[["train_seeds", "n", "auc", "auc_low"]].round(2).values.tolist()
        [[2.0, 100.0, 0.75, 0.11]]
    """
    import pandas as pd

    frames = check_items("frames", frames, "a list of summaries, as of summarise")
    for frame in frames:
        check_instance("each of frames", frame, pd.DataFrame, "a summary, as of summarise")
    if not frames:
        raise wrong("frames", "one summary or more", frames)
    values, by = check_names("values", values), check_names("by", by)
    check_confidence(confidence)
    table, rows = pd.concat(frames, ignore_index=True), []
    keys = [name for name in by if name in table]
    if not keys:
        raise ValueError(f"by names no column of the frames, got {by}")
    for frame in frames:
        if (is_repeated := frame.duplicated(keys)).any():
            raise ValueError(
                f"two rows of {dict(frame.loc[is_repeated, keys].iloc[0])}; give mitigations names of their own (`.name`)"
            )
    if len(frames) > 1 and (missing := [name for name in values if f"{name}_low" not in table]):
        raise ValueError(f"values names {missing[0]!r}, of which the frames have no interval ({missing[0]}_low)")
    for _, group in table.groupby(keys, sort=False, dropna=False):
        row = group.iloc[0].to_dict() | {SEEDS: len(group)}
        if len(group) > 1:
            numbers = group.drop(columns=keys).select_dtypes("number")
            row |= numbers.mean().to_dict() | {"n": int(group["n"].sum())}
            row |= {"interval": _methods(group["interval"])} if "interval" in group else {}
            for name in values:
                row |= _interval(group, name, confidence)
        rows.append(row)
    effects = pd.DataFrame(rows)
    effects.attrs = dict(frames[0].attrs)
    if effects[SEEDS].max() > 1 and "interval" in effects.attrs:
        effects.attrs["interval"] += f"; of {effects[SEEDS].max()} trained models over models and error maps"
    return effects


def _methods(intervals: "pd.Series") -> str:
    """How an interval over models is made, with the bounds that stand for the spread of a model's own trials."""
    bounds = dict.fromkeys(intervals[intervals != "Student's t"])
    return "; of each model: ".join(["Student's t over models", *(["; ".join(bounds)] if bounds else [])])


def _interval(group: "pd.DataFrame", name: str, confidence: float) -> dict[str, float]:
    from scipy.special import ndtri, stdtrit

    over_maps = "_maps" if f"{name}_maps_low" in group else ""
    means, low, high = (group[f"{name}{end}"].to_numpy(float) for end in ("", f"{over_maps}_low", f"{over_maps}_high"))
    factor = stdtrit(len(group) - 1, (1 + confidence) / 2) / np.sqrt(len(group))
    between, mean = means.var(ddof=1), float(means.mean())
    # Intervals over maps need not be symmetric.
    errors = [np.mean((side / ndtri((1 + confidence) / 2)) ** 2) for side in (means - low, high - means)]
    below, above = (factor * np.sqrt(np.fmax(between, error)) for error in errors)
    bounds = known_bounds(name) or (-np.inf, np.inf)
    low, high = max(mean - below, bounds[0]), min(mean + above, bounds[1])
    if not over_maps:
        return {f"{name}_low": float(low), f"{name}_high": float(high)}
    # All models are measured on the same rows, so that more models make their error no smaller.
    error = float(group[f"{name}_rows"].mean(skipna=False))
    ends = {f"{name}_maps_low": float(low), f"{name}_maps_high": float(high), f"{name}_rows": error}
    return ends | dict(zip((f"{name}_low", f"{name}_high"), with_rows(mean, low, high, error, bounds), strict=True))
