"""Claim C19, near full coverage for some 20 % of cost: the share of the lost AUC that a plan gives back on fresh error maps
(notebook 14)."""

from typing import TYPE_CHECKING

from drsrobust.mitigation import Mitigation
from drsrobust.statistics.recovery import recovery
from drsrobust_study.findings import number
from drsrobust_study.thirds import by_thirds

if TYPE_CHECKING:
    import pandas as pd


def removed(trials: "pd.DataFrame", plan: Mitigation) -> "pd.DataFrame":
    """The finding on claim C19.

    Args:
        trials: as `Plan.verify` returns them.
        plan: within the claimed cost, one of their mitigations by its identity.

    Returns:
        one row: `reading` (`removed`), `model`, `dataset`, `mitigation`, `n` trials, `value`, `low`, `high`, `interval`,
        `detail` and `reason`.
    """
    import pandas as pd

    recovered, plan_id = recovery(trials), plan.identity()[:12]
    row = recovered[recovered["mitigation_id"] == plan_id].iloc[0]
    cost = trials[trials["mitigation_id"] == plan_id].iloc[0]
    labels = {"reading": "removed"} | row[["model", "dataset", "mitigation", "n"]].to_dict()
    labels |= zip(("value", "low", "high"), row[["recovery", "recovery_low", "recovery_high"]], strict=True)
    labels["detail"] = f"+{number(cost['stored_percent'])} % bits, +{number(cost['time_percent'])} % time"
    labels["interval"] = ""
    labels["reason"] = "" if row["recovery"] == row["recovery"] else "nothing lost"
    return pd.DataFrame([labels])


def plan_claims(trials: "pd.DataFrame", plan: Mitigation) -> "pd.DataFrame":
    """`removed` on all trials and on thirds of them."""
    return by_thirds(lambda table: removed(table, plan), trials)
