"""What each protection of each tensor costs, in stored bits and in inference time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from drsrobust.mitigation import Mitigation
from drsrobust_extras.risk.timing import overhead

if TYPE_CHECKING:
    import pandas as pd
    from torchrec.datasets.utils import Batch

COLUMNS = ("mitigation", "tensor", "stored_bits", "time_percent")
WHOLE = "all"  # in place of a tensor: all tensors that a candidate covers, at once


def tensor_costs(
    model: nn.Module, tensors: Sequence[str], candidates: Sequence[Mitigation], batches: Sequence["Batch"]
) -> "pd.DataFrame":
    """The cost of each candidate on each tensor that it covers.

    Stored bits follow from `cost`. The time of a candidate with a side in the computation is measured once, on all that it
    covers (`overhead`), and divided by multiply-adds, or by bytes touched where it has none. Protections of memory take no
    time of the computation. A check of a whole layer counts for its weight and for its bias, so a plan costs at most the sum.

    Args:
        model: without errors.
        tensors: names.
        candidates: of distinct names.
        batches: of one size, that are timed.

    Returns:
        one row per candidate and tensor, and one for all its tensors at once (`all`): `mitigation`, `tensor`, `stored_bits`,
        `time_percent` (of inference).
    """
    import pandas as pd

    rows = []
    for candidate in candidates:
        covered = candidate.covers(model)
        covered_tensors = [name for name in tensors if name in covered]
        confined, costs = candidate.on(covered_tensors), [candidate.on([name]).cost(model) for name in covered_tensors]
        costs.append(confined.cost(model))
        work = np.array([cost.multiply_adds or cost.bytes_touched for cost in costs], float)
        measured = overhead(model, batches, confined)["overhead_percent"] if candidate.computes and work.any() else 0.0
        time = max(0.0, measured) * work / (work[-1] or 1.0)
        rows += [
            (candidate.name, name, cost.stored_bits, spent)
            for name, cost, spent in zip([*covered_tensors, WHOLE], costs, time, strict=True)
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def cost_arrays(
    costs: "pd.DataFrame", tensors: Sequence[str], options: Sequence[str], missing: np.ndarray
) -> np.ndarray:
    """Costs as an array: float64 [2 (bits, per cent of time), tensors, options]; the first option costs nothing.

    Args:
        costs: as `tensor_costs` returns them.
        tensors, options: names.
        missing: bool [tensors, options], options that a tensor lacks.

    Raises:
        ValueError: a missing column or row, a duplicate row, or a cost that is negative or not finite.
    """
    if absent := [column for column in COLUMNS if column not in costs]:
        raise ValueError(f"costs lack the column {absent[0]!r}; they need {', '.join(COLUMNS)}, as plan.costs has them")
    table = costs.set_index(["mitigation", "tensor"])[list(COLUMNS[2:])]
    if table.index.has_duplicates:
        raise ValueError(f"costs hold {table.index[table.index.duplicated()][0]} twice")
    filled = np.zeros((2, len(tensors), len(options)))
    for number, option in enumerate(options[1:], 1):
        for row in np.flatnonzero(~missing[:, number]):
            if (option, tensors[row]) not in table.index:
                raise ValueError(f"costs have no row for {option!r} on {tensors[row]!r}")
            filled[:, row, number] = table.loc[(option, tensors[row])]
    if not (np.isfinite(filled) & (filled >= 0)).all():
        raise ValueError("costs must be finite numbers, 0 or more")
    return filled
