"""AUC against the bit error rate with activation clipping and with selective bit protection: Fig. 12 of the study, and
statements S13 to S17."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, CriticalBits, resolve
from drsrobust.mitigation import Mitigation
from drsrobust.statistics import NONE
from drsrobust_extras.protection.bit_protection import BitProtection
from drsrobust_study.as_released import clippings
from drsrobust_study.effects import campaign_seed
from drsrobust_study.part_curves import ALL, ANY_TABLE, MLP, part_targets
from drsrobust_study.statements import values

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

BOUND, BITS = 6.0, range(23, 32)
CLIPPING, IDEAL, SECDED, TMR = f"clip to {BOUND:g}", "SBP, ideal", "SBP, SECDED", "SBP, TMR"
CODES = {IDEAL: "ideal", SECDED: "secded", TMR: "tmr"}
STUDY = ("fm", "dcn", "afm", "wide_deep", "deepfm")
TABLE_HEAVY = ("fm", "afm")  # the study calls them robust, too
LEAST_LOST = 0.005  # AUC, of a cell (model x data set x rate) by which statements are judged
LEAST_MAPS = 4  # of each stratum
KEYS = ["model", "dataset", "train_seed", "ber"]


def protections(model: "nn.Module") -> list[Mitigation | None]:
    """None, the study's clipping of hidden layers to [-6, 6] (not for a model without one, as FM), and selective protection
    of bits 23 to 31: ideal, and by codes whose check bits or copies take errors too.

    Clipping acts on the output of each nn.Linear but the last; NaN becomes 0. With ReLU behind it this is ReLU6.
    """
    clips = clippings(model, [BOUND])
    codes = [BitProtection(BITS, code=code) for code in CODES.values()]
    for protection, name in zip([*clips, *codes], [CLIPPING] * len(clips) + [*CODES], strict=True):
        protection.name = name
    return [None, *clips, *codes]


def recovery_trials(
    evaluator: Evaluator, bers: Sequence[float], *, trials: int, train_seed: int, seed: int
) -> "pd.DataFrame":
    """Trials of one trained model with errors in all parameters, without and with each of `protections` on the same maps.

    At low rates a map seldom holds a flip that matters, so maps are drawn by strata (`BitFlip.strata`), the same number in
    each.

    Args:
        evaluator: of the model.
        bers: bit error rates.
        trials: maps per rate, in all strata together, if that gives each `LEAST_MAPS`.
        train_seed: of the model.
        seed: of the maps; each training has maps of its own.

    Returns:
        the campaigns' tables with `train_seed`, `stratum` and `weight` (its probability).
    """
    import pandas as pd

    model, tables = evaluator.model, []
    critical = CriticalBits() if MLP in part_targets(model) else CriticalBits(table_rows=ANY_TABLE)
    guards = protections(model)
    for ber in bers:
        drawn = [one for one in BitFlip(ber).strata(resolve(model, ALL), critical) if not one.is_pilot]
        conditions = [(one.error_model, ALL, guard) for one in drawn for guard in guards]
        maps = max(trials // len(drawn), LEAST_MAPS)
        options = {"trials": maps, "seed": campaign_seed(seed, train_seed), "sampling": "plain"}
        table = Campaign(evaluator, conditions=conditions, **options).run()
        by_label = {one.error_model.label: one for one in drawn}
        strata = table["error_model"].map(by_label)
        columns = {"stratum": [one.name for one in strata], "weight": [one.probability for one in strata]}
        tables.append(table.assign(train_seed=train_seed, ber=ber, **columns))
    return pd.concat(tables, ignore_index=True)


def recovery_points(table: "pd.DataFrame") -> "pd.DataFrame":
    """One row per trained model, rate and protection (`none` among them).

    Args:
        table: `recovery_trials` of several models.

    Returns:
        `KEYS` and `mitigation`; `golden`, the AUC without errors; `lost`, the mean AUC lost without protection; `auc`, the mean
        AUC; `points`, the AUC given back, and `share`, the same over `lost`; `ahead`, the share that clipping gives back minus
        this one (NaN where nothing is clipped). `<name>_error`: standard errors over maps, of differences over pairs of trials
        with the same map.
    """
    import pandas as pd

    rows = []
    for keys, group in table.groupby(KEYS, sort=False):
        aucs = group.pivot(index=["stratum", "trial"], columns="mitigation", values="auc")
        weights, golden = group.groupby("stratum")["weight"].first(), float(group["auc_golden"].iloc[0])
        lost = golden - aucs[NONE]
        mean_lost, lost_error = _mean(lost, weights)
        clipped = aucs[CLIPPING] if CLIPPING in aucs else pd.Series(np.nan, aucs.index)
        for name in group["mitigation"].unique():
            row = dict(zip(KEYS, keys, strict=True)) | {"mitigation": name, "golden": golden}
            row |= {"lost": mean_lost, "lost_error": lost_error}
            row["auc"], row["auc_error"] = _mean(aucs[name], weights)
            row["points"], row["points_error"] = _mean(aucs[name] - aucs[NONE], weights)
            row["share"], row["share_error"] = _ratio(aucs[name] - aucs[NONE], lost, weights)
            row["ahead"], row["ahead_error"] = _ratio(clipped - aucs[name], lost, weights)
            rows.append(row)
    return pd.DataFrame(rows)


def _mean(trials: "pd.Series", weights: "pd.Series") -> tuple[float, float]:
    """The mean over strata and its standard error; NaN where a trial has no value."""
    if trials.isna().any():
        return np.nan, np.nan
    strata = trials.groupby("stratum")
    means, variances = (one.reindex(weights.index) for one in (strata.mean(), strata.var() / strata.size()))
    return float(weights @ means), float(np.sqrt(weights**2 @ variances))


def _ratio(top: "pd.Series", bottom: "pd.Series", weights: "pd.Series") -> tuple[float, float]:
    """The ratio of two means over the same trials, and its standard error by linearisation."""
    under = _mean(bottom, weights)[0]
    ratio = _mean(top, weights)[0] / under if under else np.nan
    return ratio, _mean(top - ratio * bottom, weights)[1] / abs(under) if under else np.nan


def counted_cells(points: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of cells (model of the study x data set x rate) that lose over 0.005 AUC without protection, on average over
    trainings."""
    cells = points[points["model"].isin(STUDY)]
    return cells[cells.groupby(["model", "dataset", "ber"])["lost"].transform("mean") > LEAST_LOST]


def statement_values(points: "pd.DataFrame") -> "pd.DataFrame":
    """What S13 to S17 are judged by, a row per trained model: `study.statements.values` of `recovery_points`."""
    cells, rows = counted_cells(points), []
    of = {name: cells[cells["mitigation"] == name] for name in (CLIPPING, *CODES)}
    for name, own in of.items():
        statement, kind = ("S13", "") if name == CLIPPING else ("S14", f"{name.removeprefix('SBP, ')}, ")
        rows += _of_cells(statement, f"{kind}share", own, "share given back", "share")
        rows += _of_cells(statement, f"{kind}AUC points", own, "AUC given back", "points")
    for name in (SECDED, TMR):
        part, clipped = name.removeprefix("SBP, "), of[name].dropna(subset=["ahead"])
        rows += _of_cells("S15", part, clipped, "share, clipping minus SBP", "ahead")
        rows += _of_groups("S16", part, of[name], "share, table-heavy minus others")
    return values([*rows, *_of_groups("S17", "clipping", of[CLIPPING], "share, robust minus others")])


def _of_cells(statement: str, part: str, cells: "pd.DataFrame", what: str, column: str) -> Iterator[dict[str, Any]]:
    for row in cells.to_dict("records"):
        item, number = f"{row['model']} at {row['ber']:g}", {"value": row[column], "error": row[f"{column}_error"]}
        about = {"statement": statement, "part": part, "dataset": row["dataset"], "what": what}
        yield about | number | {"item": item, "unit": row["train_seed"]}


def _of_groups(statement: str, part: str, cells: "pd.DataFrame", what: str) -> Iterator[dict[str, Any]]:
    """At each rate, the mean share of the table-heavy models minus that of the others of the same training seed."""
    for (dataset, ber, seed), group in cells.groupby(["dataset", "ber", "train_seed"], sort=False):
        heavy = group["model"].isin(TABLE_HEAVY).to_numpy()
        if heavy.any() and not heavy.all():
            parts = np.where(heavy, 1 / heavy.sum(), -1 / (~heavy).sum())
            number = {"value": parts @ group["share"], "error": float(np.linalg.norm(parts * group["share_error"]))}
            sides = (" and ".join(dict.fromkeys(group.loc[one, "model"])) for one in (heavy, ~heavy))
            item = f"at {ber:g}, {' against '.join(sides)}"
            about = {"statement": statement, "part": part, "dataset": dataset, "item": item, "what": what}
            yield about | number | {"unit": seed}
