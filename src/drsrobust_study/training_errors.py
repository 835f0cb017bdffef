"""Errors during training: what they cost, which detector notices them, and what actions leave (notebook 17)."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.injection import Activations, FixedCount, Gradients, Inputs, OptimizerState
from drsrobust.introspection import components
from drsrobust.statistics import ENDS, STRATUM, WEIGHT, Strata
from drsrobust_extras.experiments.training_errors.campaign import HARMFUL
from drsrobust_study.effects import measured
from drsrobust_study.effects import table as effect_table
from drsrobust_study.findings import EXACT, exact_share

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

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
}
WITHIN = (1, 3, 10)  # steps
NOTICED = 3  # steps within which an error counts as noticed
NORM, NON_FINITE, RECOMPUTE = "gradient_norm", "non_finite", "recompute"
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


def words_of(model: "nn.Module") -> dict[str, int]:
    """Place -> the words in which a stored error may strike: row-wise Adagrad keeps a sum per table row, Adam two numbers per
    other parameter."""
    table = components(model)
    in_tables = table["component"] == "embedding"
    tables, others = (int(table.loc[which, "parameters"].sum()) for which in (in_tables, ~in_tables))
    rows = sum(len(weight) for name, weight in model.named_parameters() if "embedding" in name)
    return {"weights": others, "tables": tables, "Adam m": others, "Adam v": others, "Adagrad sums": rows}


def by_place(table: "pd.DataFrame", words: Mapping[str, int]) -> "pd.DataFrame":
    """What errors cost by place and class of bits.

    Args:
        table: of `named`.
        words: of each stored place (`words_of`).

    Returns:
        `model`, `dataset`, `place`, `kind`, `bit_class`, `words` (null where none are stored), `n` (trials with an AUC),
        `harmful` (of these), `auc_drop` (mean) and `auc_drop_most`.
    """
    keys = ["model", "dataset", "place", "kind", "bit_class"]
    found = table.dropna(subset=["auc"]).groupby(keys, sort=False)
    columns = {"n": ("auc", "size"), "harmful": ("harmful", "sum"), "auc_drop": ("auc_drop", "mean")}
    shown = found.agg(**columns, auc_drop_most=("auc_drop", "max")).reset_index()
    shown.insert(len(keys), "words", shown["place"].map(words))
    return shown


def detection(table: "pd.DataFrame", detectors: Iterable[str]) -> "pd.DataFrame":
    """Shares of the harmful errors that each detector noticed within some steps, the first being that of the error.

    Args:
        table: of `named`.
        detectors: names.

    Returns:
        `kind`, `detector`, `within`, `n` (harmful errors), `noticed`, `share` with `_low` and `_high` (exact).
    """
    import pandas as pd

    rows = []
    for kind in (STORED, COMPUTED):
        bad = table[table["harmful"] & (table["kind"] == kind)]
        for detector in detectors:
            for steps in WITHIN:
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
        of these with `_low` and `_high` (exact), and `auc_drop`, the mean that they cost.
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
            rows.append(about | ends | {"auc_drop": float((bad["auc_golden"] - auc).mean())})
    return pd.DataFrame(rows)


def effects(table: "pd.DataFrame", words: Mapping[str, int]) -> "pd.DataFrame":
    """Of the harmful errors of each kind, in counts: those that the gradient norm notices within 3 steps, those that a check
    for NaN and infinity does, those that only the norm does, and those that cost no more than 0.005 AUC where the step is
    computed again at each alarm of the norm. Of stored ones also by words: an error strikes each word of memory equally often.

    Args:
        table: of `named`, with the trials of bit 30, which does nearly all harm.
        words: of each stored place (`words_of`).

    Returns:
        `drsrobust_study.effects.table`.
    """
    rows: list[dict[str, Any]] = []
    norm, finite = ((table[f"alarm_{name}"] <= NOTICED).fillna(False).astype(bool) for name in (NORM, NON_FINITE))
    repaired = (table["auc_golden"] - table[f"auc_{RECOMPUTE}"].fillna(0.0)) <= HARMFUL
    flags = {
        "norm": (f"the gradient norm notices within {NOTICED} steps", norm),
        "non-finite": (f"a check for NaN and infinity notices within {NOTICED} steps", finite),
        "norm alone": ("the gradient norm notices and that check does not", norm & ~finite),
        RECOMPUTE: ("computing the step again repairs", repaired),
    }
    for kind in (STORED, COMPUTED):
        of_kind = table["kind"] == kind
        bad = table["harmful"] & of_kind
        for name, (what, flag) in flags.items():
            count, n = int((flag & bad).sum()), int(bad.sum())
            why = "" if n else f"none of {int(of_kind.sum())} {kind} errors was harmful"
            text = f"harmful {kind} errors that {what}: {count} of {n}"
            rows.append(measured(f"{name} {kind}", text, list(exact_share(count, n).values()), n, EXACT, why))
    stored = table[(table["kind"] == STORED) & (table["bit_class"] == next(iter(BITS)))].dropna(subset=["auc"])
    weight = stored["place"].map(words) / stored.groupby("place")["place"].transform("size")
    strata = (
        Strata.of(stored.assign(**{STRATUM: stored["place"], WEIGHT: weight / weight.sum()})) if len(stored) else None
    )
    for name in ("norm", "norm alone", RECOMPUTE):
        what, flag = flags[name]
        bad = stored["harmful"].to_numpy(float)
        ends = (np.nan,) * 3 if strata is None else strata.ratio(bad * flag[stored.index].to_numpy(float), bad)
        text, ends = f"the same by words of memory, of bit 30: {what}", np.clip(ends, 0, 1).tolist()
        why = "" if bad.any() else "no harmful error"
        rows.append(measured(f"{name} stored, by words", text, ends, int(bad.sum()), "words", why))
    return effect_table(rows)
