"""What a fleet's numbers are made of: failure rates by mode, and the trials that they weight, checked against each other."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from drsrobust.extend import check_number, check_whole, unknown
from drsrobust.injection import AddressSpace
from drsrobust.statistics import DECISIONS, ENDS, Strata, corrected_exactly, summarise
from drsrobust_extras.protection.memories import Memory
from drsrobust_extras.protection.memory_faults import MemoryFault
from drsrobust_extras.protection.memory_map import WORD, Geometry, mapping_of
from drsrobust_extras.protection.rates import MBIT, FieldRate, Fit, fits_by_mode

if TYPE_CHECKING:
    import pandas as pd

FIT_DAY = 24e-9  # failures a day of 1 FIT
_NEEDED = (
    *("error_model", "error_mode", "error_chips", "error_mapping", "mitigation", "corrects_mode", "target", "n_bits"),
    *("outcome", "stopped", "bits_left", "auc_drop"),
)
_NEEDED += DECISIONS
NONFINITE = {  # rule for a score that is NaN -> when a recommendation is wrong
    "wrong": "wrong if its probability is on the other side of 0.5, or NaN",
    "no click": "wrong if its probability is on the other side of 0.5, and a NaN is no click",
    "caught": "wrong if its probability is on the other side of 0.5; a NaN is caught, and not served",
}
UNCORRECTABLE = "uncorrectable"
MEASURED = ("decision_changed", "nan_share", "auc_drop", "stopped")


def check_numbers(required: str, **numbers: float) -> None:
    """Raises ValueError for numbers that are not what is required: `more than 0` or `0 or more`; all have to be finite."""
    for name, value in numbers.items():
        check_number(name, value, required, lambda value: value > 0 or (value == 0 and required == "0 or more"))


def rates_of(
    rates: FieldRate | Mapping[str, Fit],
    space: AddressSpace,
    geometry: Geometry,
    memories: float,
    ranks: int,
    kind: Memory,
) -> tuple[dict[str, Fit], dict[str, float]]:
    """Errors of a host a day by mode: those that reach the space, and all in its memories. A fault of mode `ranks` reaches so
    many ranks."""
    modes = kind.modes
    fault = MemoryFault(geometry=geometry, fit=dict.fromkeys(modes, Fit(1.0, 0.0)), memory=kind.name)
    if isinstance(rates, FieldRate) and rates.kind == "events":
        check_numbers("0 or more", **{"rates.low": rates.low})
        bit = rates.low * FIT_DAY / MBIT
        hits = kind.devices * fault.places(space)["bit"]
        all_bits = kind.devices * WORD // kind.data_devices * geometry.words
        return {"bit": Fit(bit * hits, 0.0)}, {"bit": bit * all_bits * memories}
    by_mode = _checked_modes(rates, modes)
    an_hour = fault.hits_per_hour(space)  # at one failure in 10**9 hours
    share = (
        {"ranks": _share_of_groups(fault, space, ranks)} if "ranks" in modes else {}
    )  # of the memory's groups of so many ranks, the model's one
    hits = {
        mode: Fit(*(24 * rate * an_hour[mode].transient * share.get(mode, 1.0) for rate in rates_of_mode))
        for mode, rates_of_mode in by_mode.items()
    }
    devices = geometry.ranks * kind.devices * memories
    return hits, {mode: sum(rates_of_mode) * FIT_DAY * devices for mode, rates_of_mode in by_mode.items()}


def _share_of_groups(fault: MemoryFault, space: AddressSpace, ranks: int) -> float:
    """The part of a memory's groups of so many ranks that a model lies in, if that is one or all ranks are one group.

    Raises:
        ValueError: a number of ranks that does not divide the memory's, or a model that lies in several groups, since trials of
            mode `ranks` change all of its words.
    """
    check_whole("ranks_reached", ranks, 1)
    every = fault.geometry.ranks
    if every % ranks:
        raise ValueError(f"ranks_reached is {ranks}; it must divide the {every} ranks of the geometry")
    filled = fault.places(space)["banks"]  # ranks that hold some of the model
    if filled > ranks:
        raise ValueError(f"ranks_reached is {ranks}, and the model lies in {filled} ranks; it must be as many at least")
    return ranks / every


def _checked_modes(rates: FieldRate | Mapping[str, Fit], modes: Sequence[str]) -> Mapping[str, Fit]:
    """The rates of every mode of faults, of a device."""
    by_mode = {mode: rate for mode, rate in fits_by_mode(rates).items() if mode in modes}
    if missing := [mode for mode in modes if mode not in by_mode]:
        raise ValueError(f"rates has no mode {', '.join(missing)}; give each a Fit, (0, 0) if it never happens")
    return by_mode


def silent(damage: "pd.DataFrame", target: str, protection: str | None, nonfinite: str) -> "pd.DataFrame":
    """The trials of a protection with `stopped` as a number, no damage where it is 1, decisions by the rule `nonfinite`, and
    `uncorrectable`: whether a code left an uncorrectable word; NaN without a code."""
    if missing := [name for name in _NEEDED if name not in damage]:
        raise ValueError(
            f"damage has no columns {', '.join(missing)}; give the trials of a campaign of MemoryFault with "
            'metrics=["decision_changed"]'
        )
    if protection is not None and protection not in set(damage["mitigation"]):
        raise unknown("protection", protection, damage["mitigation"].unique())
    trials = damage if protection is None else damage[damage["mitigation"] == protection]
    if others := sorted(set(trials["target"]) - {target}):
        raise ValueError(f"damage holds trials of target {', '.join(others)}; target is {target!r}")
    coded = trials["stopped"].notna().groupby(trials["mitigation"]).transform("any")
    uncorrectable = trials["stopped"].fillna(False).astype(bool)
    stopped = uncorrectable | (trials["outcome"] == "raised")
    served = {name: trials[name].astype(float).mask(stopped, 0.0) for name in (*DECISIONS, "auc_drop")}
    if empty := [name for name, values in served.items() if values.isna().any()]:
        raise ValueError(f"damage has no value of {', '.join(empty)} in some trials; they need rows with labels")
    if nonfinite == "caught":
        served["decision_changed"] = (served["decision_changed"] - served["nan_share"]).clip(lower=0.0)  # of rounding
    elif nonfinite == "no click":
        served["decision_changed"] = served["decision_changed_no_click"]
    counted = {UNCORRECTABLE: uncorrectable.astype(float).where(coded)}
    return trials.assign(stopped=stopped.astype(float), **served, **counted)


def check_same(trials: "pd.DataFrame", space: AddressSpace, geometry: Geometry, kind: str | None) -> None:
    """Raises ValueError for trials of another number of bits, of chosen chips, or of another address map."""
    if trials.empty:
        raise ValueError("damage has no trials")
    if (others := set(trials["n_bits"].dropna())) - {space.bits}:
        raise ValueError(f"damage holds trials of {max(others):,} bits; the model has {space.bits:,} in this target")
    if len(chosen := trials[trials["error_chips"].notna()]):
        raise ValueError(f"damage holds {chosen['error_model'].iloc[0]}; give faults of any chip, MemoryFault(mode)")
    if len(other := trials[trials["error_mapping"] != (mapping := mapping_of(geometry, kind))]):
        raise ValueError(f"damage holds {other['error_model'].iloc[0]}; geometry maps words {mapping!r}")


def with_hits(trials: "pd.DataFrame", hits: Mapping[str, Fit]) -> "pd.DataFrame":
    """The trials with a column `hits`: each one's part of the faults a day of its mode."""
    hits_per_day = np.zeros(len(trials))
    for (_, mode), rows in trials.groupby(["mitigation", "error_mode"]).indices.items():
        hits_per_day[rows] = hits[mode].total * Strata.of(trials.iloc[rows]).shares
    return trials.assign(hits=hits_per_day)


def modes_of(
    trials: "pd.DataFrame", hits: Mapping[str, Fit], anywhere: Mapping[str, float], cured: float, repaired: float
) -> "pd.DataFrame":
    """`Fleet.modes`, from the mean days that transient and permanent faults are active."""
    import pandas as pd

    summary, measured = trials, (*MEASURED, UNCORRECTABLE)
    if len(trials):
        summary = summarise(trials, measured, bounds=dict.fromkeys(("stopped", UNCORRECTABLE), (0, 1)))
        summary = corrected_exactly(summary, trials, ["mitigation", "error_mode"], measured)
        without = {f"{UNCORRECTABLE}{end}": summary[f"{UNCORRECTABLE}{end}"].fillna(0.0) for end in ENDS}
        summary = summary.assign(**without)  # where no code is, none leaves a word
    columns = ["mitigation", "error_mode", "n", *(f"{name}{end}" for name in measured for end in ENDS)]
    rates = pd.DataFrame(
        [hits[mode] for mode in summary["error_mode"]], summary.index, ["transient", "permanent"], float
    )
    rates["active"] = cured * rates["transient"] + repaired * rates["permanent"]
    rates["anywhere"] = summary["error_mode"].map(anywhere).astype(float)
    return summary.reindex(columns=columns).join(rates)


def check_complete(modes: "pd.DataFrame", names: Sequence[str], hits: Mapping[str, Fit]) -> None:
    conditions = Counter(zip(modes["mitigation"], modes["error_mode"], strict=True))
    for name, mode in product(names, hits):
        if (count := conditions[name, mode]) != 1:
            raise ValueError(f"damage holds {count} conditions of mode {mode!r} under {name!r}; it must hold one")
