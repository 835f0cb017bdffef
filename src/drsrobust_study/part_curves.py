"""AUC against the bit error rate with errors in all of a model, its MLPs, or its tables: Fig. 9 to 11 of the study, and
statements S6 to S12; and the law behind the curves: loss = flips x loss per flip, until it saturates."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.campaign.campaign import Campaign
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, CriticalBits
from drsrobust.introspection.tensors import components
from drsrobust.statistics.summary import summarise
from drsrobust_study.ber_sweep import crossing

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

ALL, MLP, TABLE = "all", "mlp", "table"
# First-order weights count as table; a head, AFM's attention and AFN's logarithmic layer as MLP. DCN's cross layers are in
# `all` and in no part.
PARTS = {MLP: ("*_mlp", "head", "attention", "logarithmic"), TABLE: ("embedding", "linear")}
ANY_TABLE = 10**9  # rows: critical bits of all tables are drawn on purpose
PLAIN = "plain maps"  # label of the trials whose spread is that of single runs
KEYS = ["model", "dataset", "train_seed", "part"]
Z = 1.959964


def part_targets(model: "nn.Module") -> dict[str, Any]:
    """The parts that a model has, and their targets.

    Example:
        >>> import drsrobust as dr
        >>> data = dr.load_dataset("synthetic-movielens/ids", rows=6000)
        >>> part_targets(dr.models.build_model("dcn", data.schema))
        {'all': 'all', 'mlp': ['deep_mlp', 'head'], 'table': ['embedding']}
    """
    table = components(model)
    names = table["component"][table["bits"] > 0]
    found = {
        part: [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
        for part, patterns in PARTS.items()
    }
    return {ALL: ALL} | {part: chosen for part, chosen in found.items() if chosen}


def part_trials(
    evaluator: Evaluator, bers: Sequence[float], *, trials: int, plain_trials: int, train_seed: int, seed: int
) -> "pd.DataFrame":
    """Trials with errors in each part of one trained model: stratified maps, whose means hold at low rates too, and plain ones.

    Args:
        evaluator: of the model.
        bers: bit error rates.
        trials, plain_trials: maps per rate and part.
        train_seed: of the model.
        seed: of the maps.

    Returns:
        the campaigns' tables with `part`, `train_seed` and `protocol` (`corrected`, `plain maps`).
    """
    import pandas as pd

    errors, targets, tables = [BitFlip(ber) for ber in bers], part_targets(evaluator.model), []
    for part, target in targets.items():
        whole = part == TABLE or MLP not in targets
        sampling = CriticalBits(table_rows=ANY_TABLE) if whole else CriticalBits()
        options = {"errors": errors, "targets": [target], "seed": seed}
        for of_campaign in (
            Campaign(evaluator, trials=trials, sampling=sampling, **options),
            Campaign(evaluator, trials=plain_trials, label=PLAIN, **options),
        ):
            tables.append(of_campaign.run().assign(part=part, train_seed=train_seed))
    return pd.concat(tables, ignore_index=True)


def part_points(table: "pd.DataFrame") -> "pd.DataFrame":
    """One row per trained model, part and rate: `auc`, `lost` (mean AUC lost over stratified maps) and `lost_error` (its
    standard error over maps), `spread` (standard deviation of single plain maps), `golden`, `bits`."""
    import pandas as pd

    rows = []
    for keys, group in table.groupby(KEYS, sort=False):
        of_maps = group[group["protocol"] == PLAIN].groupby("ber")["auc"].std()
        for point in summarise(group[group["protocol"] != PLAIN]).itertuples():
            row = dict(zip(KEYS, keys, strict=True)) | {
                "ber": point.ber,
                "bits": point.n_bits,
                "golden": point.auc_golden,
            }
            row |= {"auc": point.auc, "lost": point.auc_drop, "spread": of_maps.get(point.ber, np.nan)}
            rows.append(row | {"lost_error": (point.auc_drop_maps_high - point.auc_drop_maps_low) / (2 * Z)})
    return pd.DataFrame(rows)


def loss_per_flip(points: "pd.DataFrame", linear: float = 0.1, off: float = 0.2) -> "pd.DataFrame":
    """The law of each curve: the AUC that one flip costs, and from which rate on flips times it is wrong.

    Args:
        points: `part_points`.
        linear: the loss per flip is read where under this share of the AUC over 0.5 is lost, at the rate with the smallest
            relative error.
        off: the law fails from the first higher rate at which the measured loss differs from it by over this share.

    Returns:
        one row per trained model and part: `per_flip`, `flips` (that cost 0.01 AUC), `read_at` and `fails_at` (bit error rates;
        infinite: nowhere).
    """
    import pandas as pd

    rows = []
    for keys, curve in points.groupby(KEYS, sort=False):
        curve = curve.sort_values("ber")
        least = curve[(curve["lost"] > 0) & (curve["lost"] < linear * (curve["golden"] - 0.5))]
        row = dict(zip(KEYS, keys, strict=True)) | {
            "per_flip": np.nan,
            "flips": np.nan,
            "read_at": np.nan,
            "fails_at": np.nan,
        }
        if len(least):
            best = least.loc[(least["lost_error"] / least["lost"]).idxmin()]
            per_flip = best["lost"] / (best["ber"] * best["bits"])
            later = curve[curve["ber"] > best["ber"]]
            wrong = later[abs(later["lost"] / (per_flip * later["ber"] * later["bits"]) - 1) > off]["ber"]
            row |= {"per_flip": per_flip, "flips": 0.01 / per_flip, "read_at": best["ber"]}
            row |= {"fails_at": float(wrong.min()) if len(wrong) else np.inf}
        rows.append(row)
    return pd.DataFrame(rows)


def rates_at(points: "pd.DataFrame", loss: float = 0.01) -> "pd.DataFrame":
    """The rate at which each trained model loses so much, errors everywhere: `KEYS` and `rate`."""
    import pandas as pd

    rows = []
    for keys, curve in points[points["part"] == ALL].groupby(KEYS, sort=False):
        curve = curve.sort_values("ber")
        (rate,) = crossing(curve["lost"].to_numpy(float)[None], curve["ber"].to_numpy(float), loss)
        rows.append(dict(zip(KEYS, keys, strict=True)) | {"rate": float(rate)})
    return pd.DataFrame(rows)


def statement_values(points: "pd.DataFrame", models: Iterable[str]) -> "pd.DataFrame":
    """What S6 to S12 are judged by, a row per trained model.

    Args:
        points: `part_points`.
        models: of the study; others are in no count.

    Returns:
        `statement`, `part`, `dataset`, `item`, `what`, `unit`, `value`, `error`, as `reproduce.statements.judge` takes them.
    """
    import pandas as pd

    points = points[points["model"].isin(list(models))]
    rows = [*_of_curves(points), *_of_rates(rates_at(points))]
    return pd.DataFrame(rows, columns=["statement", "part", "dataset", "item", "what", "unit", "value", "error"])


def _row(statement: str, keys: Mapping[str, Any], what: str, value: float, error: float = np.nan) -> dict[str, Any]:
    place = {"dataset": keys["dataset"], "item": keys["model"], "unit": keys["train_seed"]}
    return {"statement": statement, "part": "", "what": what, "value": value, "error": error} | place


def _of_curves(points: "pd.DataFrame") -> Iterable[dict[str, Any]]:
    for (model, dataset, train_seed), group in points.groupby(KEYS[:3], sort=False):
        keys = {"model": model, "dataset": dataset, "train_seed": train_seed}
        of_part = {part: curve.set_index("ber") for part, curve in group.groupby("part", sort=False)}
        everywhere, tables = of_part[ALL], of_part[TABLE]
        for ber in (1e-6, 1e-5, 1e-4):
            yield _row("S6", keys, f"lost at {ber:g}", everywhere["lost"][ber], everywhere["lost_error"][ber])
        over = everywhere["golden"][1e-3] - 0.5
        yield _row(
            "S7", keys, "share lost at 0.001", everywhere["lost"][1e-3] / over, everywhere["lost_error"][1e-3] / over
        )
        yield _row("S7", keys, "AUC at 0.01", everywhere["auc"][1e-2], everywhere["lost_error"][1e-2])
        yield _row("S8", keys, "lost at 0.0001, tables", tables["lost"][1e-4], tables["lost_error"][1e-4])
        if MLP in of_part:
            yield _row("S9", keys, "deviation, tables over MLPs", _ratio_of_spreads(tables, of_part[MLP]))


def _ratio_of_spreads(tables: "pd.DataFrame", mlps: "pd.DataFrame", least: float = 0.02, most: float = 0.5) -> float:
    """The ratio (geometric mean over rates) of standard deviations where both parts lose 2 to 50 % of the AUC over 0.5; NaN
    where there is no such rate."""
    shares = [(part["lost"] / (part["golden"] - 0.5)).between(least, most) for part in (tables, mlps)]
    ratio = (tables["spread"] / mlps["spread"])[shares[0] & shares[1]]
    return float(np.exp(np.log(ratio).mean())) if len(ratio) else np.nan


def _of_rates(rates: "pd.DataFrame") -> Iterable[dict[str, Any]]:
    both = ", ".join(dict.fromkeys(rates["dataset"]))
    table = rates.pivot(index="train_seed", columns=["dataset", "model"], values="rate")
    for dataset in table.columns.unique("dataset"):
        for model in ("dcn", "deepfm", "wide_deep"):
            if {(dataset, model), (dataset, "fm")} <= {*table.columns}:
                for seed, value in (table[dataset, model] / table[dataset, "fm"]).items():
                    yield _row("S10", {"model": model, "dataset": dataset, "train_seed": seed}, "rate over FM's", value)
    sets = {
        kind: [name for name in table.columns.unique("dataset") if kind in name] for kind in ("criteo", "movielens")
    }
    if not all(sets.values()):
        return
    for model in table.columns.unique("model"):
        for seed, value in (table[sets["criteo"][0], model] / table[sets["movielens"][0], model]).items():
            yield _row(
                "S11", {"model": model, "dataset": both, "train_seed": seed}, "rate, Criteo over MovieLens", value
            )
    means = np.log(table).mean()
    high, low = means.idxmax(), means.idxmin()
    item = f"{high[1]} on {high[0]} over {low[1]} on {low[0]}"
    for seed, value in (table[high] / table[low]).items():
        yield _row("S12", {"model": item, "dataset": both, "train_seed": seed}, "largest over smallest", value)
