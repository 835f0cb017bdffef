"""The plan of a profile, printed before it runs: trials and trainings counted from its parameters, times their cost measured
on this machine; memory, and missing data."""

import os
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from drsrobust._environment import cores
from reproduce.profiles import Profile, missing_data

if TYPE_CHECKING:
    from drsrobust import Evaluator
    from drsrobust.data import Dataset

PROTOCOLS = {"fm", "dcn", "afm", "afn", "wide_deep", "deepfm"}  # whose published scripts name parts: two protocols
ROWS = 2048  # of timed trials and passes
SLOW = 0.15  # seconds; a slower call is timed once
EPOCHS = 15  # of training
SPLIT = 0.8, 0.1  # training and test rows
START = 6.0  # seconds until a notebook's kernel has imported its libraries
# Rows and ids (rows of tables) of large sets: MovieLens-20M by its README; Criteo by its challenge, its ids an estimate
# (categories seen 10 times or more).
KNOWN = {"movielens-20m": (20_000_263, 165_000), "criteo-kaggle": (45_840_617, 1_100_000)}
Parameters = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """Some of a notebook's work.

    Attributes:
        kind: `training` (of `count` models), `trials`, `passes` (plain scoring) or `seconds` (`count` of them).
        count: of trials or passes; with `per` for each `component` or `stratum` of the model.
        model, dataset, sizes: of the model; sizes that are not its default.
        rows: test rows of a trial or pass; fewer where the data set has fewer.
        rate: bit error rate of the trials; None: one error per trial.
        alone: runs on one core while nothing else does.
    """

    kind: str
    count: int
    model: str = ""
    dataset: str = ""
    rows: int = 0
    rate: float | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    per: str = ""
    alone: bool = False


def _training(p: Parameters, model: str, dataset: str) -> Work:
    sizes = (("neurons", p["afn_neurons"]),) if model == "afn" and "afn_neurons" in p else ()
    return Work("training", 1, model, dataset, sizes=sizes)


def _campaign(p: Parameters, dataset: str, per_rate: int) -> Iterator[Work]:
    yield _training(p, p["model_name"], dataset)
    for ber in p["bers"]:
        yield Work("trials", per_rate, p["model_name"], dataset, p["test_rows"], ber)


def _campaigns(p: Parameters, per_rate: int) -> Iterator[Work]:
    for dataset in p["datasets"]:
        yield from _campaign(p, dataset, per_rate)


def _trained_pairs(p: Parameters) -> Iterator[Work]:
    for dataset in p["datasets"]:
        yield from (_training(p, model, dataset) for model in p["models"] if f"{model} {dataset}" not in p["leave_out"])


def _bits(p: Parameters) -> Iterator[Work]:
    for train in (_training(p, model, p["dataset"]) for model in p["models"]):
        yield train
        count = len(p["bits"]) * p["trials"]
        yield Work("trials", count, train.model, train.dataset, p["test_rows"], None, train.sizes, "component")


def _factors(p: Parameters) -> Iterator[Work]:
    """Each cell is taken to cost as much as the one that is nearest to their mean."""
    from drsrobust.study.model_factors import factor_grid

    names = {"width": "widths", "depth": "depths", "embedding_dim": "embedding_dims", "density": "densities"}
    levels = {name: p[plural] for name, plural in names.items()}
    cells = factor_grid(levels, full=p["full"])
    means = {name: sum(cell[name] for cell in cells) / len(cells) for name in levels}
    nearest = {name: min(levels[name], key=lambda level, name=name: abs(level - means[name])) for name in levels}
    dataset = f"synthetic-dummy/{nearest.pop('density'):g}"
    count = 2 * len(cells) * p["drawn_models"] * len(p["targets"]) * p["trials"]  # two protocols
    for ber in p["bers"]:
        yield Work("trials", count, "dummy", dataset, p["inputs"], ber, tuple(nearest.items()))


def _rates(p: Parameters) -> Iterator[Work]:
    for train in _trained_pairs(p):
        seeds = len(p["train_seeds"]) if f"{train.model} {train.dataset}" in p["reseeded"] else 1
        yield train
        if seeds > 1:
            yield replace(train, count=seeds - 1)  # other seeds, which no other notebook trains
        count = seeds * p["trials"] * (1 + (train.model in PROTOCOLS))
        for ber in p["bers"]:
            yield Work("trials", count, train.model, train.dataset, p["test_rows"], ber, train.sizes)


def _components(p: Parameters) -> Iterator[Work]:
    dataset, rows, first = p["dataset"], p["test_rows"], p["models"][0]
    for model in p["models"]:
        yield _training(p, model, dataset)
        yield Work("trials", p["trials"] * len(p["train_seeds"]), model, dataset, rows, per="stratum")
    for ber in p["bers"]:
        yield Work("trials", p["sweep_trials"], first, dataset, rows, ber, per="component")
    count = p["anywhere"] + 10 * p["shape_trials"] + 2 * len(p["tables"]) * len(p["counts"]) * p["row_trials"]
    yield Work("trials", count, first, dataset, rows)


def _clipping(p: Parameters) -> Iterator[Work]:
    for dataset in p["datasets"]:  # a search tries about 9 multipliers
        yield Work("trials", 9 * p["search_trials"], p["model_name"], dataset, p["test_rows"], p["search_ber"])
    yield from _campaigns(p, len(p["train_seeds"]) * p["trials"] * (6 + 2 * len(p["bounds"])))  # both protocols


def _bit_protection(p: Parameters) -> Iterator[Work]:
    yield from _campaigns(p, p["trials"] * (4 + 3 * len(p["protected"])))
    yield Work("trials", p["proof_trials"], p["model_name"], p["datasets"][0], p["test_rows"], max(p["bers"]))


def _abft(p: Parameters) -> Iterator[Work]:
    model, dataset, rows = p["model_name"], p["dataset"], p["test_rows"]
    yield from _campaign(p, dataset, 2 * p["trials"])
    yield Work("passes", 2 * p["injections"] + p["int8_injections"], model, dataset, rows, alone=True)
    yield Work("trials", 2 * p["single_trials"], model, dataset, rows)
    timed = 2 * 3 * len(p["batches"]) * p["repeats"] * (2 * p["turns"] + 1)  # two tables, three checks
    yield Work("passes", timed, "dlrm", "synthetic-criteo/dlrm", p["timed_rows"], alone=True)


def _recovery(p: Parameters) -> Iterator[Work]:
    yield from _campaign(p, p["dataset"], p["trials"] * (1 + 20 + 4))  # none, the mitigations, four of int8 tables
    timed = 10 * p["repeats"] * (2 * p["turns"] + 1)  # of mitigations that run with the model
    yield Work("passes", timed, p["model_name"], p["dataset"], p["batch"] * p["batches"], alone=True)


def _protection_plan(p: Parameters) -> Iterator[Work]:
    """Of a map each tensor with a harmful part is a trial, of some six; a proof has the budgets' plans, two more, and six
    protections."""
    own = p | {"bers": [p["ber"]]}
    yield from _campaign(own, p["dataset"], 6 * p["trials"] + (8 + len(p["budgets"])) * p["proof_trials"])
    yield Work("trials", 30 * p["fault_trials"], p["model_name"], p["dataset"], p["test_rows"], 1e-3)


def _speed(p: Parameters) -> Iterator[Work]:
    """Six methods (three of them slow), each stopped at `limit`."""
    yield Work("seconds", int(3 * (len(p["sizes"]) + len(p["int8_sizes"])) * p["limit"]), alone=True)


def _memory_faults(p: Parameters) -> Iterator[Work]:
    """Modes, codes and other protections as the notebook lists them; a large fault costs as much as flips at its rate."""
    model, dataset, rows = p["model_name"], p["dataset"], p["test_rows"]
    yield _training(p, model, dataset)
    yield Work("trials", 2 * 5 * p["small_trials"], model, dataset, rows)
    count = (5 * 10 + 5 * 4) * p["trials"] + 3 * p["pair_trials"] + 10 * p["flip_maps"]
    yield Work("trials", count, model, dataset, rows, p["ber"])
    yield Work("trials", p["flip_trials"], model, dataset, rows, per="stratum")
    yield Work("seconds", 1 + int(5e-8 * p["parameters"] * p["large_trials"]))  # of the large model


def _fleet(p: Parameters) -> Iterator[Work]:
    yield _training(p, p["model_name"], p["dataset"])
    count = 4 * (6 * p["trials"] + p["bit_trials"])  # none and three mitigations; modes of faults
    yield Work("trials", count, p["model_name"], p["dataset"], p["test_rows"])


COUNTED: dict[str, Callable[[Parameters], Iterator[Work]]] = {
    "00_models": _trained_pairs,
    "00_quickstart": lambda p: _campaign(p, p["dataset"], p["trials"]),
    "01_bit_sensitivity": _bits,
    "02_model_factors": _factors,
    "03_ber_sweep": _rates,
    "04_component_vulnerability": _components,
    "05_activation_clipping": _clipping,
    "06_selective_bit_protection": _bit_protection,
    "07_abft": _abft,
    "08_mitigation_recovery": _recovery,
    "09_injection_speed": _speed,
    "10_your_model": lambda p: iter([Work("seconds", 20)]),  # a small model of its own, which no other notebook trains
    "11_one_flip": lambda p: iter(
        [_training(p, p["model_name"], p["dataset"]), Work("passes", 32, p["model_name"], p["dataset"], p["test_rows"])]
    ),
    "12_memory_faults": _memory_faults,
    "13_fleet_risk": _fleet,
    "14_protection_plan": _protection_plan,
}


@dataclass(frozen=True, eq=False)
class Timed:
    """An untrained model on some rows of its data set, or of a generated one where its files are large or missing."""

    evaluator: "Evaluator"
    ids: int  # rows of its tables
    groups: dict[str, int]  # `per` of Work -> how many the model has
    parameters: dict[str, int]  # of each component


@cache
def untrained(model: str, dataset: str, sizes: tuple[tuple[str, int], ...], root: Path | None) -> Timed:
    from drsrobust import Evaluator, components, load_dataset
    from drsrobust.data.registry import split_name
    from drsrobust.models import build_model, default_sizes
    from drsrobust.study.components import layer_strata

    name, schema = split_name(dataset)
    if name in KNOWN or missing_data([dataset], root):
        dataset = f"synthetic-movielens/{schema}" if name.startswith("movielens") else "synthetic-criteo/dlrm"
    data = load_dataset(dataset, root)
    made = build_model(model, data.schema, **(default_sizes(model, dataset) | dict(sizes))).eval()
    parameters = components(made).query("parameters > 0").set_index("component")["parameters"].to_dict()
    groups = {"": 1, "component": len(parameters), "stratum": len(layer_strata(made))}
    return Timed(Evaluator(made, data.test.head(ROWS)), _ids(data), groups, parameters)


@cache
def rows_and_ids(dataset: str, root: Path | None) -> tuple[int, int]:
    """Rows of a data set, and ids of all features: read, or for large sets known."""
    from drsrobust import load_dataset
    from drsrobust.data.registry import split_name

    if (name := split_name(dataset)[0]) in KNOWN:
        return KNOWN[name]
    data = load_dataset(dataset, root)
    return sum(len(part) for part in (data.train, data.valid, data.test)), _ids(data)


def _ids(data: "Dataset") -> int:
    return sum(feature.cardinality for feature in data.schema.features)


@cache
def seconds_per_row(timed: Timed, kind: str, rate: float | None) -> float:
    """CPU time of a trial, a plain pass or a training step by row, on one thread."""
    import torch

    from drsrobust import BitFlip, FixedCount, inject
    from drsrobust.models import model_name, padded_batches, score
    from drsrobust.training import default_settings
    from drsrobust.training.fit import Trainer
    from drsrobust.training.fused import fused_tables

    evaluator = timed.evaluator
    model, rows = evaluator.model, evaluator.rows

    def trial(error: Any, target: str) -> None:
        with inject(model, error, target=target, seed=1) as error_map:
            evaluator.rerun(error_map)

    def run() -> float:
        if kind == "passes":
            return _timed(lambda: score(model, padded_batches(rows), len(rows)))
        if kind == "trials" and rate is None:
            return mean(_timed(lambda part=part: trial(FixedCount(1), part)) for part in timed.parameters)
        if kind == "trials":
            return _timed(lambda: trial(BitFlip(rate), "all"))
        trained, settings, batch = (
            deepcopy(model).train(),
            default_settings(model_name(model), rows.dataset),
            rows.batch(),
        )
        with fused_tables(trained, settings) as fused:
            trainer = Trainer(trained, settings, fused)
            return _timed(lambda: trainer.step(batch))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run() / len(rows)
    finally:
        torch.set_num_threads(threads)


def _timed(run: Callable[[], Any]) -> float:
    """CPU seconds of a call: the quicker of two after a first one, or a first one that is slow."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        run()
        times.append(time.thread_time() - start)
        if times[0] > SLOW:
            return times[0]
    return min(times[1:])


@dataclass
class Line:
    """One notebook's share: `seconds` on one core, of these `alone` while nothing else runs; `bytes` of one process."""

    notebook: str
    models: int = 0
    trials: int = 0
    seconds: float = 0.0
    alone: float = 0.0
    trial_seconds: float = 0.0
    bytes: float = 0.0

    def wall(self, workers: int) -> float:
        """Seconds, with the work that several cores can share spread over them."""
        return START + self.alone + (self.seconds - self.alone) / workers

    def include(self, other: "Line") -> None:
        """Adds another line."""
        for name in ("models", "trials", "seconds", "alone", "trial_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bytes = max(self.bytes, other.bytes)

    def add(self, work: Work, root: Path | None) -> None:
        """Counts and times some work."""
        seconds = float(work.count)
        if work.kind != "seconds":
            timed = untrained(work.model, work.dataset, work.sizes, root)
            (rows, ids), total = rows_and_ids(work.dataset, root), sum(timed.parameters.values())
            growth = 1 + timed.parameters["embedding"] / total * (max(1.0, ids / timed.ids) - 1)  # of all parameters
            # The libraries; weights with gradients and two moments, or a second copy and cached outputs of 2 GB at most.
            weights = 4 * total * growth
            self.bytes = max(self.bytes, 0.7e9 + (4 * weights + 5e8 if work.kind == "training" else 2 * weights + 2e9))
            seconds = seconds_per_row(timed, work.kind, work.rate)
            if work.kind == "training":
                self.models += work.count
                seconds *= work.count * EPOCHS * SPLIT[0] * rows * growth  # Adam walks over all weights in each step
            else:
                count = work.count * timed.groups[work.per]
                # The notebook on the untrained models generates as many rows as it scores.
                seconds *= count * (work.rows if work.model == "dummy" else min(work.rows, int(SPLIT[1] * rows)))
                if work.kind == "trials":
                    self.trials += count
                    self.trial_seconds += seconds
        self.seconds += seconds
        self.alone += seconds if work.alone else 0.0


def costed(parameters: dict[str, Parameters], data: Path | None) -> Iterator[tuple[str, list[tuple[Work, Line]]]]:
    """Of each notebook its work, each with a line that holds what it costs. A model that several notebooks need is counted
    where it is trained first."""
    trained: set[Work] = set()
    for name, chosen in parameters.items():
        costs = []
        for work in COUNTED[name](chosen):
            if work not in trained:
                cost = Line(name)
                cost.add(work, data)
                costs.append((work, cost))
            if work.kind == "training":
                trained.add(work)
        yield name, costs


def lines(profile: Profile, data: Path | None) -> Iterator[Line]:
    """The plan, a line per notebook."""
    for name, costs in costed(profile.parameters, data):
        line = Line(name)
        for _, cost in costs:
            line.include(cost)
        yield line


def print_plan(profile: Profile, data: Path | None, missing: list[str]) -> None:
    """Measures, and prints the plan."""
    workers, start = cores(), time.monotonic()
    print(f"plan of profile {profile.name}, data {', '.join(profile.datasets)}", flush=True)
    print(f"{'notebook':<28}{'models':>7}{'trials':>12}{'trials/s':>10}{'time':>12}{'GB':>6}")
    plan = []
    for line in lines(profile, data):
        plan.append(line)
        speed = f"{line.trials / line.trial_seconds:.3g}" if line.trial_seconds else ""
        numbers = f"{line.models or '':>7}{line.trials or '':>12{',' if line.trials else ''}}{speed:>10}"
        print(f"{line.notebook:<28}{numbers}{_span(line.wall(workers)):>12}{line.bytes / 1e9:>6.1f}", flush=True)
    total, most = sum(line.wall(workers) for line in plan), max(line.bytes for line in plan)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    print(f"in all {_span(total)} on {workers} cores, from an empty cache; finished trials and trained models are kept")
    print(f"memory: up to {most / 1e9:.1f} GB a process, {workers} at a time; this machine has {memory / 1e9:.0f} GB")
    print(
        f"measured in {time.monotonic() - start:.0f} s on untrained models and {ROWS:,} rows of the data set or of generated "
        f"ones (trials/s: of one process), scaled to all rows; {EPOCHS} epochs; {', '.join(KNOWN)} by their known sizes"
    )
    if not profile.real:
        print("no data folder was given: the run would use generated data, and say so")
    for text in missing:
        print(f"missing: {text}")


def _span(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"
