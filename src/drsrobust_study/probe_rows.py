"""Probe rows: which single flips they detect and which not, and latency times cost (notebook 18)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.campaign import bit_partition
from drsrobust.data import Split
from drsrobust.evaluation import Evaluator
from drsrobust.extend import progress_bar
from drsrobust.injection import FixedCount, resolve
from drsrobust.statistics import ENDS, LOSS_IS_BOUNDED, STRATUM, WEIGHT, Strata, wilson
from drsrobust_extras.experiments.probe_rows import NOT_READ, OUTCOMES, ProbeRows
from drsrobust_study.components import BOUNDED, layer_partition
from drsrobust_study.effects import over_trainings, pooled
from drsrobust_study.effects import table as effect_table

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.injection import TargetLike

WHOLE, DENSE, TABLES = PARTS = "whole model", "dense layers", "tables"
MORE = 4  # times `trials`, spread over all strata of a part
TOP = "exponent_top"  # the class of bits whose flips do nearly all harm
MORE_OF_TOP = 10  # times `trials`, in dense layers
_ROWS = {"cover": "chosen", "random": "random"}
_SEEDS = 1_000_003  # apart, so that no two strata have trials of one seed


def flips(
    evaluator: Evaluator,
    probes: Mapping[str, ProbeRows],
    *,
    trials: int,
    explained: ProbeRows,
    seed: int,
) -> "pd.DataFrame":
    """Trials with one flipped bit, in strata: component times class of bits; tables each by itself for the top exponent bit.

    Args:
        evaluator: of the rows on which AUC is measured.
        probes: a name -> probe rows of the same model.
        trials: of each stratum, at least, and 10 times as many of the top exponent bit of dense layers; another 4 times as many
            in each part (dense layers, tables) go to its strata by their bits.
        explained: probe rows whose undetected flips get a reason.
        seed: of the first trial.

    Returns:
        one row per trial: `model`, `dataset`, `part`, `component`, `bit_class`, `stratum`, `weight` (which sum to 1), `trial`,
        `seed`, `auc`, `auc_golden`, `auc_drop`, `rows_reached`, `outcome` (of the evaluation), `reason` (`ProbeRows.outcome` of
        `explained`) with `reason_read` (the exact share of the stratum's words that it reads), `target` of the stratum, and of
        each of `probes`, by its name, how many rows are needed (infinite: all do not detect it), and `<name>_reading`, how many
        to read the wrong word.
    """
    import pandas as pd

    model, rows = evaluator.model, []
    partition, by_layer = bit_partition(model), layer_partition(model)
    of_tables, top = partition["component"] == "embedding", by_layer["bit_class"] == TOP
    tables = by_layer[top & (by_layer["component"] == "embedding")]
    partition = pd.concat([partition[~of_tables | (partition["bit_class"] != TOP)], tables], ignore_index=True)
    partition["part"] = np.where(partition["component"] == "embedding", TABLES, DENSE)
    share = partition["weight"] / partition.groupby("part")["weight"].transform("sum")
    numbers = np.where((partition["bit_class"] == TOP) & (partition["part"] == DENSE), MORE_OF_TOP, 1) * trials
    numbers += (MORE * trials * share).round().to_numpy(int)
    about = {"model": evaluator.name, "dataset": evaluator.rows.dataset, "auc_golden": evaluator.golden.auc}
    maps = []
    for stratum, (part, n) in enumerate(zip(partition.itertuples(), numbers, strict=True)):
        space, error = resolve(model, part.target), FixedCount(1, bits=part.bits)
        reads = read_share(explained, part.target)
        for trial in range(n):
            maps.append(error.sample(space, seed=seed + _SEEDS * stratum + trial))
            row = about | {"part": part.part, "component": part.component, "bit_class": part.bit_class}
            row |= {"target": part.target, "reason_read": reads}
            rows.append(row | {STRATUM: str(stratum), WEIGHT: part.weight / n, "trial": trial, "seed": maps[-1].seed})
    with progress_bar(len(maps), "single flips") as bar:
        for row, errors in zip(rows, maps, strict=True):
            with errors.applied(model):
                result = evaluator.rerun(errors)
                needed = {name: chosen.rows_needed(errors) for name, chosen in probes.items()}
            row |= {"auc": result.auc, "outcome": result.outcome, "rows_reached": result.rows_reached}
            row["reason"] = explained.outcome(errors)
            row |= {name: np.inf if n is None else n for name, n in needed.items()}
            row |= {f"{name}_reading": chosen.rows_reading(errors) or np.inf for name, chosen in probes.items()}
            bar.update()
    frame = pd.DataFrame(rows)
    frame["auc"] = frame["auc"].astype(float)
    return frame.assign(auc_drop=frame["auc_golden"] - frame["auc"])


def of_part(trials: "pd.DataFrame", part: str) -> "pd.DataFrame":
    """The trials of a part of the model, with weights that sum to 1."""
    some = trials if part == WHOLE else trials[trials["part"] == part]
    return some.assign(**{WEIGHT: some[WEIGHT] / some[WEIGHT].sum()})


def read_share(probes: ProbeRows, target: "TargetLike") -> float:
    """The exact share of a target's words that scores of the probe rows depend on."""
    words = probes.coverage(target)
    return float(words["read"].sum() / words["words"].sum())


def detected_share(
    trials: "pd.DataFrame",
    part: str,
    flags: "Callable[[pd.DataFrame], pd.Series]",
    read: "Callable[[pd.DataFrame], pd.Series]",
    shares: "Callable[[pd.DataFrame], pd.Series]",
) -> tuple[float, ...]:
    """The share of single flips in a part with a property that only flips in words that are read can have, and its interval.

    Each stratum is divided into flips in words that are read and others, whose exact shares are known (post-stratification, W.
    G. Cochran, Sampling Techniques, 3rd ed., 1977, section 5A.9): the share is the sum of weight times share read times share
    of the trials in read words that have the property, its interval of Wilson's of these, and neither is over what is read.
    A stratum whose trials hit no word that is read counts with the share of all others, and with an interval from 0 to 1.

    Args:
        trials, part: as of `of_part`.
        flags: which trials have the property.
        read: which trials are in a word that is read.
        shares: the exact share of words that are read, in each trial's stratum.
    """
    some = of_part(trials, part)
    strata = Strata.of(some)
    has, is_read = flags(some).to_numpy(bool), read(some).to_numpy(bool)
    exact = np.array([shares(some).to_numpy(float)[member][0] for member in strata.members])
    weights = strata.weights * exact
    most = float(weights.sum())
    found = np.array(
        [wilson(int((has & is_read & member).sum()), int((is_read & member).sum())) for member in strata.members]
    )
    empty = np.isnan(found[:, 0])
    known = weights[~empty].sum()
    found[empty] = (weights[~empty] @ found[~empty, 0] / known if known > 0 else 0.0, 0.0, 1.0)
    share, low, high = found.T
    mean = float(weights @ share)
    below, above = np.linalg.norm(weights * (share - low)), np.linalg.norm(weights * (high - share))
    return min(mean, most), float(max(0.0, mean - below)), float(min(most, mean + above))


def within(
    trials: "pd.DataFrame", how: str, probes: ProbeRows, count: int, evaluator: Evaluator
) -> "tuple[Callable[[pd.DataFrame], pd.Series], ...]":
    """`flags`, `read` and `shares` of `detected_share`: of the first `count` of the probe rows of column `how`."""
    first = ProbeRows(evaluator, probes.rows.head(count))
    exact = {str(target): read_share(first, target) for target in trials.drop_duplicates(STRATUM)["target"]}
    return (
        lambda some: some[how] <= count,
        lambda some: some[f"{how}_reading"] <= count,
        lambda some: some["target"].astype(str).map(exact),
    )


def curves(
    trials: "pd.DataFrame", evaluator: Evaluator, probes: Mapping[str, ProbeRows], counts: Iterable[int]
) -> "pd.DataFrame":
    """What the first n of the probe rows read and detect.

    Args:
        trials: of `flips`.
        evaluator, probes: as there.
        counts: numbers of rows.

    Returns:
        one row per part, name of `probes` and n: `model`, `dataset`, `part`, `how`, `rows`, `n` (trials), `read` (exact share
        of the part's words), `detected` with `_low` and `_high`, and of the whole model `noticed` (`noticed_losses`).
    """
    import pandas as pd

    found = []
    for how, chosen in probes.items():
        for count in counts:
            covered = ProbeRows(evaluator, chosen.rows.head(count)).coverage()
            inside = covered["component"] == "embedding"
            for part in PARTS:
                words = covered if part == WHOLE else covered[inside == (part == TABLES)]
                row = {name: trials[name].iloc[0] for name in ("model", "dataset")}
                row |= {"part": part, "how": how, "rows": count, "n": len(of_part(trials, part))}
                row["read"] = words["read"].sum() / words["words"].sum()
                share = detected_share(trials, part, *within(trials, how, chosen, count, evaluator))
                row |= zip((f"detected{end}" for end in ENDS), share, strict=True)
                if part == WHOLE:
                    lost = noticed_losses(trials, evaluator.rows, {how: trials[how] <= count})[how]
                    row |= zip((f"noticed{end}" for end in ENDS), lost, strict=True)
                found.append(row)
    return pd.DataFrame(found)


def outcomes(trials: "pd.DataFrame") -> "pd.DataFrame":
    """What becomes of single flips: `part`, `outcome` (`ProbeRows.outcome`), `n` (trials), `share` with `_low` and `_high`."""
    import pandas as pd

    rows = []
    for part in PARTS:
        read = of_part(trials, part)
        read = float(read[WEIGHT] @ read["reason_read"])
        for outcome in OUTCOMES:
            share = (1 - read,) * 3  # of what is not read, exact
            if outcome != NOT_READ:
                share = detected_share(
                    trials,
                    part,
                    lambda some, outcome=outcome: some["reason"] == outcome,
                    lambda some: some["reason"] != NOT_READ,
                    lambda some: some["reason_read"],
                )
            row = {"part": part, "outcome": outcome, "n": len(of_part(trials, part))}
            rows.append(row | dict(zip((f"share{end}" for end in ENDS), share, strict=True)))
    return pd.DataFrame(rows)


def noticed_losses(
    trials: "pd.DataFrame", split: Split, found: "Mapping[str, pd.Series]"
) -> dict[str, tuple[float, ...]]:
    """The share of the AUC lost by single flips that goes with those that a detector detects.

    The interval is Fieller's for a ratio of means over the same trials, widened by what was not seen: a flip that is not
    detected may lose as much as rows can that any trial of its stratum reached (all rows, if none did), but for classes of bits
    whose loss is bounded (`drsrobust_study.components`). A model that raises loses all of its AUC, and is noticed.

    Args:
        trials: of `flips`.
        split: the rows on which AUC was measured.
        found: detector -> which trials it detects (bool).

    Returns:
        detector -> share, low, high; NaN where flips lose nothing.
    """
    golden, shares = float(trials["auc_golden"].iloc[0]), {}
    some = trials.assign(**{LOSS_IS_BOUNDED: trials["bit_class"].isin(BOUNDED)})
    strata, lost = Strata.of(some), trials["auc_drop"].fillna(golden).to_numpy(float)
    clicks = int((split.labels > 0.5).sum())
    reached = [trials["rows_reached"].to_numpy(float)[member].max() or len(split) for member in strata.members]
    most = np.array(reached) / max(1, min(clicks, len(split) - clicks))
    least, greatest = -np.minimum(1 - golden, most), np.minimum(golden, most)
    low, high = (np.broadcast_to(end, greatest.shape) @ strata.members for end in (least, greatest))
    for name, flags in found.items():
        flags = flags | trials["auc_drop"].isna()
        left = np.where(flags.to_numpy(bool), 0.0, lost)
        upper = Strata.of(some, left).mean_interval(np.clip(left, low, high), (least, greatest))[2]
        share, share_low, share_high = strata.ratio(left, lost)
        mean = strata.mean(lost)
        ends = [1 - share, 1 - np.maximum(share_high, upper / mean if mean > 0 else np.nan), 1 - share_low]
        shares[name] = tuple(np.clip(ends, 0.0, 1.0).tolist())
    return shares


def joined(found: "Mapping[int, pd.DataFrame]") -> "pd.DataFrame":
    """`curves` of several trained models as one (`drsrobust_study.effects.pooled`): no end is over what the rows read.

    Args:
        found: training seed -> `curves`.
    """
    table = pooled(found, ["model", "dataset", "part", "how", "rows"], ["read", "detected", "noticed"])
    return table.assign(detected_high=table[["detected_high", "read_most"]].min(axis=1, skipna=False))


def effects(found: "Mapping[int, pd.DataFrame]", counts: Sequence[int]) -> "pd.DataFrame":
    """Shares of single flips that probe rows detect, and of words that they read, over which no share of flips can be
    (`drsrobust_study.effects`).

    Args:
        found: training seed -> `curves`.
        counts: numbers of rows.
    """
    import pandas as pd

    table, rows = pd.concat(found.values()), []
    for (how, part, count), some in table[table["rows"].isin(counts)].groupby(["how", "part", "rows"], sort=False):
        name, which = f"{count} {how}, {part}", f"{count:,} {_ROWS.get(how, how)} row{'s' * (count > 1)}"
        detected, noticed = ([some.get(f"{quantity}{end}") for end in ENDS] for quantity in ("detected", "noticed"))
        row = over_trainings(f"detected {name}", f"share of single flips in the {part}: found by {which}", *detected)
        rows.append(row | {"high": np.minimum(row["high"], some["read"].max())})
        rows.append(over_trainings(f"read {name}", f"share of the words of the {part}: read by {which}", some["read"]))
        if part == WHOLE:
            rows.append(
                over_trainings(f"noticed {name}", f"share of the AUC lost by single flips: found by {which}", *noticed)
            )
    return effect_table(rows)
