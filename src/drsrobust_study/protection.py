"""What mitigations recover, and at what cost (notebooks 05 and 08)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.statistics import ENDS, across_models, recovery

if TYPE_CHECKING:
    import pandas as pd


def cost_benefit(recoveries: "pd.DataFrame", storage: "pd.DataFrame", times: "pd.DataFrame") -> "pd.DataFrame":
    """Recovery of each mitigation with its cost, and those that no other one beats (nor doing nothing).

    Args:
        recoveries: as `recovery` returns it, at one rate: a row per mitigation.
        storage: as `storage_overhead` returns it.
        times: of mitigations that run with the model, a row per timing: `mitigation` and `overhead_percent`.

    Returns:
        the rows of `recoveries` with `stored_bits`, `stored_percent`, `overhead_percent` (median; 0 for mitigations that were
        not timed, which run no code with the model), `overhead_percent_low` and `overhead_percent_high` (range of the timings),
        `timed` and `front` (see there).

    Raises:
        ValueError: a mitigation that is in several rows, or has no row in `storage`.
    """
    for table in (recoveries, storage):
        _one_row_each(table)
    if missing := sorted({*recoveries["mitigation"]} - {*storage["mitigation"]}):
        raise ValueError(f"storage has no row for {', '.join(missing)}")
    spread = times.groupby("mitigation")["overhead_percent"].agg(["median", "min", "max"])
    ends = [f"overhead_percent{end}" for end in ENDS]
    points = recoveries.merge(storage, on="mitigation").join(spread.set_axis(ends, axis=1), on="mitigation")
    points["timed"] = points["overhead_percent"].notna()
    points[ends] = points[ends].fillna(0.0)
    points.attrs = dict(recoveries.attrs)
    points["front"] = front(points, "recovery", ["overhead_percent", "stored_percent"]) & (points["recovery"] > 0)
    return points


def _one_row_each(table: "pd.DataFrame") -> None:
    if len(duplicates := table["mitigation"][table["mitigation"].duplicated()]):
        raise ValueError(
            f"{duplicates.iloc[0]} is in several rows; give the rows of one model, data set, protocol, target and rate, and "
            "give mitigations of one label names of their own (`.name`)"
        )


def front(points: "pd.DataFrame", value: str, costs: Iterable[str]) -> "pd.Series":
    """Points that no other one beats: none has at least the value at no more of any cost, and is better in one of these.

    Args:
        points: one row each.
        value: the column that should be high.
        costs: columns that should be low.

    Returns:
        bool [points]; a point without a value or a cost is not on the front.

    Example:
        >>> import pandas as pd
        >>> points = pd.DataFrame({"gain": [0.2, 0.9, 0.8], "time": [0.0, 5.0, 6.0]})
        >>> front(points, "gain", ["time"]).tolist()
        [True, True, False]
    """
    import pandas as pd

    numbers = np.column_stack([-points[value].to_numpy(float), *(points[cost].to_numpy(float) for cost in costs)])
    beaten = [((numbers <= row).all(axis=1) & (numbers < row).any(axis=1)).any() for row in numbers]
    return pd.Series(np.isfinite(numbers).all(axis=1) & ~np.array(beaten, bool), points.index, bool, name="front")


def recovery_of_models(table: "pd.DataFrame", **options: float) -> "pd.DataFrame":
    """`recovery` of each trained model; of models that differ in their training seed, as one (`across_models`)."""
    by_model = [
        recovery(trials, **options).drop(columns="why") for _, trials in table.groupby("checkpoint", sort=False)
    ]
    return across_models(by_model, ["recovery", "gained", "lost"])
