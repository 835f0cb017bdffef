"""From failure rates of memory to wrong recommendations a day of a fleet: in closed form, and simulated.

Faults of mode m reach the model of a host as a Poisson process of rate L_m, and each is active for a mean time tau_m: half of
the push interval if a rewrite cures it, the repair time if it stays. While it is active it changes a share q_m of the
recommendations and costs d_m AUC, which trials of `MemoryFault(m)` measure. So a fleet makes
hosts * recommendations * sum L_m tau_m q_m wrong recommendations a day, and active faults are Poisson with mean
hosts * sum L_m tau_m, whatever the distribution of their times (the queue M/G/infinity). Faults are taken to add up: two in one
model at a time are rare.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from drsrobust.extend import amount, check_choice, check_instance, check_whole
from drsrobust.injection import Target, resolve
from drsrobust.statistics import ENDS, check_table
from drsrobust_extras.protection.memories import Memory, memory
from drsrobust_extras.protection.memory_map import WORD, Geometry
from drsrobust_extras.protection.rates import CORRUPTING, GPU_STOPS, FieldRate, Fit
from drsrobust_extras.risk.fleet_trials import (
    MEASURED,
    NONFINITE,
    UNCORRECTABLE,
    check_complete,
    check_numbers,
    check_same,
    modes_of,
    rates_of,
    silent,
    with_hits,
)

if TYPE_CHECKING:
    import pandas as pd

YEAR = 365  # days
_kind = memory  # `fleet` has an argument of this name


@dataclass(frozen=True, eq=False)
class Fleet:
    """What a fleet loses by errors of its memory; `fleet` makes one.

    Attributes:
        kind: of the rates, `faults` or `events`.
        mitigations: names of them, in the order of the trials.
        hosts: how many.
        recommendations: of a host, a day.
        push_interval, repair_time: hours.
        accelerators: of a host.
        value: money of a wrong recommendation; None: unknown.
        nonfinite: rule for scores that are NaN.
        faults_per_day: in all memory of all hosts, devices of check bits among them.
        modes: one row per mitigation and mode: `transient` and `permanent`, faults a day that reach the model of some host;
            `active`, how many there are at a time, those that stop their host among them; `anywhere`, faults a day in all
            memory; `n` trials; means with `_low` and `_high` of `decision_changed` (wrong recommendations by `nonfinite`, as a
            share of a host's), `nan_share` (of a host's recommendations), `auc_drop`, `stopped` and `uncorrectable` (shares of
            the faults: of those that stop the host, and of those in which a code leaves a word that it cannot correct).
        trials: rows of the campaign, with `decision_changed` by `nonfinite`, `stopped` (1: the host stops, and neither
            recommendations nor AUC are lost) and `hits`, the part of each in the faults a day of its mode.
        assumptions: in sentences.
    """

    kind: str
    mitigations: tuple[str, ...]
    hosts: int
    recommendations: float
    push_interval: float
    repair_time: float
    accelerators: int
    value: float | None
    nonfinite: str
    faults_per_day: float
    modes: "pd.DataFrame"
    trials: "pd.DataFrame"
    assumptions: str

    def table(self) -> "pd.DataFrame":
        """The whole fleet under each mitigation.

        Returns:
            one row each: `kind`, `mitigation`, `nonfinite`, `faults_per_day`, `hits_per_day` (that reach a model), `active` (of
            them, at a time); with `_low` and `_high` `wrong_per_day` (recommendations, by the rule `nonfinite`), `nan_per_day`
            (recommendations whose score is NaN: wrong, no clicks or caught by that rule), `auc_days_per_day` (AUC that a host
            loses, times days), `stops_per_day` (of hosts, by faults that reach the model) and `stops_anywhere_per_day` (of
            hosts that read all of their memory, as a patrol scrub does: with faults that miss the model, of which as many
            leave an uncorrectable word); `loss_once_a_year` and `loss_once_in_ten_years` (`tail`); `cost_per_day` if `value` is
            known. Intervals are those of the modes' means by recovered variances (`statistics.strata`); failure rates have
            none.
        """
        import pandas as pd

        rows = []
        for name, modes, trials in self._by_mitigation():
            hits = modes["transient"] + modes["permanent"]
            row = {"kind": self.kind, "mitigation": name, "nonfinite": self.nonfinite}
            row |= {"faults_per_day": self.faults_per_day, "hits_per_day": hits.sum(), "active": modes["active"].sum()}
            row |= _summed("wrong_per_day", self.recommendations * modes["active"], modes, "decision_changed")
            row |= _summed("nan_per_day", self.recommendations * modes["active"], modes, "nan_share")
            row |= _summed("auc_days_per_day", modes["active"], modes, "auc_drop", least=-math.inf)
            row |= _summed("stops_per_day", hits, modes, "stopped")
            missed = {f"stops{end}": modes[f"{UNCORRECTABLE}{end}"] * (modes["anywhere"] - hits) for end in ENDS}
            stops = {f"stops{end}": missed[f"stops{end}"] + hits * modes[f"stopped{end}"] for end in ENDS}
            row |= _summed("stops_anywhere_per_day", np.ones(len(modes)), modes.assign(**stops), "stops")
            row |= _once(trials["auc_drop"], YEAR * trials["hits"])
            if self.value is not None:
                row |= {f"cost_per_day{end}": self.value * row[f"wrong_per_day{end}"] for end in ENDS}
            rows.append(row)
        return pd.DataFrame(rows)

    def tail(self, years: Sequence[float]) -> "pd.DataFrame":
        """The AUC loss of a host's model that some fault of the fleet exceeds once in so many years: it solves
        years * 365 * sum L_m P(loss > x | m) = 1, with the losses of the trials. It is never over the largest of these: of long
        times it is a lower bound.

        Returns:
            one row per mitigation and time: `mitigation`, `years`, `loss` (0 where faults that lose AUC are rarer).
        """
        import pandas as pd

        check_numbers("more than 0", **{f"years[{place}]": time for place, time in enumerate(years)})
        rows = [
            (name, time, _exceeded(trials["auc_drop"], YEAR * trials["hits"], 1 / time))
            for name, _, trials in self._by_mitigation()
            for time in years
        ]
        return pd.DataFrame(rows, columns=["mitigation", "years", "loss"])

    def compute(self) -> "pd.DataFrame":
        """Silent errors of processors, which codes of memory do not see. What they do to recommendations is not measured here,
        so they are in no other number of the fleet.

        Returns:
            one row per published rate: `quantity`, its `value` in this fleet, `source`.
        """
        import pandas as pd

        rows = [("hosts that corrupt data", self.hosts * share, source) for source, share in CORRUPTING.items()]
        stops = 24 * GPU_STOPS * self.hosts * self.accelerators
        rows.append(("stops a day, if all accelerators train", stops, "arXiv:2407.21783"))
        return pd.DataFrame(rows, columns=["quantity", "value", "source"])

    def uncorrectable(self, dram: str | Memory) -> "pd.DataFrame":
        """Memory errors of the fleet's accelerators that codes did not correct, as far as sources say so (`quantity`), by
        published rates of whole devices. What they do to recommendations is not measured here, and they are in no other number
        of the fleet.

        Args:
            dram: as of `dr.memory`; the rates of `"hbm4"` are of HBM3.

        Returns:
            one row per published rate: `quantity`, its `value` in this fleet a day, `source` and `read`, how that was read.

        Raises:
            ValueError: a memory without such a rate.
        """
        import pandas as pd

        kind = _kind(dram)
        kind.hourly()  # raises
        devices = self.hosts * self.accelerators
        rows = [
            (f"{one.of}: {one.counts}", 24 * devices / one.hours, one.source, one.read) for one in kind.uncorrectable
        ]
        return pd.DataFrame(rows, columns=["quantity", "value", "source", "read"])

    def simulate(self, days: float, *, seed: int = 0) -> "pd.DataFrame":
        """Draws the faults of some days: their number, the moment of each in its push interval, and one of its mode's trials.

        Args:
            days: more than 0; the difference from `table` falls with their square root.
            seed: of all draws; mitigations meet the same faults.

        Returns:
            one row per mitigation: `mitigation`, `hits_per_day`, `active`, `wrong_per_day`, `nan_per_day`, `auc_days_per_day`,
            `stops_per_day`, `loss_once_a_year` and `loss_once_in_ten_years`.
        """
        import pandas as pd

        check_numbers("more than 0", days=days)
        rows = []
        for name, modes, trials in self._by_mitigation():
            random, faults = np.random.default_rng(seed), [np.empty((0, 1 + len(MEASURED)))]
            for mode in modes.itertuples():
                of_mode = trials[trials["error_mode"] == mode.error_mode]
                faults.append(self._drawn(mode.transient * days, mode.permanent * days, of_mode, random))
            active, changed, without, loss, stopped = np.concatenate(faults).T
            row = {"mitigation": name, "hits_per_day": len(active) / days, "active": active.sum() / days}
            row |= {"wrong_per_day": self.recommendations * (active @ changed) / days}
            row |= {"nan_per_day": self.recommendations * (active @ without) / days}
            row |= {"auc_days_per_day": active @ loss / days, "stops_per_day": stopped.sum() / days}
            rows.append(row | _once(loss, np.full(len(loss), YEAR / days)))
        return pd.DataFrame(rows)

    def _drawn(
        self, transient: float, permanent: float, trials: "pd.DataFrame", random: np.random.Generator
    ) -> np.ndarray:
        """Faults of a mode, by their expected numbers: days active and the columns MEASURED of a trial, float64 [n, 5]."""
        cured, permanent_faults = random.poisson(transient), random.poisson(permanent)
        active = np.append(random.random(cured) * self.push_interval, np.full(permanent_faults, self.repair_time)) / 24
        chances = trials["hits"] / trials["hits"].sum()
        return np.column_stack([active, random.choice(trials[[*MEASURED]].to_numpy(float), len(active), p=chances)])

    def _by_mitigation(self) -> "Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]":
        for name in self.mitigations:
            yield name, *(frame[frame["mitigation"] == name] for frame in (self.modes, self.trials))

    def __repr__(self) -> str:
        return f"Fleet({', '.join(self.mitigations)}; {self.assumptions})"


def fleet(
    damage: "pd.DataFrame",
    model: nn.Module,
    *,
    hosts: int,
    memory: int | str,
    recommendations: float,
    rates: FieldRate | Mapping[str, Fit] | None = None,
    protection: str | None = None,
    push_interval: float = 24.0,
    repair_time: float = 168.0,
    nonfinite: str = "wrong",
    ranks_reached: int | None = None,
    geometry: Geometry | None = None,
    target: str | Target = "all",
    accelerators: int = 0,
    value: float | None = None,
    dram: str | Memory | None = None,
) -> Fleet:
    """What errors of memory cost a fleet of hosts that each serve one copy of a model.

    A host's memory is made of memories of one geometry, and the model lies in one of them; faults that miss it make no
    recommendation wrong. A fault in which a code finds a word that it cannot correct, and leaves it, stops its host wherever
    in memory it is, and so does a model that raises: neither serves a wrong recommendation.

    Args:
        damage: trials of a campaign with `errors=[MemoryFault(mode), ...]` and `metrics=["decision_changed"]`, stratified or
            not, of one model and target. Under a code with `uncorrectable="keep"` hosts stop, under one with "restore"
            they reload the word.
        model: the one that they were run on.
        hosts: how many, 1 or more.
        memory: of a host, in bytes or as "1TiB" (2**40 bytes; "1TB" is 10**12).
        recommendations: of a host, a day.
        rates: `dr.rates.FAULTS`, which None means without `dram`; or mode -> `Fit` of a device, of every mode; or
            `dr.rates.EVENTS`, of whose range the low end is taken, each event as one wrong bit until the next push.
        protection: a value of the column `mitigation`; None: all of them.
        push_interval: hours between two times at which the model's words are written again with the right content: a push, a
            reload or a scrub, whichever is most frequent.
        repair_time: hours that a permanent fault stays, since no push cures it. The default, a week, is an assumption.
        nonfinite: what a score that is NaN counts as: "wrong", "no click" (wrong where the decision without errors is a click),
            or "caught" by a check and not served (`nan_per_day` alone counts it).
        ranks_reached: how many ranks of a memory a fault of mode `ranks` reaches; None: all. Published rates do not say; the
            model has to lie in as many.
        geometry: of a memory; None or `Geometry()`: that of `dram`. The model has to fill the rows and banks that it filled in
            the trials.
        target: of the trials.
        accelerators: of a host, for `Fleet.compute`.
        value: money of a wrong recommendation; None: no money.
        dram: the kind of memory of the trials, as of `dr.memory`; its geometry and rates are used where none are given. None:
            `"ddr2-2012"`.

    Raises:
        TypeError: other rates, as faults and events at once.
        ValueError: a number that is negative, missing or NaN; an unknown mode, rule or protection; a mode without rate; trials
            without a needed column, of another target, of several conditions of a mode, or none of a mode that happens; less
            memory than the geometry has; ranks that do not divide the memory's, or that the model does not fit; `dram` without
            rates by mode, where none are given; more active faults than hosts, since the formulas add faults up, and would give
            more wrong recommendations than served.
    """
    check_table(damage, name="damage")
    kind, host = _kind("ddr2-2012" if dram is None else dram), amount(memory)
    geometry = kind.required_geometry() if geometry in (None, Geometry()) else geometry  # as of `MemoryFault`
    rates = kind.required_fit() if rates is None else rates
    check_instance("geometry", geometry, Geometry, "a Geometry")
    hosts = check_whole("hosts", hosts, 1)
    accelerators = check_whole("accelerators", accelerators, 0)
    check_numbers("more than 0", push_interval=push_interval, repair_time=repair_time)
    check_numbers("0 or more", recommendations=recommendations, value=0 if value is None else value)
    check_choice("nonfinite", nonfinite, NONFINITE)
    if host < (least := geometry.words * WORD // 8):
        raise ValueError(
            f"memory is {host:,} bytes; it must be at least the geometry's, {least:,} (Geometry(ranks=...))"
        )
    space = resolve(model, target)
    ranks = geometry.ranks if ranks_reached is None else ranks_reached
    hits, anywhere = rates_of(rates, space, geometry, host / least, ranks, kind)
    hits = {mode: Fit(hosts * fit.transient, hosts * fit.permanent) for mode, fit in hits.items() if fit.total}
    anywhere = {mode: hosts * faults for mode, faults in anywhere.items()}
    trials = silent(damage, str(target), protection, nonfinite)
    check_same(trials, space, geometry, None if dram is None else kind.name)
    names = tuple(dict.fromkeys(trials["mitigation"]))
    trials = with_hits(trials[trials["error_mode"].isin(list(hits))], hits)
    modes = modes_of(trials, hits, anywhere, push_interval / 48, repair_time / 24)
    check_complete(modes, names, hits)
    if (most := modes.groupby("mitigation")["active"].sum().max()) > hosts:
        raise ValueError(
            f"{most:,.0f} faults would be active at a time in the models of {hosts:,} hosts; it must be at most one a host, "
            "since faults are added up: give a shorter push_interval or repair_time, or lower rates"
        )
    named = "" if dram is None else f" ({kind.name})"
    events = isinstance(rates, FieldRate) and rates.kind == "events"
    cured = "logged events, each of one bit" if events else f"transient faults, permanent ones stay {repair_time:g} h"
    capacity = geometry.banks * geometry.bank_words * WORD // kind.data_devices / 2**30
    assumptions = (
        f"{hosts:,} hosts of {host / 2**30:,.0f} GiB, in memories of {geometry.ranks} ranks of {kind.devices} devices of "
        f"{capacity:g} Gb{named}; on each one model of {space.bits / 8e6:,.3g} MB, {recommendations:,.0f} recommendations a "
        f"day; a push every {push_interval:g} h cures {cured}; "
        + (
            ""
            if events or kind.devices == 1
            else f"a fault of mode 'ranks' reaches {ranks} of {geometry.ranks} ranks; "
        )
        + f"a word that a code cannot correct stops its host; a recommendation is {NONFINITE[nonfinite]}"
    )
    return Fleet(
        "events" if events else "faults",
        names,
        hosts,
        recommendations,
        push_interval,
        repair_time,
        accelerators,
        value,
        nonfinite,
        sum(anywhere.values()),
        modes,
        trials,
        assumptions,
    )


def _summed(
    name: str, weights: "pd.Series | np.ndarray", modes: "pd.DataFrame", metric: str, least: float = 0.0
) -> dict[str, float]:
    """The weighted sum of a metric's means over modes, and its interval by recovered variances."""
    weights, (mean, low, high) = np.asarray(weights, float), (modes[f"{metric}{end}"].to_numpy(float) for end in ENDS)
    total = float(weights @ mean)
    below, above = (float(np.linalg.norm(weights * length)) for length in (mean - low, high - mean))
    return dict(zip((f"{name}{end}" for end in ENDS), (total, max(least, total - below), total + above), strict=True))


def _once(loss: "pd.Series | np.ndarray", a_year: "pd.Series | np.ndarray") -> dict[str, float]:
    often = {"loss_once_a_year": 1.0, "loss_once_in_ten_years": 0.1}
    return {name: _exceeded(loss, a_year, times_a_year) for name, times_a_year in often.items()}


def _exceeded(loss: "pd.Series | np.ndarray", a_year: "pd.Series | np.ndarray", often: float) -> float:
    """The least loss over 0 that is exceeded at most so often a year, of losses that come so many times a year; 0 if all are
    rarer."""
    loss, a_year = np.asarray(loss, float), np.asarray(a_year, float)
    order = np.argsort(-loss, kind="stable")
    exceeding = np.flatnonzero(np.cumsum(a_year[order]) > often * (1 + 1e-9))
    return max(0.0, float(loss[order][exceeding[0]])) if len(exceeding) else 0.0
