"""What faults of DRAM chips cost, by mode and protection, against single wrong bits (notebook 12)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drsrobust.data import Split
from drsrobust.extend import StratifiedTable
from drsrobust.statistics import (
    ALL,
    CONDITION,
    ENDS,
    MITIGATION,
    STRATUM,
    WEIGHT,
    corrected_exactly,
    identifying,
    summarise,
)
from drsrobust_extras.protection.memory_faults import CHIPS, DATA_CHIPS
from drsrobust_study.components import stratified_loss
from drsrobust_study.effects import of_table, over_trainings, pooled, table
from drsrobust_study.findings import ratio

if TYPE_CHECKING:
    import pandas as pd

HOURS = 8766.0  # of a year
ANY = "any"  # in place of a mode: a fault of any mode, by their rates
FULL = "a full memory"  # as the size of a model


def mixed(table: "pd.DataFrame", rates: Mapping[str, float]) -> "pd.DataFrame":
    """Trials of several fault modes as trials of one condition: a fault of any of them, by their rates. Modes are strata.

    Args:
        table: of campaigns with `MemoryFault(mode)`, plain or stratified by chip.
        rates: mode -> its rate, in any unit; modes without a rate are left out.

    Returns:
        a table for `summarise` and `recovery`, with `error_mode` "any".

    Raises:
        ValueError: a mode with a rate has no trials.
    """
    rates = {mode: rate for mode, rate in rates.items() if rate > 0}
    if missing := [mode for mode in rates if mode not in set(table["error_mode"])]:
        raise ValueError(f"the table has no trials of {', '.join(missing)}")
    table = table[table["error_mode"].isin(list(rates))]
    if WEIGHT not in table:
        sizes = table.groupby(identifying(table, CONDITION), dropna=False)["trial"].transform("size")
        table = table.assign(**{STRATUM: ALL, WEIGHT: 1 / sizes})
    share = table["error_mode"].map(rates).astype(float) / sum(rates.values())
    strata = table["error_mode"].astype(str) + ", " + table[STRATUM].astype(str)
    columns = {STRATUM: strata, WEIGHT: table[WEIGHT] * share, "error_mode": ANY, "error_model": "memory faults"}
    return StratifiedTable(table.assign(**columns))


def expected_loss(table: "pd.DataFrame", hits: Mapping[str, float]) -> "pd.DataFrame":
    """Mean AUC loss of a fault that reaches the model, and the loss to be expected in a year, by mode and mitigation.

    Args:
        table: as of `mixed`; all mitigations have the same modes.
        hits: mode -> faults per hour that reach the model, as of `MemoryFault.hits_per_hour`.

    Returns:
        one row of `summarise` per mode and mitigation, then per mitigation for a fault of any mode ("any"), with
        `hits_per_year` and `per_year`, AUC loss times faults per year, with `_low` and `_high`. Where a code left no wrong
        bit in any trial, both ends are the mean (`corrected_exactly`).
    """
    import pandas as pd

    tables = table, mixed(table, hits)
    losses = pd.concat([summarise(trials, ["auc", "auc_drop"]) for trials in tables], ignore_index=True)
    losses = corrected_exactly(losses, pd.concat(tables), ["error_mode", *MITIGATION], ["auc", "auc_drop"])
    yearly = losses["error_mode"].map({**hits, ANY: sum(hits.values())}).astype(float) * HOURS
    ends = {f"per_year{end}": losses[f"auc_drop{end}"] * yearly for end in ENDS}
    return losses.assign(hits_per_year=yearly, **ends)


def understatement(
    faults: "pd.DataFrame",
    flips: "pd.DataFrame",
    partition: "pd.DataFrame",
    rows: Split,
    fit: Mapping[str, float],
    hits: Mapping[str, Mapping[str, float]],
) -> "pd.DataFrame":
    """How many times the loss in one trained model is that of a model in which every fault is one wrong bit.

    A fault of one bit reaches a large model more often than a small one, and a fault of a whole chip in all ranks as often. So
    the loss by all faults of a memory depends on the size of the model; losses per fault are those of the trials' model.

    Args:
        faults: trials of `MemoryFault(mode)` without mitigation, of all modes with a rate.
        flips: trials of `single_errors(partition)`, one flipped bit each.
        partition: as `layer_partition` gives it.
        rows: that were scored.
        fit: mode -> failure rate of a device, in any unit; faults that reach a model which fills the memory come by these.
        hits: size of a model, in words -> mode -> faults per hour that reach it. The first is the model of the trials.

    Returns:
        `what`, `value`, `low`, `high`: AUC lost by a `fault` that reaches the model, by one `bit`, `fault over bit`, and
        `memory over bits, <size>`, by all faults of the memory, for each size and for a model that fills it.
    """
    import pandas as pd

    (flip,) = stratified_loss(flips, partition, rows, by=()).to_dict("records")
    bit = [flip[f"auc_drop{end}"] * DATA_CHIPS / CHIPS for end in ENDS]  # a wrong check bit does no harm
    found: dict[str, Sequence[float]] = {}
    for size, rates in (hits | {FULL: fit}).items():
        (mean,) = summarise(mixed(faults, rates), ["auc", "auc_drop"]).to_dict("records")
        loss = [mean[f"auc_drop{end}"] for end in ENDS]
        if not found:
            found |= {"fault": loss, "bit": bit, "fault over bit": list(ratio(loss, bit).values())}
        # As many faults of the memory as these are, each one wrong bit: how many of them reach the model.
        bits = sum(fit.values()) / fit["bit"] * rates["bit"] / sum(rates.values())
        found[f"memory over bits, {size}"] = list(ratio(loss, [end * bits for end in bit]).values())
    return pd.DataFrame([[name, *ends] for name, ends in found.items()], columns=["what", "value", "low", "high"])


def ranking(flips: "pd.DataFrame", faults: "pd.DataFrame", storage: "pd.DataFrame") -> "pd.DataFrame":
    """Recovery of each mitigation under independent flips and under memory faults, in one trained model.

    Args:
        flips, faults: as `recovery` gives them, one row per mitigation each.
        storage: `storage_overhead` of the mitigations.

    Returns:
        `model`, `dataset`, `mitigation`, `stored_percent`, and `flips` and `faults` with `_low` and `_high`: recovery under
        each.
    """
    keys = ["model", "dataset", "mitigation"]
    ends = [f"recovery{end}" for end in ENDS]
    named = [
        table[[*keys, *ends]].rename(columns=dict(zip(ends, (f"{name}{end}" for end in ENDS), strict=True)))
        for name, table in (("flips", flips), ("faults", faults))
    ]
    both = named[0].merge(named[1], on=keys, validate="one_to_one")
    both.insert(len(keys), "stored_percent", both["mitigation"].map(storage.set_index("mitigation")["stored_percent"]))
    return both


def ranked(rankings: "Mapping[int, pd.DataFrame]") -> "pd.DataFrame":
    """`ranking` of several trained models as one (`drsrobust_study.effects.pooled`), the most under faults first."""
    both = pooled(rankings, ["model", "dataset", "mitigation", "stored_percent"], ["flips", "faults"])
    return both.sort_values("faults", ascending=False, kind="stable", ignore_index=True)


def effects(
    factors: "Mapping[int, pd.DataFrame]",
    rankings: "Mapping[int, pd.DataFrame]",
    leads: "Mapping[int, pd.DataFrame]",
    *,
    ber: float,
) -> "pd.DataFrame":
    """What faults cost and protections give back (`drsrobust_study.effects`); each argument is by training seed.

    Args:
        factors: `understatement`.
        rankings: `ranking`.
        leads: `drsrobust_study.figures.lead_data`.
        ber: of the flips.
    """
    import pandas as pd

    rows = []
    for what, found in pd.concat(factors.values()).groupby("what", sort=False):
        meaning = "times one wrong bit" if "over" in what else "AUC lost"
        rows.append(of_table(what, f"{what}: {meaning}", found, log="over" in what))
    both = pd.concat(rankings.values())
    for kind, errors in (("faults", "faults of chips"), ("flips", f"flips at {ber:g}")):
        ends = dict(zip((f"{kind}{end}" for end in ENDS), ("value", "low", "high"), strict=True))
        for name, found in both.rename(columns=ends).groupby("mitigation", sort=False):
            rows.append(of_table(f"{kind} {name}", f"{name}: share of the AUC lost to {errors} that comes back", found))
    curves = pd.concat(leads.values()).rename(columns={"auc": "value", "auc_low": "low", "auc_high": "high"})
    golden = pd.concat(leads.values()).groupby("train_seed")["auc_golden"].first()
    rows.append(over_trainings("auc", "AUC without errors", golden))
    for name, found in curves[curves["ber"] == ber].groupby("mitigation", sort=False):
        rows.append(of_table(f"auc {name}", f"AUC under flips at {ber:g}, {name}", found))
    return table(rows)
