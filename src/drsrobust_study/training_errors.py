"""Errors during training: what they cost, which detector notices them, what actions leave, and claim C16 (notebook 17)."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.injection import Activations, FixedCount, Gradients, Inputs, OptimizerState
from drsrobust.statistics.columns import ENDS
from drsrobust.statistics.intervals import stringer_interval
from drsrobust.training_errors.campaign import HARMFUL
from drsrobust_study.findings import EXACT, exact_share
from drsrobust_study.thirds import by_thirds

if TYPE_CHECKING:
    import pandas as pd

# Of a model with a dense and an over MLP whose tables are updated by row-wise Adagrad, the other parameters by Adam. Errors in
# places of one kind are stored in memory, and stay; those of the other occur in one step.
STORED, COMPUTED = "stored", "computed"
PLACES = {
    "weights": (STORED, "mlp"),
    "tables": (STORED, "embedding"),
    "Adam m": (STORED, OptimizerState(glob="*.exp_avg")),
    "Adam v": (STORED, OptimizerState(glob="*.exp_avg_sq")),
    "Adagrad sums": (STORED, OptimizerState(glob="*.sum")),
    "layer outputs": (COMPUTED, Activations("*_arch.model*")),
    "gradients": (COMPUTED, Gradients("*_arch.model*")),
    "dense inputs": (COMPUTED, Inputs("dense")),
    "ids": (COMPUTED, Inputs("ids", out_of_range="wrap")),
}
BITS = {
    "bit 30": FixedCount(1, bits=(30,)),
    "bits 23 to 29": FixedCount(1, bits=tuple(range(23, 30))),
    "bits 0 to 22, 31": FixedCount(1, bits=(*range(23), 31)),
}
WITHIN = (1, 3, 10)  # steps
NOTICED = 3  # steps of claim C16a
_NOTHING = "nothing"  # the action of a run that has none


def named(table: "pd.DataFrame") -> "pd.DataFrame":
    """The trials of a `TrainingCampaign` over some of `PLACES` and `BITS`, with the names of these: `place`, `kind` (stored or
    computed) and `bit_class`."""
    places = {str(target): (name, kind) for name, (kind, target) in PLACES.items()}
    classes = {error.label: name for name, error in BITS.items()}
    known = table["target"].map(places)
    return table.assign(
        place=known.str[0], kind=known.str[1], bit_class=table["error_model"].map(classes), harmful=harmful(table)
    )


def harmful(table: "pd.DataFrame") -> "pd.Series":
    """Which errors cost over 0.005 AUC at the end. A trial that raised has no AUC and is none."""
    return (table["auc_drop"] > HARMFUL).fillna(False).astype(bool)


def losses(table: "pd.DataFrame") -> "pd.DataFrame":
    """AUC lost by place and class of bits.

    Args:
        table: of `named`.

    Returns:
        a row for each place and class, and one for each trial: `model`, `dataset`, `place`, `kind`, `bit_class`, `what` (`mean`
        or `trial`), `n` (trials with an AUC), `harmful` (of these), `auc_drop`, with `_low` and `_high` (of a mean, Stringer's
        bound).
    """
    import pandas as pd

    rows = []
    keys = ["model", "dataset", "place", "kind", "bit_class"]
    for values, trials in table.groupby(keys, sort=False):
        scored, about = trials.dropna(subset=["auc"]), dict(zip(keys, values, strict=True))
        counts = {"what": "mean", "n": len(scored), "harmful": int(scored["harmful"].sum())}
        rows.append(about | counts | _loss(scored["auc"], scored["auc_golden"], "auc_drop"))
        for row in scored.itertuples():
            rows.append(about | {"what": "trial", "n": 1, "harmful": int(row.harmful), "auc_drop": row.auc_drop})
    return pd.DataFrame(rows)


def _loss(auc: "pd.Series", golden: "pd.Series", name: str) -> dict[str, float]:
    """Mean loss with Stringer's bound; no numbers without trials."""
    if not len(auc):
        return {f"{name}{end}": np.nan for end in ENDS}
    mean, low, high = stringer_interval(auc.to_numpy(float), (0.0, 1.0))
    return dict(
        zip((f"{name}{end}" for end in ENDS), (golden.iloc[0] - np.array([mean, high, low])).tolist(), strict=True)
    )


def detection(table: "pd.DataFrame", detectors: Iterable[str], within: Sequence[int] = WITHIN) -> "pd.DataFrame":
    """Shares of the harmful errors that each detector noticed within some steps, the first being that of the error.

    Args:
        table: of `named`.
        detectors: names.
        within: steps.

    Returns:
        `kind`, `detector`, `within`, `n` (harmful errors), `noticed`, `share` with `_low` and `_high` (exact).
    """
    import pandas as pd

    rows = []
    for kind in (STORED, COMPUTED):
        bad = table[table["harmful"] & (table["kind"] == kind)]
        for detector in detectors:
            for steps in within:
                count = int((bad[f"alarm_{detector}"] <= steps).fillna(False).sum())
                found = exact_share(count, len(bad))
                ends = {f"share{end}": found[name] for end, name in zip(ENDS, ("value", "low", "high"), strict=True)}
                about = {"kind": kind, "detector": detector, "within": steps, "n": len(bad), "noticed": count}
                rows.append(about | ends)
    return pd.DataFrame(rows)


def left_by_actions(table: "pd.DataFrame", actions: Iterable[str]) -> "pd.DataFrame":
    """What actions leave of the harmful errors, on the same errors.

    Args:
        table: of `named`.
        actions: names.

    Returns:
        `kind`, `action` (`nothing` first), `n` (harmful errors), `repaired` (those that cost at most 0.005 AUC then), `share`
        of these and `auc_drop`, each with `_low` and `_high`.
    """
    import pandas as pd

    rows = []
    for kind in (STORED, COMPUTED):
        bad = table[table["harmful"] & (table["kind"] == kind)]
        for action in (_NOTHING, *actions):
            auc = bad["auc" if action == _NOTHING else f"auc_{action}"].fillna(0.0)  # no AUC: training ended
            repaired = int((bad["auc_golden"] - auc <= HARMFUL).sum())
            share = exact_share(repaired, len(bad))
            about = {"kind": kind, "action": action, "n": len(bad), "repaired": repaired}
            ends = {f"share{end}": share[name] for end, name in zip(ENDS, ("value", "low", "high"), strict=True)}
            rows.append(about | ends | _loss(auc, bad["auc_golden"], "auc_drop"))
    return pd.DataFrame(rows)


def claims(table: "pd.DataFrame") -> "pd.DataFrame":
    """Findings on C16a and C16b: of the harmful errors of each kind, the share that the gradient norm noticed within 3 steps,
    and the share that recomputing the step, whenever the norm alarmed, left harmless.

    Args:
        table: of `named`.

    Returns:
        on all trials, and on thirds, a row for each claim and kind (`reading`): `value`, `low`, `high`, `n`, `interval`,
        `detail`, `reason`.
    """
    import pandas as pd

    def find(table: "pd.DataFrame") -> "pd.DataFrame":
        rows = []
        noticed = detection(table, ["gradient_norm"], [NOTICED]).set_index("kind")["noticed"]
        left = left_by_actions(table, ["recompute"])
        repaired = left[left["action"] == "recompute"].set_index("kind")
        for kind, n in repaired["n"].items():
            counts = {"C16a": (noticed[kind], "noticed"), "C16b": (repaired.loc[kind, "repaired"], "repaired")}
            for claim, (count, word) in counts.items():
                row = {
                    "claim": claim,
                    "reading": kind,
                    **exact_share(int(count), int(n)),
                    "n": int(n),
                    "interval": EXACT,
                }
                reason = "" if n else f"none of {int((table['kind'] == kind).sum())} {kind} errors was harmful"
                rows.append(row | {"detail": f"{count} of {n} harmful errors {word}", "reason": reason})
        return pd.DataFrame(rows).sort_values("claim", kind="stable")

    return by_thirds(find, table)
