"""How often intervals hold the mean loss, and how many trials a half-width takes: stratified and plain trials compared.

A population is made of many error maps for each number of critical flips; with the exact probabilities of these numbers it has
a mean that is known far better than any sample of it. Samples are drawn from it as a campaign draws trials.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from torch import nn

from benchmarks import row_coverage, skewness
from benchmarks.common import Result, about, default_dataset, generated_remark, text
from drsrobust._progress import progress_bar
from drsrobust.campaign.sampling import PILOT_TRIALS, UNSEEN_LOSS, allocate, strata_of
from drsrobust.data import Split, load_dataset
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, inject, resolve
from drsrobust.injection.critical_bits import MAX_SEPARATE_FLIPS, CriticalBits, Stratum, count_probability
from drsrobust.statistics.intervals import mean_interval
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.strata import ALL, Strata
from drsrobust.training import load_models

MAPS = 3000  # of each number of critical flips; a third of them with more
RESAMPLES = 4000
TRIALS = 150
ROWS = 5000  # that are scored in a trial, as in the study
# Model, data set (None: the default with that schema) and bit error rate.
CASES = (
    *(("dlrm", "ids", 1e-6), ("dlrm", "ids", 1e-5), ("wide_deep", "ids", 1e-5), ("wide_deep", "ids", 1e-4)),
    *(("wide_deep", "full", 1e-5), ("dlrm", "criteo-sample/fields", 1e-7)),
)
COLUMNS = ("population", "ber", "method", "trials", "coverage", "too_high", "too_low", "half_width", "plain_trials")


@dataclass(frozen=True)
class Population:
    """Losses of AUC of error maps.

    Attributes:
        name: in the tables.
        ber: bit error rate; None for a made-up population.
        golden: AUC without errors.
        losses: by the number of critical flips; the last entry is of this and all larger numbers.
        probabilities: of these numbers.
        strata: of a stratified campaign.
    """

    name: str
    ber: float | None
    golden: float
    losses: Sequence[np.ndarray]
    probabilities: np.ndarray
    strata: Sequence[Stratum]

    @property
    def mean(self) -> float:
        """The mean loss of plain maps."""
        return float(self.probabilities @ [part.mean() for part in self.losses])

    @property
    def error(self) -> float:
        """The standard error of `mean`."""
        return float(np.sqrt(self.probabilities**2 @ [part.var() / len(part) for part in self.losses]))

    @property
    def deviation(self) -> float:
        """The standard deviation of the losses of plain maps."""
        return float(np.sqrt(self.probabilities @ [(part**2).mean() for part in self.losses] - self.mean**2))

    def draw(self, stratum: str, n: int, random: np.random.Generator) -> np.ndarray:
        """Losses [n] of maps of a stratum; `all`: of plain maps."""
        least = 0 if stratum == ALL else int(stratum.rstrip("+"))
        last = len(self.losses) if stratum == ALL or stratum.endswith("+") else least + 1
        shares = self.probabilities[least:last] / self.probabilities[least:last].sum()
        numbers = random.choice(np.arange(least, last), size=n, p=shares)
        return np.array([self.losses[number][random.integers(len(self.losses[number]))] for number in numbers])


def real_population(model: nn.Module, rows: Split, ber: float, maps: int = MAPS) -> Population:
    """The losses of a trained model, by AUC of served probabilities."""
    evaluator = Evaluator(model, rows, scores="probability")
    space, losses = resolve(model, "all"), []
    counts, name = [*range(MAX_SEPARATE_FLIPS), f"{MAX_SEPARATE_FLIPS}+"], f"{evaluator.name} on {rows.dataset}"
    with progress_bar(MAX_SEPARATE_FLIPS * maps + maps // 3, f"{name} at {ber:g}") as bar:
        for count in counts:
            drawn = []
            for seed in range(maps if isinstance(count, int) else maps // 3):
                with inject(model, BitFlip(ber, critical=count), seed=seed) as error_map:
                    found = evaluator.rerun(error_map).auc
                drawn.append(evaluator.golden.auc - (found or 0.0))
                bar.update()
            losses.append(np.array(drawn))
    n = CriticalBits().among(space).bits
    probabilities = np.array([count_probability(count, n, ber) for count in counts])
    strata = strata_of(BitFlip(ber), space, CriticalBits())
    return Population(name, ber, evaluator.golden.auc, losses, probabilities, strata)


def made_up(outside: float, critical: float = 0.01, n: int = 200_000) -> Population:
    """Maps of which a share holds critical flips and loses 0.3, and a share of the others, against the assumption of stratified
    trials, loses 0.3 too."""
    random = np.random.default_rng(7)
    losses = [0.3 * (random.random(n) < outside) + np.abs(random.normal(0, 2e-4, n)), np.full(n, 0.3)]
    strata = [Stratum("0", 1 - critical, CriticalBits(), "anywhere"), Stratum("1+", critical, CriticalBits())]
    name = f"{critical:.0%} critical, {outside:.0%} of the others harmful"
    return Population(name, None, 0.8, losses, np.array([1 - critical, critical]), strata)


def stratified_sample(population: Population, trials: int, random: np.random.Generator) -> pd.DataFrame:
    """Trials as a stratified campaign draws them."""
    strata, pilot = population.strata, min(PILOT_TRIALS, trials // len(population.strata))
    parts = [population.draw(one.name, pilot, random) for one in strata]
    bounded = np.array([stratum.is_bounded("word") for stratum in strata])
    unseen = np.where(bounded, 0.0, UNSEEN_LOSS**2 / pilot)
    deviations = np.sqrt(np.array([part.var() for part in parts]) + unseen)
    probabilities = np.array([one.probability for one in strata])
    counts = allocate(probabilities, deviations, trials, pilot)
    parts = [
        np.append(part, population.draw(one.name, count - pilot, random))
        for part, one, count in zip(parts, strata, counts, strict=True)
    ]
    names = np.repeat([one.name for one in strata], counts)
    weights = np.repeat(probabilities / probabilities.sum() / counts, counts)
    columns = {"stratum": names, "weight": weights, "loss_is_bounded": np.repeat(bounded, counts)}
    return pd.DataFrame({"auc_drop": np.concatenate(parts), "outcome": "ok"} | columns)


def plain_sample(population: Population, trials: int, random: np.random.Generator) -> pd.DataFrame:
    """Trials as a plain campaign draws them."""
    return pd.DataFrame({"auc_drop": population.draw(ALL, trials, random), "outcome": "ok"})


def coverage(
    population: Population, trials: int = TRIALS, resamples: int = RESAMPLES, seed: int = 0
) -> Iterator[dict[str, object]]:
    """A row for each method of sampling and interval: the share of 95 % intervals that hold the mean, that lie above and below
    it, and the median half-width; and how many plain trials have the half-width of the stratified ones (normal law)."""
    bounds = (population.golden - 1, population.golden)
    methods: dict[str, tuple[Callable, Callable]] = {
        "stratified": (stratified_sample, lambda t: Strata.of(t).mean_interval(t["auc_drop"].to_numpy(), bounds)),
        "plain": (plain_sample, lambda t: Strata.of(t).mean_interval(t["auc_drop"].to_numpy(), bounds)),
        "plain, Student's t": (plain_sample, lambda t: mean_interval(t["auc_drop"].to_numpy(), bounds=bounds)),
    }
    for method, (sample, interval) in methods.items():
        random = np.random.default_rng(seed)
        ends = np.array([interval(sample(population, trials, random))[1:] for _ in range(resamples)])
        half = float(np.median(ends[:, 1] - ends[:, 0])) / 2
        too_high, too_low = (ends[:, 0] > population.mean).mean(), (ends[:, 1] < population.mean).mean()
        row = {"population": population.name, "ber": population.ber, "method": method, "trials": trials}
        row |= {"coverage": 1 - too_high - too_low, "too_high": too_high, "too_low": too_low, "half_width": half}
        if method == "stratified":
            row |= {"plain_trials": int((1.96 * population.deviation / half) ** 2)}
        yield row | {"mean": population.mean, "error": population.error}


def recovery_coverage(
    harmed: float, part: Callable[[np.random.Generator, int], np.ndarray], trials: int, resamples: int, seed: int = 0
) -> dict[str, float]:
    """How often a recovery has an interval (it is blank where the loss is not clearly over 0), and how often this holds it. A
    share of maps lose 0.02 to 0.45 AUC; a mitigation recovers the given part of each."""
    random = np.random.default_rng(seed)

    def losses(n: int) -> tuple[np.ndarray, np.ndarray]:
        lost = np.where(random.random(n) < harmed, random.uniform(0.02, 0.45, n), abs(random.normal(0, 2e-4, n)))
        return lost, lost * (1 - part(random, n)) + random.normal(0, 1e-4, n)

    lost, left = losses(10**6)
    truth, hits, given = 1 - left.mean() / lost.mean(), 0, 0
    base = {name: "x" for name in ("model", "dataset", "protocol", "error_model", "target", "checkpoint", "data")}
    base |= {"rate": 1e-5, "ber": 1e-5, "auc_golden": 0.8, "outcome": "ok"}
    for _ in range(resamples):
        lost, left = losses(trials)
        both = [
            pd.DataFrame({"auc": 0.8 - values, "auc_drop": values, "mitigation": name, "seed": range(trials)} | base)
            for name, values in (("none", lost), ("a", left))
        ]
        row = recovery(pd.concat(both)).iloc[0]
        given += not np.isnan(row["recovery_low"])
        hits += row["recovery_low"] <= truth <= row["recovery_high"]
    return {"given": given / resamples, "coverage": hits / max(1, given)}


PARTS = {
    "half of the losses": lambda random, n: random.random(n) < 0.5,
    "nine losses of ten": lambda random, n: random.random(n) < 0.9,
    "20 %, give or take 30 %": lambda random, n: np.clip(random.normal(0.2, 0.3, n), -0.5, 1),
}


def skewness_and_rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Coverage of intervals of skewed values (`skewness.coverage`), and over error maps and rows (`row_coverage.coverage`), of
    a DLRM."""
    data = load_dataset(default_dataset("full"))
    (model,) = load_models([{"name": "dlrm", "data": data}])
    few, many = (Evaluator(model, rows) for rows in (data.test.head(ROWS), data.test))
    skewed = skewness.coverage({f"losses at {rate:g}": skewness.losses(few, rate) for rate in skewness.RATES})
    tables = []
    for error, target in row_coverage.CASES:
        faulty = row_coverage.scores_under(many, error, target)
        found = row_coverage.coverage(data.test.labels == 1, many.golden.probabilities, faulty)
        tables.append(found.assign(errors=f"{error} in {target}"))
    return skewed, pd.concat(tables, ignore_index=True)


def run() -> Result:
    """Measures all cases; 30 to 40 minutes with Criteo data."""
    populations = []
    for name, schema, ber in CASES:
        if "/" in schema and generated_remark():
            continue
        data = load_dataset(schema if "/" in schema else default_dataset(schema))
        (model,) = load_models([{"name": name, "data": data}])
        populations.append(real_population(model, data.test.head(ROWS), ber))
    populations += [made_up(0.0), made_up(0.01)]
    table = pd.DataFrame([row for population in populations for row in coverage(population)])
    shares = [
        {"harmed": harmed, "recovered": name, "trials": trials} | recovery_coverage(harmed, part, trials, 1000)
        for name, part in PARTS.items()
        for harmed in (0.1, 0.2, 1.0)
        for trials in (60, TRIALS)
    ]
    recoveries = pd.DataFrame(shares)
    skewed, over_rows = skewness_and_rows()
    shown = table.assign(coverage=table["coverage"].round(3), half_width=table["half_width"].map("{:.2g}".format))
    printed = [about(), generated_remark(), "Mean losses", text(shown[list(COLUMNS)]), "Recoveries", text(recoveries)]
    printed += ["Skewed values", text(skewed.round(3)), "Error maps and rows", text(over_rows)]
    tables = {"coverage_skewed": skewed, "coverage_rows": over_rows}
    return Result({"coverage": table, "coverage_recovery": recoveries} | tables, "\n\n".join(filter(None, printed)))
