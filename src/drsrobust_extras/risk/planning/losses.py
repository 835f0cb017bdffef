"""What errors in each tensor cost under each protection, on the same error maps: the losses that a plan is chosen on."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from drsrobust.campaign import LEAST_TRIALS, PILOT_MAPS, Condition
from drsrobust.evaluation import Evaluator
from drsrobust.extend import Stratum, harmful_pilots, strata_of, trial_seed
from drsrobust.injection import SPREAD, AddressSpace, CriticalBits, ErrorMap, ErrorModel, Injection, Target, resolve
from drsrobust.mitigation import Mitigation, Screened
from drsrobust.statistics import DROP, LOSS_IS_BOUNDED, NONE, STRATUM, WEIGHT, Headline, Strata
from drsrobust_extras.risk.planning.simultaneous import Uncertainty, uncertainty

FACTOR = 2.0  # between predicted and measured loss, over which losses do not add up


@dataclass(frozen=True, eq=False)
class Losses:
    """AUC (or another headline) that errors in one tensor alone cost, by error map and protection of the tensor.

    Attributes:
        tensors, options: names; the first option is `none`.
        values: float64 [maps, tensors, options]; NaN where an option does not protect a tensor.
        whole: float64 [maps], lost to all errors of a map, without protection.
        stratum: names [maps].
        weight: float64 [maps], which sum to 1.
        bounded: bool [maps], of strata whose losses are bounded by those seen under every protection.
        headline: the metric, with its value without errors.
    """

    tensors: tuple[str, ...]
    options: tuple[str, ...]
    values: np.ndarray
    whole: np.ndarray
    stratum: tuple[str, ...]
    weight: np.ndarray
    bounded: np.ndarray
    headline: Headline

    @cached_property
    def strata(self) -> Strata:
        """The strata of the maps."""
        import pandas as pd

        columns = {STRATUM: self.stratum, WEIGHT: self.weight, LOSS_IS_BOUNDED: self.bounded}
        return Strata.of(pd.DataFrame(columns | {"outcome": "ok"}), self.whole)

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """Means over maps, and how far the expected losses may lie over them."""
        return uncertainty(self.values, self.strata.members, self.strata.weights)

    @property
    def harmful(self) -> float:
        """Mean number of tensors per map in which errors cost over 0.001."""
        return self.strata.mean((self.values[:, :, 0] > DROP).sum(axis=1).astype(float))

    @property
    def additivity(self) -> dict[str, float]:
        """Whether losses of tensors add up, without protection: `predicted` (mean sum of the tensors' losses), `measured` (mean
        loss to whole maps), and their `ratio` with `ratio_low` and `ratio_high` (`Strata.ratio`)."""
        parts = self.values[:, :, 0].sum(axis=1)
        sums = {"predicted": self.strata.mean(parts), "measured": self.strata.mean(self.whole)}
        ends = ("ratio", "ratio_low", "ratio_high")
        return sums | dict(zip(ends, self.strata.ratio(parts, self.whole), strict=True))

    def check_additivity(self, errors: ErrorModel, *, refuse: bool) -> None:
        """Warns, or raises ValueError, where sums of losses clearly differ from those of whole maps by over a factor of 2, and
        warns where errors do harm in over one tensor per map."""
        sums = self.additivity
        if sums["ratio_low"] > FACTOR or sums["ratio_high"] < 1 / FACTOR:
            text = (
                f"{errors}: losses of tensors sum to {sums['predicted']:.3g}, and whole maps lose {sums['measured']:.3g}; "
                f"the ratio {sums['ratio']:.3g} [{sums['ratio_low']:.3g}, {sums['ratio_high']:.3g}] should be near 1"
            )
            if refuse:
                raise ValueError(f"{text}; lower the rate, or pass additive='warn'")
            warnings.warn(text, stacklevel=3)
        if not (self.values[:, :, 0] > DROP).any():
            warnings.warn(
                f"{errors}: none of {len(self.whole)} error maps did harm, so the bound of a plan says nothing; more trials, "
                "or a higher rate, may show some",
                stacklevel=3,
            )
        if self.harmful > 1:
            warnings.warn(
                f"{errors}: errors do harm in {self.harmful:.2g} tensors per map, so losses add up only roughly; trust the "
                "loss on fresh maps (Plan.verify), or plan at a rate with under 1",
                stacklevel=3,
            )


def measure(
    evaluator: Evaluator,
    errors: ErrorModel,
    candidates: Sequence[Mitigation],
    *,
    target: str | Target = "all",
    trials: int,
    seed: int,
) -> Losses:
    """Draws whole error maps, and evaluates each tensor's part of each map under each candidate, confined to the tensor.

    Maps are stratified where a campaign could stratify them (`strata_of`), with as many in each stratum. A part that a
    candidate leaves as another one did is not evaluated again, so that protections of memory cost little time.

    Args:
        evaluator: of the model without mitigation.
        errors: one error model, in memory.
        candidates: whole-model mitigations.
        target: where errors fall; its tensors are protected.
        trials: error maps; each stratum has two at least.
        seed: decides the maps, which are those of a campaign with this seed.

    Raises:
        ValueError: a candidate that covers none of the tensors.
    """
    space, headline = resolve(evaluator.model, target), Headline.without_errors(evaluator.golden)[0]
    tensors = tuple(tensor.name for tensor in space.tensors)
    covered = np.ones((len(tensors), 1 + len(candidates)), bool)
    for number, candidate in enumerate(candidates, 1):
        touched = candidate.covers(evaluator.model)
        covered[:, number] = [name in touched for name in tensors]
        if not covered[:, number].any():
            raise ValueError(f"{candidate.name} protects none of the {len(tensors)} tensors of target {str(target)!r}")
    drawn = list(_draw(evaluator, errors, target, space, trials, seed))
    pilots = [(_loss(evaluator, headline, entry), stratum) for entry, stratum in drawn if stratum.is_pilot]
    maps = [entry for entry, stratum in drawn if not stratum.is_pilot]
    strata = [stratum for _, stratum in drawn if not stratum.is_pilot]
    counts = Counter(entry.name for entry in strata)
    values = np.full((len(maps), *covered.shape), np.nan)
    lost_by_map = np.array([_loss(evaluator, headline, entry) for entry in maps])
    cached: dict[tuple, float] = {}
    for option, candidate in enumerate((None, *candidates)):
        screened = maps
        if candidate is not None:
            screened = [Screened.by(candidate, error_map, space, seed=error_map.seed).remaining for error_map in maps]
        parts = [{name: part for name, part in _by_tensor(entry)} for entry in screened]
        for number in np.flatnonzero(covered[:, option]):
            name = tensors[number]
            touched = [entry.get(name) for entry in parts]
            values[:, number, option] = _losses(evaluator, headline, candidate, name, touched, cached)
    weight = np.array([entry.probability / counts[entry.name] for entry in strata])
    names = (NONE, *(candidate.name for candidate in candidates))
    by_stratum: dict[Stratum, list[float]] = defaultdict(list)
    for loss, stratum in (*zip(lost_by_map.tolist(), strata, strict=True), *pilots):
        by_stratum[stratum].append(loss)
    harmful = harmful_pilots(list(by_stratum), list(map(np.array, by_stratum.values())))
    bounded = np.array([entry.is_bounded(SPREAD[-1], harmful) for entry in strata])
    return Losses(tensors, names, values, lost_by_map, tuple(entry.name for entry in strata), weight, bounded, headline)


def _draw(
    evaluator: Evaluator, errors: ErrorModel, target: str | Target, space: AddressSpace, trials: int, seed: int
) -> Iterator[tuple[ErrorMap, Stratum]]:
    """Error maps with the strata that they were drawn from."""
    for stratum, count in maps_of(strata_of(errors, space, CriticalBits(), where_possible=True), trials):
        condition = Condition(errors, target, space, None, stratum)
        for trial in range(count):
            drawn_seed = trial_seed(evaluator, condition, trial, seed=seed, coupled=True)
            yield Injection(evaluator.model, [(stratum.error_model, space)], seed=drawn_seed).error_map, stratum


def maps_of(strata: Sequence[Stratum], trials: int) -> list[tuple[Stratum, int]]:
    """Strata and pilots with their numbers of maps: all strata have as many, two at least, and pilots have no more."""
    share = max(LEAST_TRIALS, trials // sum(not stratum.is_pilot for stratum in strata))
    return [(stratum, min(PILOT_MAPS, share) if stratum.is_pilot else share) for stratum in strata]


def _loss(evaluator: Evaluator, headline: Headline, error_map: ErrorMap | None) -> float:
    """What errors cost; the most where the model raises. Without errors it is what the mitigation itself costs: a gain on these
    rows is chance and counts as 0."""
    if error_map is None or not len(error_map):
        return max(0.0, headline.loss(headline.value(evaluator.golden)))
    with error_map.applied(evaluator.model):
        return headline.loss(headline.value(evaluator.rerun(error_map)))


def _by_tensor(error_map: ErrorMap) -> Iterator[tuple[str, ErrorMap]]:
    """The errors of each tensor that is hit."""
    for number, _ in error_map.by_tensor():
        yield error_map.targets[number], error_map.drop(error_map.tensor != number)


def _losses(
    evaluator: Evaluator,
    headline: Headline,
    candidate: Mitigation | None,
    tensor: str,
    parts: Sequence[ErrorMap | None],
    cached: dict[tuple, float],
) -> list[float]:
    """The loss of each map's errors in one tensor; `cached` holds those without a side in the computation."""
    if candidate is not None and candidate.computes:
        with evaluator.under(candidate.on([tensor])) as guarded:
            return [_loss(guarded, headline, part) for part in parts]
    keys = [(tensor, None if part is None else (part.word.tobytes(), part.mask.tobytes())) for part in parts]
    for key, part in zip(keys, parts, strict=True):
        if key not in cached:
            cached[key] = _loss(evaluator, headline, part)
    return [cached[key] for key in keys]
