"""drsrobust.study.captions"""

from typing import TYPE_CHECKING

from drsrobust.data import Split
from drsrobust.statistics.columns import FIXED, STOPPING
from drsrobust.statistics.summary import INTERVALS

if TYPE_CHECKING:
    import pandas as pd


def caption(summary: "pd.DataFrame", split: Split, *, marks: str | None = None) -> str:
    """What a reader must know of a figure made of this summary: data, rows, models, trials, interval, what varies.

    Args:
        summary: as `summarise` returns it, of one or more models.
        split: the rows that were scored.
        marks: a sentence on what is drawn; None: points are means, and bars the summary's intervals.
    """
    import pandas as pd

    generated = " (generated data, not real clicks)" if split.dataset.startswith("synthetic-") else ""
    rows = f"{len(split):,}" if len(split) == split.whole else f"{len(split):,} of {split.whole:,}"
    fewest, most = summary["n"].min(), summary["n"].max()
    trials = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    golden = summary.groupby("model", sort=False)["auc_golden"].first()
    bars = summary.attrs.get("interval")
    if bars is None:  # after `concat`, which keeps no attrs
        bars = "; ".join(INTERVALS[one] for one in summary.get(STOPPING, pd.Series([FIXED])).unique())
    text = (
        f"Data: {split.dataset}{generated}, {rows} {split.part} rows. AUC without errors: "
        f"{', '.join(f'{model} {auc:.4f}' for model, auc in golden.items())}. {trials} trials per point, each with its own "
        f"error map; the trained model and the rows are fixed. {marks or f'Points: means; bars: {bars}.'}"
    )
    if (summary["rate"].fillna(0) >= 1e-4).any():  # the field: `rates.field_rates()`
        text += " Rates of 1e-4 and more are a stress range; a day in DRAM in the field gives about 1e-9 before ECC."
    return text
