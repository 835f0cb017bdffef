"""Intervals of what a code corrects by its construction."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drsrobust.statistics import ENDS, EXACT, WEIGHT, with_rows

if TYPE_CHECKING:
    import pandas as pd


def corrected_exactly(
    summary: "pd.DataFrame", trials: "pd.DataFrame", keys: Sequence[str], metrics: Sequence[str]
) -> "pd.DataFrame":
    """A summary of single memory faults whose intervals end at the mean where a code corrects all faults of a mode by its
    construction (`corrects_mode`), and no wrong bit was left in any trial: trials have missed nothing there.

    Args:
        summary: as `summarise` returns it.
        trials: that it is of, with `bits_left`, `corrects_mode` and `error_mode`.
        keys: columns that identify a condition in both.
        metrics: whose intervals are changed; all that the summary has.
    """
    import pandas as pd

    proven = (trials["corrects_mode"] == "any") | (trials["corrects_mode"] == trials["error_mode"])
    left = trials["bits_left"].where(proven, 1)
    if WEIGHT in trials:
        left = left.where(trials[WEIGHT] != 0, 0)  # pilots are no single faults
    bits_left = left.groupby([trials[key] for key in keys], dropna=False).max()
    wrong = (bits_left.reindex(pd.MultiIndex.from_frame(summary[list(keys)])) != 0).to_numpy(bool)
    ends = {}
    for metric in metrics:
        mean, error = summary[metric], summary[f"{metric}_rows"]
        ends |= {f"{metric}_maps{end}": summary[f"{metric}_maps{end}"].where(wrong, mean) for end in ENDS[1:]}
        exact = with_rows(*(column.to_numpy(float) for column in (mean, mean, mean, error)))
        ends |= {
            f"{metric}{end}": summary[f"{metric}{end}"].where(wrong, at)
            for end, at in zip(ENDS[1:], exact, strict=True)
        }
    return summary.assign(interval=summary["interval"].where(wrong, EXACT), **ends)
