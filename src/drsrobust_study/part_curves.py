"""AUC against the bit error rate with errors in all of a model, its MLPs, or its tables: Fig. 9 to 11 of the study, and
statements S6 to S12; and the law behind the curves: loss = flips x loss per flip, until it saturates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from drsrobust.campaign import Campaign
from drsrobust.injection import BitFlip, CriticalBits
from drsrobust.introspection import components, has_group
from drsrobust.statistics import summarise
from drsrobust_study.effects import campaign_seed
from drsrobust_study.shards import run_campaign
from drsrobust_study.statements import interval, values

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from drsrobust.evaluation import Evaluator

ALL, MLP, TABLE, RELEASED = "all", "mlp", "table", "as_released"
# First-order weights count as table; a head, AFM's attention and AFN's logarithmic layer as MLP. DCN's cross layers are in
# `all` and in no part.
PARTS = {MLP: ("*_mlp", "head", "attention", "logarithmic"), TABLE: ("embedding", "linear")}
ANY_TABLE = 10**9  # rows: critical bits of all tables are drawn on purpose
PLAIN = "plain maps"  # label of the trials whose spread is that of single runs
LOSS = 0.01  # AUC, whose rate is read off
KEYS = ["model", "dataset", "train_seed", "part"]
_Z = 1.959964  # half-widths of a 95 % interval in standard errors


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
    evaluator: "Evaluator",
    bers: Sequence[float],
    *,
    trials: int,
    plain_trials: int,
    train_seed: int,
    seed: int,
    shard: str = "",
    merge: Sequence[str] = (),
) -> "pd.DataFrame":
    """Trials with errors in each part of one trained model: stratified maps, whose means hold at low rates too, and plain ones;
    and stratified ones with errors where the published scripts put them.

    Args:
        evaluator: of the model.
        bers: bit error rates.
        trials, plain_trials: maps per rate and part.
        train_seed: of the model.
        seed: of the maps; each training has maps of its own.
        shard, merge: as `run_campaign` takes them.

    Returns:
        the campaigns' tables with `part` and `train_seed`; the plain maps have the protocol `plain maps`.
    """
    import pandas as pd

    errors, targets, tables = [BitFlip(ber) for ber in bers], part_targets(evaluator.model), []
    released = {RELEASED: RELEASED} if has_group(evaluator.model, RELEASED) else {}
    for part, target in (targets | released).items():
        # A model without an MLP is tables alone: their critical bits are drawn on purpose, too.
        sampling = CriticalBits(table_rows=ANY_TABLE) if part == TABLE or MLP not in targets else CriticalBits()
        options = {"errors": errors, "targets": [target], "seed": campaign_seed(seed, train_seed)}
        campaigns = [Campaign(evaluator, trials=trials, sampling=sampling, **options)]
        if part != RELEASED:
            campaigns.append(Campaign(evaluator, trials=plain_trials, label=PLAIN, sampling="plain", **options))
        for campaign in campaigns:
            tables.append(run_campaign(campaign, shard, merge).assign(part=part, train_seed=train_seed))
    return pd.concat(tables, ignore_index=True)


def part_points(table: "pd.DataFrame") -> "pd.DataFrame":
    """The points of each trained model.

    Args:
        table: as `part_trials` returns it, of one or more models.

    Returns:
        one row per trained model, part and rate: `KEYS`, `ber`, `bits` (of the part), `golden`, `auc` and `lost` (means over
        stratified maps), `lost_error` (standard error of `lost` over maps), `n` maps, and of single plain maps `spread`
        (standard deviation of their AUC), `least` and `most`; NaN without such maps.
    """
    import pandas as pd

    rows = []
    for keys, group in table.groupby(KEYS, sort=False):
        single = group[group["protocol"] == PLAIN].groupby("ber")["auc"].agg(["std", "min", "max"])
        for point in summarise(group[group["protocol"] != PLAIN]).itertuples():
            row = dict(zip(KEYS, keys, strict=True))
            row |= {"ber": point.ber, "bits": point.n_bits, "golden": point.auc_golden, "auc": point.auc, "n": point.n}
            row |= {"lost": point.auc_drop}
            row |= {"lost_error": (point.auc_drop_maps_high - point.auc_drop_maps_low) / (2 * _Z)}
            of_single = single.reindex([point.ber]).iloc[0].tolist()
            rows.append(row | dict(zip(("spread", "least", "most"), of_single, strict=True)))
    return pd.DataFrame(rows)


def over_trainings(points: "pd.DataFrame") -> "pd.DataFrame":
    """The points of each model, over its trainings.

    Args:
        points: `part_points`.

    Returns:
        one row per model, data set, part and rate: `auc`, with `auc_low` and `auc_high` (95 % interval over trainings, NaN for
        under 3), `lost`, `sd_trainings` and `sd_maps` (standard deviations of the AUC between trainings, and of single plain
        maps of one training), `least` and `most` (of single plain maps), `golden`, `trainings` and `n` maps in all.
    """
    import pandas as pd

    rows = []
    keys = ["dataset", "part", "model", "ber"]
    for names, group in points.groupby(keys, sort=False):
        row = dict(zip(keys, names, strict=True))
        row |= zip(("auc", "auc_low", "auc_high"), interval(group["auc"], group["lost_error"]), strict=True)
        row |= {"lost": group["lost"].mean(), "sd_trainings": group["auc"].std(), "sd_maps": group["spread"].mean()}
        row |= {"least": group["least"].min(), "most": group["most"].max(), "golden": group["golden"].mean()}
        rows.append(row | {"trainings": len(group), "n": int(group["n"].sum())})
    return pd.DataFrame(rows)


def crossing(losses: np.ndarray, rates: np.ndarray, limit: float = LOSS) -> float:
    """The first rate at which a curve reaches a limit, with log loss linear in log rate between two rates; from 0 below the
    lowest rate, and where the loss at the lower one is not over 0, linear in the rate.

    Args:
        losses: [rates], mean losses.
        rates: [rates], ascending, above 0.
        limit: above 0.

    Returns:
        infinite where the curve stays below.

    Example:
        >>> round(crossing(np.array([0.002, 0.02]), np.array([1e-5, 1e-4])), 7)
        5e-05
    """
    reached = np.flatnonzero(losses >= limit)
    if not len(reached):
        return np.inf
    first = reached[0]
    above, below = losses[first], losses[first - 1] if first else 0.0
    lower = rates[first - 1] if first else 0.0
    if below > 0:
        return float(lower * (rates[first] / lower) ** (np.log(limit / below) / np.log(above / below)))
    return float(lower + (limit - below) / (above - below) * (rates[first] - lower))


def loss_per_flip(points: "pd.DataFrame", linear: float = 0.1, off: float = 0.2) -> "pd.DataFrame":
    """The law of each curve: the AUC that one flip costs, and from which rate on flips times it is wrong.

    Args:
        points: `part_points`.
        linear: the loss per flip is read at the highest rate at which under this share of the AUC over 0.5 is lost: there most
            flips are seen, and the choice does not depend on errors that few maps give by chance.
        off: the law fails from the first higher rate at which the measured loss differs from it by over this share.

    Returns:
        one row per trained model and part: `KEYS`, `per_flip`, `flips` (that cost 0.01 AUC), `read_at` and `fails_at` (bit
        error rates; infinite: nowhere), `steepest` (`steepest_slope`), and `rate` (that costs 0.01 AUC by the curve itself);
        NaN where no rate can be read.
    """
    import pandas as pd

    rows = []
    for keys, curve in points.groupby(KEYS, sort=False):
        curve = curve.sort_values("ber")
        row = dict(zip(KEYS, keys, strict=True)) | dict.fromkeys(("per_flip", "flips", "read_at", "fails_at"), np.nan)
        least = curve[(curve["lost"] > 0) & (curve["lost"] < linear * (curve["golden"] - 0.5))]
        if len(least):
            best = least.iloc[-1]
            per_flip = best["lost"] / (best["ber"] * best["bits"])
            later = curve[curve["ber"] > best["ber"]]
            wrong = later[abs(later["lost"] / (per_flip * later["ber"] * later["bits"]) - 1) > off]["ber"]
            row |= {"per_flip": per_flip, "flips": LOSS / per_flip, "read_at": best["ber"]}
            row |= {"fails_at": float(wrong.min()) if len(wrong) else np.inf}
        row |= {"steepest": steepest_slope(curve)}
        rows.append(row | {"rate": crossing(curve["lost"].to_numpy(float), curve["ber"].to_numpy(float))})
    return pd.DataFrame(rows)


def steepest_slope(curve: "pd.DataFrame") -> float:
    """The greatest slope of log loss against log rate between neighbouring rates at which the loss is over twice its standard
    error: 1 where loss is proportional to the rate, more at a knee; NaN without two such rates.

    Args:
        curve: `ber` (ascending), `lost` and `lost_error`.
    """
    clear = curve["lost"] > 2 * curve["lost_error"]
    rates, losses = (np.diff(np.log(curve[name].where(clear)).to_numpy()) for name in ("ber", "lost"))
    slopes = losses / rates
    return float(np.nanmax(slopes)) if np.isfinite(slopes).any() else np.nan


def law_over_trainings(laws: "pd.DataFrame") -> "pd.DataFrame":
    """The law of each model and part, over its trainings: geometric means with 95 % intervals.

    Args:
        laws: `loss_per_flip`.

    Returns:
        one row per model, data set and part: `per_flip`, `flips` and `rate`, each with `_low` and `_high`; `fails_at` (the
        least of the trainings), `steepest` (their mean) and `trainings`.
    """
    import pandas as pd

    rows, keys = [], ["dataset", "model", "part"]
    for names, group in laws.groupby(keys, sort=False):
        row: dict[str, Any] = dict(zip(keys, names, strict=True))
        for name in ("per_flip", "flips", "rate"):
            row |= zip((name, f"{name}_low", f"{name}_high"), interval(group[name], log=True), strict=True)
        of_all = {"fails_at": group["fails_at"].min(), "steepest": group["steepest"].mean(), "trainings": len(group)}
        rows.append(row | of_all)
    return pd.DataFrame(rows)


def statement_values(points: "pd.DataFrame", models: Iterable[str]) -> "pd.DataFrame":
    """What S6 to S12 are judged by, a row per trained model (`statements.values`). What needs a rate or a data set that was
    not run has no row.

    Args:
        points: `part_points`.
        models: of the study; others are in no count.
    """
    points = points[points["model"].isin(list(models))]
    laws = loss_per_flip(points)
    return values([*_of_curves(points), *_of_rates(laws[laws["part"] == ALL])])


def _row(statement: str, keys: Mapping[str, Any], what: str, value: float, error: float = np.nan) -> dict[str, Any]:
    place = {"dataset": keys["dataset"], "item": keys["model"], "unit": keys["train_seed"]}
    return {"statement": statement, "what": what, "value": value, "error": error} | place


def _of_curves(points: "pd.DataFrame") -> Iterator[dict[str, Any]]:
    for (model, dataset, train_seed), group in points.groupby(KEYS[:3], sort=False):
        keys = {"model": model, "dataset": dataset, "train_seed": train_seed}
        of_part = {part: curve.set_index("ber") for part, curve in group.groupby("part", sort=False)}
        everywhere, tables = of_part[ALL], of_part[TABLE]
        rates, over = set(everywhere.index), everywhere["golden"].iloc[0] - 0.5
        if {1e-6, 1e-5, 1e-4} <= rates:
            for ber in (1e-6, 1e-5, 1e-4):
                yield _row("S6", keys, f"lost at {ber:g}", everywhere["lost"][ber], everywhere["lost_error"][ber])
            yield _row("S8", keys, "lost at 0.0001, tables", tables["lost"][1e-4], tables["lost_error"][1e-4])
        if {1e-3, 1e-2} <= rates:
            lost, error = everywhere["lost"][1e-3] / over, everywhere["lost_error"][1e-3] / over
            yield _row("S7", keys, "share lost at 0.001", lost, error)
            yield _row("S7", keys, "AUC at 0.01", everywhere["auc"][1e-2], everywhere["lost_error"][1e-2])
        if MLP in of_part:
            yield _row("S9", keys, "deviation, tables over MLPs", _ratio_of_spreads(tables, of_part[MLP]))


def _ratio_of_spreads(tables: "pd.DataFrame", mlps: "pd.DataFrame", least: float = 0.02, most: float = 0.5) -> float:
    """The ratio (geometric mean over rates) of standard deviations where both parts lose 2 to 50 % of the AUC over 0.5; NaN
    where there is no such rate."""
    shares = [(part["lost"] / (part["golden"] - 0.5)).between(least, most) for part in (tables, mlps)]
    ratio = (tables["spread"] / mlps["spread"])[shares[0] & shares[1]]
    return float(np.exp(np.log(ratio).mean())) if len(ratio) else np.nan


def _of_rates(laws: "pd.DataFrame") -> Iterator[dict[str, Any]]:
    table = laws.pivot(index="train_seed", columns=["dataset", "model"], values="rate")
    sets = {kind: [name for name in dict.fromkeys(laws["dataset"]) if kind in name] for kind in ("criteo", "movielens")}

    def ratios(statement: str, what: str, top: tuple, bottom: tuple, item: str, dataset: str) -> Iterator[dict]:
        if {top, bottom} <= set(table.columns):
            for seed, value in (table[top] / table[bottom]).items():
                yield _row(statement, {"model": item, "dataset": dataset, "train_seed": seed}, what, value)

    for dataset in dict.fromkeys(laws["dataset"]):
        for model in ("dcn", "deepfm", "wide_deep"):
            yield from ratios("S10", "rate over FM's", (dataset, model), (dataset, "fm"), model, dataset)
    if not all(sets.values()):
        return
    (criteo, *_), (movielens, *_) = sets.values()
    both = f"{movielens}, {criteo}"
    for model in dict.fromkeys(laws["model"]):
        yield from ratios("S11", "rate, Criteo over MovieLens", (criteo, model), (movielens, model), model, both)
    means = np.log(table).mean()
    high, low = means.idxmax(), means.idxmin()
    yield from ratios(
        "S12", "largest over smallest", high, low, f"{high[1]} on {high[0]} over {low[1]} on {low[0]}", both
    )
