"""How often intervals hold the mean loss, and how many trials a half-width takes: stratified and plain trials compared.

A population is made of many error maps of each stratum; with the exact probabilities of the strata it has a mean that is known
far better than any sample of it. Samples are drawn from it as a campaign draws trials.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from benchmarks import row_coverage, skewness
from benchmarks.common import Result, about, default_dataset, generated_remark, seeded, text
from drsrobust._progress import progress_bar
from drsrobust.campaign.sampling import allocated, first_trials, strata_of
from drsrobust.data import Split, from_tensors
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, ErrorModel, FixedCount, inject, resolve
from drsrobust.injection.critical_bits import CriticalBits, Stratum, harmful_pilots
from drsrobust.statistics.intervals import mean_interval
from drsrobust.statistics.recovery import recovery
from drsrobust.statistics.strata import ALL, Strata
from drsrobust.training import load_models
from drsrobust_extras.data.load import load_dataset
from drsrobust_extras.data.stored_as import stored_as

MAPS = 3000  # of each stratum; of pilots a tenth
RESAMPLES = 2000
TRIALS, FEW = 150, 64
ROWS = 5000  # that are scored in a trial, as in the study
# Model, data set (None: the default with that schema) and bit error rate.
CASES = (
    *(("dlrm", "ids", 1e-6), ("dlrm", "ids", 1e-5), ("wide_deep", "ids", 1e-5), ("wide_deep", "ids", 1e-4)),
    *(("wide_deep", "full", 1e-5), ("dlrm", "criteo-sample/fields", 1e-7)),
)
# Of a small MLP, most of whose weights matter: number format, scale and errors.
SMALL_CASES = (
    *(("fp32", "none", BitFlip(1e-5)), ("fp32", "none", BitFlip(1e-4)), ("fp32", "none", BitFlip(1e-3))),
    *(("fp16", "none", BitFlip(1e-4)), ("bf16", "none", BitFlip(1e-4)), ("fp32", "none", FixedCount(10))),
    *((name, scale, BitFlip(1e-4)) for name in ("fp8_e4m3", "fp8_e5m2") for scale in ("none", "tensor")),
)
COLUMNS = ("population", "errors", "method", "trials", "coverage", "too_high", "too_low", "half_width", "plain_trials")


@dataclass(frozen=True)
class Population:
    """Losses of AUC of error maps.

    Attributes:
        name: in the tables.
        errors: the error model as text; None for a made-up population.
        golden: AUC without errors.
        losses: of maps of each stratum and pilot.
        strata: of a stratified campaign, with its pilots.
    """

    name: str
    errors: str | None
    golden: float
    losses: Mapping[str, np.ndarray]
    strata: Sequence[Stratum]

    @property
    def probabilities(self) -> np.ndarray:
        """Of the strata and pilots, which sum to 1."""
        values = np.array([stratum.probability for stratum in self.strata])
        return values / values.sum()

    @property
    def mean(self) -> float:
        """The mean loss of plain maps."""
        return float(self.probabilities @ [self.losses[one.name].mean() for one in self.strata])

    @property
    def error(self) -> float:
        """The standard error of `mean`."""
        parts = [self.losses[one.name] for one in self.strata]
        return float(np.sqrt(self.probabilities**2 @ [part.var() / len(part) for part in parts]))

    @property
    def deviation(self) -> float:
        """The standard deviation of the losses of plain maps."""
        squares = [(self.losses[one.name] ** 2).mean() for one in self.strata]
        return float(np.sqrt(self.probabilities @ squares - self.mean**2))

    def draw(self, stratum: str, n: int, random: np.random.Generator) -> np.ndarray:
        """Losses [n] of maps of a stratum; `all`: of plain maps."""
        if stratum in self.losses:
            return self.losses[stratum][random.integers(len(self.losses[stratum]), size=n)]
        counts = random.multinomial(n, self.probabilities)
        return np.concatenate([self.draw(one.name, k, random) for one, k in zip(self.strata, counts, strict=True)])


def real_population(
    model: nn.Module, rows: Split, errors: ErrorModel, maps: int = MAPS, name: str | None = None
) -> Population:
    """The losses of a trained model, by AUC of served probabilities."""
    evaluator, losses = Evaluator(model, rows, scores="probability"), {}
    strata = strata_of(errors, resolve(model, "all"), CriticalBits())
    name = name or f"{evaluator.name} on {rows.dataset}"
    counts = [max(1, maps // 10) if stratum.is_pilot else maps for stratum in strata]
    with progress_bar(sum(counts), f"{name}, {errors}") as bar:
        for stratum, count in zip(strata, counts, strict=True):
            drawn = []
            for seed in range(count):
                with inject(model, stratum.error_model, seed=seed) as error_map:
                    found = evaluator.rerun(error_map).auc
                drawn.append(evaluator.golden.auc - (found or 0.0))
                bar.update()
            losses[stratum.name] = np.array(drawn)
    return Population(name, str(errors), evaluator.golden.auc, losses, strata)


class SmallMLP(nn.Module):
    """4-16-16-1: 369 words, all of which each row uses."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, dense_features: torch.Tensor, sparse_features: Any) -> torch.Tensor:
        return self.layers(dense_features).squeeze(1)


def small_mlp(rows: int = 2000, steps: int = 400) -> tuple[nn.Module, Split]:
    """A trained MLP (AUC over 0.98) and the rows that it was trained on."""
    random = np.random.default_rng(0)
    dense = random.normal(size=(rows, 4)).astype(np.float32)
    logit = 12 * (np.sin(1.5 * dense[:, 0]) * dense[:, 1] + 0.7 * dense[:, 2] * dense[:, 3] + 0.5 * dense[:, 0])
    label = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    model = seeded(SmallMLP).train()
    optimizer, inputs, required = (
        torch.optim.Adam(model.parameters(), lr=0.01),
        torch.tensor(dense),
        torch.tensor(label),
    )
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(inputs, None), required.float()).backward()
        optimizer.step()
    return model.eval(), from_tensors(label=label, dense=dense, sparse={}).test


def small_populations() -> Iterator[Population]:
    """The MLP in the formats and under the errors of SMALL_CASES."""
    model, rows = small_mlp()
    for number_format, scale, errors in SMALL_CASES:
        stored = model if number_format == "fp32" else stored_as(model, dense=number_format, scale=scale)
        label = number_format + (f", scale of a {scale}" if scale != "none" else "")
        yield real_population(stored, rows, errors, name=f"MLP of 369 words, {label}")


def made_up(outside: float, critical: float = 0.01, n: int = 200_000) -> Population:
    """Maps of which a share holds critical flips and loses 0.3, and a share of the others, against the assumption of stratified
    trials, loses 0.3 too, which no pilot shows: as by flips in large tables."""
    random = np.random.default_rng(7)
    none = 0.3 * (random.random(n) < outside) + np.abs(random.normal(0, 2e-4, n))
    strata = [Stratum("0", 1 - critical, CriticalBits(), "anywhere"), Stratum("1+", critical, CriticalBits())]
    name = f"{critical:.0%} critical, {outside:.0%} of the others harmful"
    return Population(name, None, 0.8, {"0": none, "1+": np.full(n, 0.3)}, strata)


def stratified_sample(population: Population, trials: int, random: np.random.Generator) -> pd.DataFrame:
    """Trials as a stratified campaign draws them."""
    strata = population.strata
    if len(strata) == 1:
        return plain_sample(population, trials, random)
    first = [
        population.draw(one.name, count, random)
        for one, count in zip(strata, first_trials(strata, trials), strict=True)
    ]
    counts = allocated(strata, [[part] for part in first], harmful_pilots(strata, first), trials)
    parts = [
        np.append(part, population.draw(one.name, count - len(part), random))
        for part, one, count in zip(first, strata, counts, strict=True)
    ]
    harmful = harmful_pilots(strata, parts)
    bounded = [one.is_bounded("word", harmful) for one in strata]
    columns = {
        "stratum": np.repeat([one.name for one in strata], counts),
        "weight": np.repeat(population.probabilities / counts, counts),
        "loss_is_bounded": np.repeat(bounded, counts),
    }
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
        row = {"population": population.name, "errors": population.errors, "method": method, "trials": trials}
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
    populations = list(small_populations())
    for name, schema, ber in CASES:
        if "/" in schema and generated_remark():
            continue
        data = load_dataset(schema if "/" in schema else default_dataset(schema))
        (model,) = load_models([{"name": name, "data": data}])
        populations.append(real_population(model, data.test.head(ROWS), BitFlip(ber)))
    populations += [made_up(0.0), made_up(0.01)]
    table = pd.DataFrame([row for one in populations for trials in (TRIALS, FEW) for row in coverage(one, trials)])
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
