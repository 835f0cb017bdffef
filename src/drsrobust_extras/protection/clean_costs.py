"""What mitigations cost without errors."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from drsrobust.evaluation import Evaluator, check_evaluator, compared
from drsrobust.extend import check_instance, check_items
from drsrobust.metrics import auc_difference
from drsrobust.mitigation import Mitigation

if TYPE_CHECKING:
    import pandas as pd


def clean_cost(evaluator: Evaluator, mitigations: Iterable[Mitigation]) -> "pd.DataFrame":
    """The cost of mitigations without errors.

    Args:
        evaluator: of the model without mitigation.
        mitigations: attached one after the other.

    Returns:
        one row each: `mitigation`, `auc` with it, `difference` to the AUC without it on the same rows, with `low`, `high` and
        `p` (paired DeLong, over rows; p is NaN where all rows rank alike).

    Raises:
        ValueError: a task other than `click`, which has no AUC.
    """
    import pandas as pd

    check_evaluator(evaluator)
    mitigations = check_items("mitigations", mitigations, "a list of mitigations, or one", Mitigation)
    for mitigation in mitigations:
        check_instance("each of mitigations", mitigation, Mitigation, "a mitigation")
    if evaluator.scoring.task != "click":
        raise ValueError(f"clean_cost compares AUC, which task={evaluator.scoring.task!r} does not have")

    labels: Any = evaluator.rows.labels
    scores, rows = evaluator.options["scores"], []
    golden = compared(evaluator.golden, scores)
    for mitigation in mitigations:
        with evaluator.under(mitigation) as guarded:
            difference = auc_difference(labels, compared(guarded.golden, scores), golden)
        rows.append((mitigation.name, guarded.golden.auc, *difference))
    return pd.DataFrame(rows, columns=["mitigation", "auc", "difference", "low", "high", "p"])
