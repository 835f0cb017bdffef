"""Probe rows: which single flips they detect and which not, and latency times cost (notebook 18)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from drsrobust._processes import threads
from drsrobust._progress import progress_bar
from drsrobust.campaign import bit_partition
from drsrobust.data import Split
from drsrobust.evaluation import Evaluator
from drsrobust.injection import FixedCount, resolve
from drsrobust.mitigation import Mitigation, Scrubbing
from drsrobust.mitigation.memory.scrubbing import exposure
from drsrobust.models import padded_batches, score
from drsrobust.probe_rows import NOT_READ, OUTCOMES, ProbeRows
from drsrobust.statistics.columns import ENDS
from drsrobust.statistics.intervals import wilson
from drsrobust.statistics.strata import LOSS_IS_BOUNDED, STRATUM, WEIGHT, Strata
from drsrobust.timing import cpu_seconds, overhead
from drsrobust_study.components import BOUNDED, layer_partition
from drsrobust_study.effects import of_table, over_trainings, table

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.injection.targets import TargetLike

WHOLE, DENSE, TABLES = PARTS = "whole model", "dense layers", "tables"
MORE = 4  # times `trials`, spread over all strata of a part
TOP = "exponent_top"  # the class of bits whose flips do nearly all harm
MORE_OF_TOP = 10  # times `trials`, in dense layers
CHECKS = "ABFT, every batch"
PROBE_ROWS, CRC, CHECKED = KINDS = ("probe rows", "CRC32", CHECKS.split(",")[0])  # of detectors
_ROWS = {"cover": "chosen rows", "random": "random rows"}
_SEEDS = 1_000_003  # apart, so that no two strata have trials of one seed
_ROWS_AT_ONCE = 1 << 16  # rows whose CRC is computed at once
_TURNED = tuple(zip(ENDS, (ENDS[0], ENDS[2], ENDS[1]), strict=True))  # the less is noticed, the more is left


def flips(
    evaluator: Evaluator,
    probes: Mapping[str, ProbeRows],
    checks: Mitigation,
    *,
    trials: int,
    explained: ProbeRows,
    seed: int,
    progress: bool = True,
) -> "pd.DataFrame":
    """Trials with one flipped bit, in strata: component times class of bits; tables each by itself for the top exponent bit.

    Args:
        evaluator: of the rows on which AUC is measured.
        probes: a name -> probe rows of the same model.
        checks: a protection of the computation that reports what it detects on these rows.
        trials: of each stratum, at least, and 10 times as many of the top exponent bit of dense layers; another 4 times as many
            in each part (dense layers, tables) go to its strata by their bits.
        explained: probe rows whose undetected flips get a reason.
        seed: of the first trial.
        progress: shows a progress bar.

    Returns:
        one row per trial: `model`, `dataset`, `part`, `component`, `bit_class`, `stratum`, `weight` (which sum to 1), `trial`,
        `seed`, `auc`, `auc_golden`, `auc_drop`, `rows_reached`, `outcome` (of the evaluation), `checked` (detected by
        `checks`), `reason` (`ProbeRows.outcome` of `explained`) with `reason_read`, and of each of `probes`, by its name, how
        many rows are needed (infinite: all do not detect it), and `<name>_reading`, how many to read the wrong word. `target`
        is the stratum's, as text or `Target`; `reason_read` the exact share of its words that `explained` reads.
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
    with progress_bar(2 * len(maps), "single flips", progress=progress) as bar:
        with evaluator.under(checks) as guarded:
            for row, errors in zip(rows, maps, strict=True):
                with errors.applied(model), checks.attach(model) as detection:
                    guarded.rerun(errors)
                row["checked"] = bool(detection.detected)
                bar.update()
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
        of the part's words), `detected` with `_low` and `_high`.
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
                found.append(row | dict(zip((f"detected{end}" for end in ENDS), share, strict=True)))
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


def detectors(
    trials: "pd.DataFrame", evaluator: Evaluator, how: str, probes: ProbeRows, counts: Iterable[int], repeats: int
) -> "pd.DataFrame":
    """What detectors notice, weighted by the AUC that a flip costs, and the CPU time of one pass of periodic ones.

    Args:
        trials: of `flips`.
        evaluator: of the model.
        how: the column of `trials` that has the rows needed.
        probes: the probe rows of that column.
        counts: numbers of rows.
        repeats: timings; the median counts.

    Returns:
        `detector`, `kind` (of `KINDS`), `rows` (0: none), `pass_ms` (null: with every batch), `n` (trials),
        `noticed`, with `_low` and `_high` (`noticed_losses`).
        CRC32 detects every flip; ABFT is that of the column `checked`.
    """
    import pandas as pd

    found = {f"{count:,} probe row{'s' * (count > 1)}": trials[how] <= count for count in counts}
    kinds = dict(zip(found, counts, strict=True))
    noticed = noticed_losses(trials, evaluator.rows, found | {CHECKS: trials["checked"]})
    rows = []
    for name, count in kinds.items():
        row = {"detector": name, "kind": PROBE_ROWS, "rows": count}
        rows.append(row | {"pass_ms": probe_ms(evaluator, probes.rows.head(count), repeats)} | noticed[name])
    for per in ("tensor", "row"):
        row = {
            "detector": f"CRC32 per {per}",
            "kind": CRC,
            "rows": 0,
            "pass_ms": crc_ms(evaluator.model, per, repeats),
        }
        rows.append(row | {"n": len(trials)} | {f"noticed{end}": 1.0 for end in ENDS})
    rows.append({"detector": CHECKS, "kind": CHECKED, "rows": 0, "pass_ms": np.nan} | noticed[CHECKS])
    return pd.DataFrame(rows)


def noticed_losses(
    trials: "pd.DataFrame", split: Split, found: "Mapping[str, pd.Series]"
) -> dict[str, dict[str, float]]:
    """The share of the AUC lost by single flips that goes with those that a detector detects.

    The interval is Fieller's for a ratio of means over the same trials, widened by what was not seen: a flip that is not
    detected may lose as much as rows can that any trial of its stratum reached (all rows, if none did), but for classes of bits
    whose loss is bounded (`drsrobust_study.components`). A model that raises loses all of its AUC, and is noticed.

    Args:
        trials: of `flips`.
        split: the rows on which AUC was measured.
        found: detector -> which trials it detects (bool).

    Returns:
        detector -> `n` (trials), `noticed`, `noticed_low`, `noticed_high`; NaN where flips lose nothing.
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
        upper = Strata.of(some.assign(auc_drop=left)).mean_interval(np.clip(left, low, high), (least, greatest))[2]
        share, share_low, share_high = strata.ratio(left, lost)
        mean = strata.mean(lost)
        ends = [1 - share, 1 - np.maximum(share_high, upper / mean if mean > 0 else np.nan), 1 - share_low]
        ends = np.clip(ends, 0.0, 1.0).tolist()
        shares[name] = {"n": len(trials)} | dict(zip((f"noticed{end}" for end in ENDS), ends, strict=True))
    return shares


def probe_ms(evaluator: Evaluator, rows: Split, repeats: int) -> float:
    """CPU time of scoring rows once, in ms, one thread; the smallest batch has 64 rows."""
    batches = padded_batches(rows)
    return _median_ms(lambda: score(evaluator.model, batches, len(rows), evaluator.scoring), repeats)


def crc_ms(model: nn.Module, per: str, repeats: int) -> float:
    """CPU time of computing the CRC-32 of all parameters once, in ms, one thread, by row or by tensor, as `Scrubbing` does."""
    scrubbing = Scrubbing(per=per)

    def scrub() -> None:
        for words in scrubbing.protected(model):
            units = scrubbing.check_bits(words).units
            for start in range(0, units, _ROWS_AT_ONCE):
                scrubbing.content(words, np.arange(start, min(units, start + _ROWS_AT_ONCE)))

    return _median_ms(scrub, repeats)


def _median_ms(call: Callable[[], object], repeats: int) -> float:
    with threads(1):
        call()
        return 1e3 * float(np.median([cpu_seconds(call)[1] for _ in range(repeats)]))


def checks_percent(model: nn.Module, rows: Split, checks: Mitigation, *, batch: int, turns: int) -> float:
    """By how many per cent checks make inference longer (`drsrobust.timing.overhead`)."""
    return overhead(model, padded_batches(rows, batch), checks, turns=turns)["overhead_percent"]


def latency_and_cost(
    found: "pd.DataFrame", *, lifetime_s: float, checks_percent: float, shares: Sequence[float]
) -> "pd.DataFrame":
    """The share of a fault's harm that is left by what a detector spends.

    A fault stays for `lifetime_s` if nothing notices it; its harm is the AUC that it costs times how long it stays. A pass that
    takes t ms and may spend the share c of a core's time runs every T = t / c; of the harm of faults that it detects the share
    `exposure(T, lifetime)` is left, which is T / (2 lifetime) up to the lifetime, and of the others all.

    Args:
        found: of `detectors`.
        lifetime_s: in seconds.
        checks_percent: what checks with every batch spend; they notice at once.
        shares: of a core's time.

    Returns:
        `detector`, `kind`, `rows`, `pass_ms`, `compute` (share of a core), `period_s`, `noticed` and `left`, each with `_low`
        and `_high`.
    """
    import pandas as pd

    rows = []
    for row in found.to_dict("records"):
        at_once = row["pass_ms"] != row["pass_ms"]
        for share in [checks_percent / 100] if at_once else shares:
            period = 0.0 if at_once else row["pass_ms"] / 1e3 / share
            young = exposure(period, lifetime_s)
            ends = {f"left{end}": 1 - row[f"noticed{other}"] * (1 - young) for end, other in _TURNED}
            rows.append(row | {"compute": share, "period_s": period} | ends)
    return pd.DataFrame(rows).sort_values(["kind", "rows", "detector", "compute"], kind="stable", ignore_index=True)


def effects(found: "Mapping[int, pd.DataFrame]", counts: Sequence[int]) -> "pd.DataFrame":
    """Shares of single flips that probe rows detect, and of words that they read, over which no share of flips can be
    (`drsrobust_study.effects`).

    Args:
        found: training seed -> `curves`.
        counts: numbers of rows.
    """
    import pandas as pd

    joined, rows = pd.concat(found.values()), []
    ends = dict(zip((f"detected{end}" for end in ENDS), ("value", "low", "high"), strict=True))
    for (how, part, count), some in joined[joined["rows"].isin(counts)].groupby(["how", "part", "rows"], sort=False):
        name = f"{count} {how}, {part}"
        what = f"share of single flips in the {part} that {count:,} {_ROWS.get(how, how)} detect"
        rows.append(of_table(f"detected {name}", what, some.rename(columns=ends)))
        read = f"share of the words of the {part} that {count:,} {_ROWS.get(how, how)} read"
        rows.append(over_trainings(f"read {name}", read, some["read"]))
    return table(rows)
