"""Stratified sampling of a campaign: the trials of a condition are drawn by the strata of its error model.

At low bit error rates few plain error maps hold a critical flip, and few memory faults lie in a chip of exponents, so few of
them show what it costs. Here most trials do, and weights correct for that. `drsrobust.statistics.strata` estimates from such
trials.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from drsrobust.campaign.conditions import Condition, sharing_maps
from drsrobust.campaign.schedule import Schedule, Shard
from drsrobust.injection import AddressSpace, ErrorModel
from drsrobust.injection.critical_bits import CriticalBits, Stratum, harmful_pilots
from drsrobust.mitigation import Screened
from drsrobust.statistics.columns import ALL
from drsrobust.statistics.headline import Headline
from drsrobust.statistics.strata import STRATUM, WEIGHT

LEAST_TRIALS = 2  # of each stratum: a variance takes two
PILOT_TRIALS = 16  # of each stratum, from which the others are allocated
PILOT_MAPS = 8  # of each pilot at most, and one at least; they have no weight
MIN_SHARE_UNHIT, MIN_SHARE = 0.2, 0.1  # of the trials: of the stratum without critical flips, and of every other one
UNSEEN_LOSS = 0.1  # AUC: a loss that the pilot of a stratum with critical flips is taken to have shown once more
PROBES = 8  # single critical flips that show whether a mitigation removes them from memory
NOTE = (
    "stratified trials: the mean of a condition is the sum of weight * value, not the plain mean; use summarise(), recovery() "
    "or pvf()"
)


def strata_of(
    error_model: ErrorModel, hits: AddressSpace, critical_bits: CriticalBits, *, where_possible: bool = False
) -> list[Stratum]:
    """The strata of a condition (`ErrorModel.strata`).

    Args:
        error_model, hits: of the condition.
        critical_bits: whose flips strata may count.
        where_possible: plain maps, one stratum `all`, in place of an error.

    Raises:
        TypeError: an error model without strata, or errors that are not in memory.
        ValueError: a target without critical bits.
    """
    try:
        strata = error_model.strata(hits, critical_bits) if isinstance(hits, AddressSpace) else []
    except ValueError:
        if not where_possible:
            raise
        strata = []
    if not strata and where_possible:
        return [Stratum(ALL, 1.0, error_model)]
    if not strata:
        raise TypeError(
            f"sampling='stratified' is for error models that have strata, in a stored target; {error_model} in {hits} has "
            "none: run it in a campaign of plain maps"
        )
    return strata


def stratified(
    conditions: Sequence[Condition], critical_bits: CriticalBits, *, where_possible: bool = False
) -> list[Condition]:
    """Each condition once for each of its strata. Conditions on the same error maps have the same strata; if a mitigation of
    one of them removes critical flips from the memory, all of them have plain maps, since these flips then decide nothing.

    Args:
        conditions: of the campaign.
        critical_bits: by which trials are stratified.
        where_possible: conditions without strata have plain maps; where none has strata, they are returned as they are.

    Raises:
        TypeError, ValueError: as `strata_of`; the message names the condition.
    """
    strata: dict[tuple, list[Stratum]] = {}
    for condition in conditions:
        maps = condition.key[:3]
        try:
            if maps not in strata:
                strata[maps] = strata_of(
                    condition.error_model, condition.space, critical_bits, where_possible=where_possible
                )
        except ValueError as error:
            raise ValueError(f"{condition.error_model} in {condition.target}: {error}") from error
        # A code that corrects single critical flips makes their number meaningless: harm is then in what it leaves.
        if len(strata[maps]) > 1 and _removes(condition, critical_bits):
            strata[maps] = [Stratum(ALL, 1.0, condition.error_model)]
    if where_possible and all(len(parts) == 1 for parts in strata.values()):
        return list(conditions)
    return [replace(condition, stratum=stratum) for condition in conditions for stratum in strata[condition.key[:3]]]


def _removes(condition: Condition, critical_bits: CriticalBits) -> bool:
    """Whether the mitigation removes a single critical error from the memory."""
    probe = condition.error_model.critical_probe(critical_bits)
    if condition.mitigation is None or probe is None:
        return False
    maps = (probe.sample(condition.space, seed=seed) for seed in range(PROBES))
    screened = (
        (error_map, Screened.by(condition.mitigation, error_map, condition.space, seed=error_map.seed))
        for error_map in maps
    )
    return any(result.remaining.bits < error_map.bits for error_map, result in screened)


def allocate(probabilities: np.ndarray, deviations: np.ndarray, trials: int, pilot: int = 0) -> np.ndarray:
    """Trials of each stratum: by probability times standard deviation (J. Neyman, JRSS 97, 1934), with a least share each, one
    by one to the stratum that is furthest behind (Sainte-Lague's method), so that more trials take none away.

    Args:
        probabilities, deviations: float64 [strata]; the first stratum is that without critical flips.
        trials: of all strata.
        pilot: trials that each has at least.

    Returns:
        int64 [strata], which sum to `trials`, if that is enough for the pilot.

    Example:
        >>> allocate(np.array([0.95, 0.05]), np.array([0.001, 0.15]), 100)
        array([20, 80])
    """
    need = probabilities * deviations
    shares = need / need.sum() if need.any() else probabilities
    least = np.where(np.arange(len(shares)) == 0, MIN_SHARE_UNHIT, MIN_SHARE)
    low = shares < least
    while low.any() and not low.all():  # raise the low ones, at the cost of the others
        shares = np.where(low, least, shares * (1 - least[low].sum()) / shares[~low].sum())
        if not (~low & (shares < least)).any():
            break
        low |= shares < least
    # One by one, not by rounding shares: so a campaign with more trials keeps those that it has.
    counts = np.full(len(shares), pilot, np.int64)
    for _ in range(trials - int(counts.sum())):
        counts[np.argmax(shares / (2 * counts + 1))] += 1
    return counts


class StratifiedSchedule(Schedule):
    """The trials of stratified conditions: first some of each stratum, then the others by `allocate`.

    Conditions on the same maps get the same trials. Their numbers depend only on the first trials of each stratum, not on the
    process or the order that computed them.

    Args:
        groups: numbers of the conditions on the same maps, by stratum.
        strata: of each group.
        families: numbers of the groups that are the strata of the same conditions, in the order of the strata.
        trials: of each family; each stratum has two at least.
        shard: as of `Schedule`.
        headline: by which losses are measured; None: none is known.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        strata: Sequence[Stratum],
        families: Sequence[Sequence[int]],
        trials: int,
        shard: Shard | None = None,
        headline: Headline | None = None,
    ) -> None:
        self._strata, self._asked, self._headline = strata, trials, headline
        self._families = families
        self._family = {number: family for family in families for number in family}
        self._allocated = {number: len(family) == 1 for number, family in self._family.items()}
        self._pilot_losses: dict[int, dict[int, float]] = defaultdict(dict)  # by condition and trial
        pilots = [0] * len(groups)
        for family in families:
            for number, first in zip(family, first_trials([strata[n] for n in family], trials), strict=True):
                pilots[number] = 0 if self._allocated[number] else first
        super().__init__(groups, trials, shard, pilots)

    @property
    def families(self) -> Sequence[Sequence[int]]:
        return self._families

    def add(self, table: pa.Table) -> None:
        first = table.filter(pc.field("trial") < PILOT_TRIALS)
        columns = (first[name].to_pylist() for name in ("condition", "trial"))
        for condition, trial, loss in zip(*columns, _losses(first, self._headline).tolist(), strict=True):
            self._pilot_losses[condition][trial] = loss
        super().add(table)

    def _advance(self, number: int) -> None:
        family = self._family[number]
        if self._allocated[number] or not all(self._complete(other) for other in family):
            return
        strata, losses = [self._strata[other] for other in family], [self._losses(other) for other in family]
        harmful = {
            name for by_mitigation in zip(*losses, strict=True) for name in harmful_pilots(strata, by_mitigation)
        }
        limits = allocated(strata, losses, harmful, self._asked)
        for other, limit in zip(family, limits, strict=True):
            self._allocated[other] = True
            self._ask(other, limit)

    def _losses(self, number: int) -> list[np.ndarray]:
        """The losses in the first trials of a stratum, for each of its mitigations."""
        n, losses = self.pilots[number], self._pilot_losses
        return [np.array([losses[condition][trial] for trial in range(n)]) for condition in self._groups[number]]


def first_trials(strata: Sequence[Stratum], trials: int) -> list[int]:
    """The first trials of each stratum and pilot of a condition, from which the others are allocated.

    Args:
        strata: of the condition.
        trials: of all.
    """
    share = min(PILOT_TRIALS, trials // len(strata))
    return [max(1, min(PILOT_MAPS, share)) if one.is_pilot else max(LEAST_TRIALS, share) for one in strata]


def allocated(
    strata: Sequence[Stratum], losses: Sequence[Sequence[np.ndarray]], harmful: set[str], trials: int
) -> list[int]:
    """The trials of each stratum and pilot of a condition, by the losses in their first ones.

    Args:
        strata: of the condition.
        losses: of the first trials of each, for each mitigation; the one with the largest deviation counts.
        harmful: the names of the pilots that show harm.
        trials: of all.
    """
    counts = [len(first[0]) for first in losses]
    # A pilot that shows no loss may have missed the rare ones: it must not starve its stratum.
    deviations = [
        np.sqrt(max(map(np.var, first)) + (0.0 if one.is_bounded("word", harmful) else UNSEEN_LOSS**2 / len(first[0])))
        for one, first in zip(strata, losses, strict=True)
    ]
    weighted = [number for number, one in enumerate(strata) if not one.is_pilot]
    left = trials - sum(count for count, one in zip(counts, strata, strict=True) if one.is_pilot)
    probabilities = np.array([strata[number].probability for number in weighted])
    shares = allocate(probabilities, np.array(deviations)[weighted], left, counts[weighted[0]])
    for number, count in zip(weighted, shares.tolist(), strict=True):
        counts[number] = count
    return counts


def _losses(trials: pa.Table, headline: Headline | None) -> np.ndarray:
    """The losses of trials; one whose model raised loses all, and without a headline none is known to lose anything."""
    if headline is None:
        return np.zeros(len(trials))
    values = trials[headline.name].to_numpy().astype(np.float64)
    return headline.loss(np.nan_to_num(values, nan=headline.worst_of(headline.name)))


def bounded(conditions: Sequence[Condition], trials: pa.Table, headline: Headline | None) -> np.ndarray:
    """Whether the losses of each condition of a campaign are taken to be bounded by those seen: bool [conditions].

    Args:
        conditions: of the campaign, one for each stratum.
        trials: with `condition` and the headline's column.
        headline: as of `StratifiedSchedule`.
    """
    number = trials["condition"].to_numpy()
    losses = _losses(trials, headline)
    order = np.argsort(number, kind="stable")
    ends = np.searchsorted(number[order], np.arange(1, len(conditions)))
    by_condition, found = np.split(losses[order], ends), np.zeros(len(conditions), bool)
    same: dict[tuple, list[int]] = defaultdict(list)
    for place, condition in enumerate(conditions):
        same[condition.key[:4]].append(place)
    for places in same.values():
        harmful = harmful_pilots([conditions[n].stratum for n in places], [by_condition[n] for n in places])
        for place in places:
            found[place] = conditions[place].loss_is_bounded(harmful)
    return found


class StratifiedTable(pd.DataFrame):
    """Trials with the columns `stratum` and `weight`; the weights of a condition's trials sum to 1."""

    @property
    def _constructor(self) -> type:
        return StratifiedTable

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{NOTE}" if self._is_stratified else super().__repr__()

    def _repr_html_(self) -> str | None:
        html = super()._repr_html_()
        return f"{html}<p><b>{NOTE}</b></p>" if html and self._is_stratified else html

    @property
    def _is_stratified(self) -> bool:
        return {STRATUM, WEIGHT} <= set(self.columns)


def families(conditions: Sequence[Condition], groups: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Numbers of the groups that are the strata of the same conditions."""
    members: dict[tuple, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(conditions[group[0]].key[:3], []).append(number)
    yield from members.values()


def raised_to_least(conditions: Sequence[Condition], trials: int) -> str:
    """What a campaign says of conditions that get more trials than `trials`, as each of their strata takes two; empty where
    none does."""
    groups, more = sharing_maps(list(conditions)), Counter()
    pilots = ", each pilot 1" if any(one.stratum is not None and one.stratum.is_pilot for one in conditions) else ""
    for family in families(conditions, groups):
        strata = [conditions[groups[number][0]].stratum for number in family]
        if len(family) > 1 and (least := sum(first_trials(strata, 0))) > trials:
            more[least] += len(groups[family[0]])
    used = ", ".join(f"{least} in {n} condition{'s' if n > 1 else ''}" for least, n in sorted(more.items()))
    return f"trials={trials} becomes {used}: each stratum takes {LEAST_TRIALS} at least{pilots}" if used else ""
