"""What mitigations cost without errors."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.evaluation.evaluator import Evaluator
from drsrobust.metrics.auc import auc_difference
from drsrobust.mitigation import Mitigation

if TYPE_CHECKING:
    import pandas as pd


def clean_cost(evaluator: Evaluator, mitigations: Iterable[Mitigation]) -> "pd.DataFrame":
    """The cost of mitigations without errors.

    Returns:
        one row each: `mitigation`, `auc` with it, `difference` to the AUC without it on the same rows, with `low`, `high` and
        `p` (paired DeLong, over rows; p is NaN where all rows rank alike).
    """
    import pandas as pd

    if evaluator.scoring.task != "click":
        raise ValueError(f"clean_cost compares AUC, which task={evaluator.scoring.task!r} does not have")

    def _compared(measured: Evaluator) -> np.ndarray:
        return measured.golden.scores if measured.options["scores"] == "logit" else measured.golden.probabilities

    rows = []
    for mitigation in mitigations:
        with evaluator.under(mitigation) as guarded:
            difference = auc_difference(
                evaluator.rows.labels, *(_compared(measured) for measured in (guarded, evaluator))
            )
        rows.append((mitigation.name, guarded.golden.auc, *difference))
    return pd.DataFrame(rows, columns=["mitigation", "auc", "difference", "low", "high", "p"])
