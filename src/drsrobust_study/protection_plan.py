"""Claim C19, near full coverage at little cost: the share of the lost AUC that a plan gives back on fresh error maps, and what
the best uniform protection at no more bits loses beyond it (notebook 14)."""

from typing import TYPE_CHECKING

from drsrobust.planning import Plan
from drsrobust.planning.protection_plan import UNIFORM
from drsrobust.statistics.columns import ENDS, NONE
from drsrobust.statistics.recovery import recovery
from drsrobust_study.findings import number
from drsrobust_study.thirds import by_thirds

if TYPE_CHECKING:
    import pandas as pd


def removed(trials: "pd.DataFrame", plan: Plan) -> "pd.DataFrame":
    """The share of the lost AUC that a plan gives back.

    Args:
        trials: as `plan.verify` returns them.
        plan: within the claimed cost.

    Returns:
        one row: `reading` (`removed`), `model`, `dataset`, `mitigation`, `n` trials, `value`, `low`, `high`, `interval`,
        `detail` and `reason`.
    """
    import pandas as pd

    recovered = recovery(trials)
    row = recovered[recovered["mitigation"] == plan.name].iloc[0]
    labels = {"reading": "removed"} | row[["model", "dataset", "mitigation", "n"]].to_dict()
    labels |= zip(("value", "low", "high"), row[["recovery", "recovery_low", "recovery_high"]], strict=True)
    labels["detail"] = f"+{number(plan.stored_percent)} % bits, +{number(plan.time_percent)} % time"
    labels["interval"] = ""
    labels["reason"] = "" if row["recovery"] == row["recovery"] else "nothing lost"
    return pd.DataFrame([labels])


def best_uniform(measured: "pd.DataFrame", stored_percent: float) -> "pd.Series | None":
    """The protection of all tensors that loses least among those that store at most so much; None: none of them does.

    Args:
        measured: as `Plan.compare` returns it.
        stored_percent: of the parameters' bits.
    """
    fits = (measured["kind"] == UNIFORM) & (measured["stored_percent"] <= stored_percent * (1 + 1e-9))
    return measured.loc[measured.loc[fits, "auc_drop"].idxmin()] if fits.any() else None


def against_uniform(trials: "pd.DataFrame", plan: Plan) -> "pd.DataFrame":
    """How much more AUC than the plan the best uniform protection at no more bits loses, as a share of the unprotected loss.
    The uniform protection is chosen on the same maps, which favours it. Losses are paired by error map; the interval is that of
    their mean difference (`Plan.compare`).

    Args:
        trials: as `plan.verify` returns them.
        plan: one of their mitigations.

    Returns:
        one row, with the columns of `removed`; `reading` is `against uniform`, and `mitigation` the plan.
    """
    import pandas as pd

    measured = plan.compare(trials)
    lost = measured.loc[measured["kind"] == NONE, "auc_drop"].iloc[0]
    best = best_uniform(measured, plan.stored_percent)
    labels = {"reading": "against uniform"} | trials[["model", "dataset"]].iloc[0].to_dict()
    labels |= {"mitigation": plan.name, "n": int(measured.loc[measured["mitigation"] == plan.name, "n"].iloc[0])}
    values = [float("nan")] * 3 if best is None or lost <= 0 else [best[f"over_plan{end}"] / lost for end in ENDS]
    labels |= zip(("value", "low", "high"), values, strict=True)
    labels["interval"] = "of the mean difference, by error map"
    labels["detail"] = "" if best is None else f"{best['mitigation']}, +{number(best['stored_percent'])} % bits"
    labels["reason"] = "no uniform protection stores so little" if best is None else "" if lost > 0 else "nothing lost"
    return pd.DataFrame([labels])


def plan_claims(trials: "pd.DataFrame", plan: Plan) -> "pd.DataFrame":
    """`removed` and `against_uniform` on all trials and on thirds of them."""
    import pandas as pd

    def find(trials: "pd.DataFrame") -> "pd.DataFrame":
        return pd.concat([removed(trials, plan), against_uniform(trials, plan)], ignore_index=True)

    return by_thirds(find, trials)
