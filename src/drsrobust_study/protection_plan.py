"""The share of the lost AUC that a plan gives back on fresh error maps, and what the best uniform protection at no more bits
loses beyond it (notebook 14)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from drsrobust.data import Split
from drsrobust.mitigation import ECC, ActivationClipping, Mitigation, WeightRange
from drsrobust.statistics import ENDS, NONE, recovery
from drsrobust_extras.protection.abft.linear import ABFTLinear
from drsrobust_extras.protection.bit_protection import BitProtection
from drsrobust_extras.protection.parity import ParityZero
from drsrobust_extras.risk.planning.protection_plan import UNIFORM, Plan
from drsrobust_study.effects import of_table, over_trainings, table

if TYPE_CHECKING:
    import pandas as pd

REMOVED, AGAINST = "removed", "against uniform"


def candidates(model: nn.Module, train: Split) -> tuple[list[Mitigation], list[Mitigation]]:
    """What a plan chooses from: protections of words in memory, and of the computation.

    Args:
        model: without errors.
        train: rows on which bounds of activations are fitted.
    """
    memory = [WeightRange.fit(model), ParityZero(), ECC(), BitProtection([30], code="secded")]
    memory += [BitProtection(range(23, 32), code=code) for code in ("secded", "tmr")]
    return memory, [ABFTLinear.fit(model, action="restore"), ActivationClipping.fit(model, train)]


def best_uniform(measured: "pd.DataFrame", stored_percent: float) -> "pd.Series | None":
    """The protection of all tensors that loses least among those that store at most so much; None: none of them does.

    Args:
        measured: as `Plan.compare` returns it.
        stored_percent: of the parameters' bits.
    """
    fits = (measured["kind"] == UNIFORM) & (measured["stored_percent"] <= stored_percent * (1 + 1e-9))
    return measured.loc[measured.loc[fits, "auc_drop"].idxmin()] if fits.any() else None


def shares(trials: "pd.DataFrame", plan: Plan) -> "pd.DataFrame":
    """What a plan gives back in one trained model, and how much more AUC than the plan the best uniform protection at no more
    bits loses, both as a share of the lost AUC. The uniform protection is chosen on the same maps, which favours it; its losses
    are paired with the plan's by error map (`Plan.compare`).

    Args:
        trials: as `plan.verify` returns them.
        plan: one of their mitigations.

    Returns:
        a row each: `what` (`REMOVED`, `AGAINST`), `mitigation` (the plan, and the uniform protection; empty: none stores so
        little), `stored_percent`, `value`, `low`, `high`; NaN where nothing is lost.
    """
    import pandas as pd

    recovered = recovery(trials)
    row = recovered[recovered["mitigation"] == plan.name].iloc[0]
    found = [[REMOVED, plan.name, plan.stored_percent, *(row[f"recovery{end}"] for end in ENDS)]]
    measured = plan.compare(trials)
    lost = measured.loc[measured["kind"] == NONE, "auc_drop"].iloc[0]
    best = best_uniform(measured, plan.stored_percent)
    if best is None:
        found.append([AGAINST, "", *[float("nan")] * 4])
    else:
        over = [best[f"over_plan{end}"] / lost if lost > 0 else float("nan") for end in ENDS]
        found.append([AGAINST, best["mitigation"], best["stored_percent"], *over])
    return pd.DataFrame(found, columns=["what", "mitigation", "stored_percent", "value", "low", "high"])


def effects(found: "Mapping[int, pd.DataFrame]") -> "pd.DataFrame":
    """`shares` of several trained models, by training seed (`drsrobust_study.effects`)."""
    import pandas as pd

    joined, rows = pd.concat(found.values()), []
    words = {
        REMOVED: "share of the lost AUC that the plan gives back on fresh error maps",
        AGAINST: "what the best uniform protection at no more bits leaves beyond it, as such a share",
    }
    for what, text in words.items():
        some = joined[joined["what"] == what]
        rows.append(of_table(what, text, some))
        rows.append(over_trainings(f"bits {what}", f"{what}: extra stored bits, %", some["stored_percent"]))
    return table(rows)
