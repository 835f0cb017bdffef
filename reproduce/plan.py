"""The plan of a profile, printed before it runs: trials and trainings counted from its parameters, times their cost measured on
this machine; memory, and missing data."""

import csv
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from drsrobust._environment import cores
from reproduce.notebooks import ROOT
from reproduce.profiles import Profile

PROTOCOLS = {"fm", "dcn", "afm", "afn", "wide_deep", "deepfm"}  # whose published scripts name parts: two protocols
ONE = "one error"  # instead of a rate
RATES = (1e-8, 1e-6, 1e-4, 1e-2)  # bit error rates at which trials are timed
ROWS = 2048  # of timed trials and passes
BATCHES = (256, 1024)  # of timed steps
SLOW = 0.15  # seconds; a slower call is timed once
EPOCHS = 15  # of training, where no published run has the model
SPLIT = 0.8, 0.1  # training and test rows
START = 6.0  # seconds until a notebook's kernel has imported its libraries
# Rows and ids (rows of tables) of large sets: MovieLens-20M by its README; Criteo by its challenge, its ids an estimate
# (categories seen 10 times or more).
KNOWN = {"movielens-20m": (20_000_263, 165_000), "criteo-kaggle": (45_840_617, 1_100_000)}
FAMILIES = {"movielens": ("movielens-1m", "movielens-latest-small"), "criteo": ("criteo-sample",)}
Parameters = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """Some of a notebook's work.

    Attributes:
        kind: `training` (of one model), `trials`, `passes` (plain scoring) or `limit` (`count` seconds at most).
        count: of trials or passes; with `per` for each `component` or `stratum` of the model.
        model, dataset, sizes: of the model; sizes that are not its default.
        rows: test rows of a trial or pass; fewer where the data set has fewer, unless `generated` for the trials.
        rate: bit error rate of the trials, or ONE.
        alone: runs on one core while nothing else does.
    """

    kind: str
    count: int
    model: str = ""
    dataset: str = ""
    rows: int = 0
    rate: float | str = ONE
    sizes: tuple[tuple[str, int], ...] = ()
    per: str = ""
    alone: bool = False
    generated: bool = False


def work_of(notebook: str, p: Parameters) -> list[Work] | None:
    """The work of a notebook with these parameters; None for a notebook that is not counted."""
    counted = _NOTEBOOKS.get(notebook)
    return None if counted is None else list(counted(p))


def _training(p: Parameters, model: str, dataset: str) -> Work:
    sizes = (("neurons", p["afn_neurons"]),) if model == "afn" and "afn_neurons" in p else ()
    return Work("training", 1, model, dataset, sizes=sizes)


def _campaign(p: Parameters, dataset: str, per_rate: int) -> Iterator[Work]:
    """Trials of a model over the rates."""
    yield _training(p, p["model_name"], dataset)
    for ber in p["bers"]:
        yield Work("trials", per_rate, p["model_name"], dataset, p["test_rows"], ber)


def _trained_pairs(p: Parameters) -> Iterator[Work]:
    for dataset in p["datasets"]:
        yield from (_training(p, model, dataset) for model in p["models"] if f"{model} {dataset}" not in p["leave_out"])


def _bits(p: Parameters) -> Iterator[Work]:
    for train in (_training(p, model, p["dataset"]) for model in p["models"]):
        yield train
        count = len(p["bits"]) * p["trials"]
        yield Work("trials", count, train.model, train.dataset, p["test_rows"], ONE, train.sizes, "component")


def _factors(p: Parameters) -> Iterator[Work]:
    """Each cell is taken to cost as much as the one that is nearest to their mean."""
    from drsrobust.study.model_factors import factor_grid

    names = {"width": "widths", "depth": "depths", "embedding_dim": "embedding_dims", "density": "densities"}
    levels = {name: p[plural] for name, plural in names.items()}
    cells = factor_grid(levels, full=p["full"])
    means = {name: sum(cell[name] for cell in cells) / len(cells) for name in levels}
    nearest = {name: min(levels[name], key=lambda level, name=name: abs(level - means[name])) for name in levels}
    dataset = f"synthetic-dummy/{nearest.pop('density'):g}"
    count = 2 * len(cells) * len(p["targets"]) * p["trials"]  # two protocols
    for ber in p["bers"]:
        yield Work("trials", count, "dummy", dataset, p["inputs"], ber, tuple(nearest.items()), generated=True)


def _rates(p: Parameters) -> Iterator[Work]:
    for train in _trained_pairs(p):
        yield train
        count = p["trials"] * (1 + (train.model in PROTOCOLS))
        for ber in p["bers"]:
            yield Work("trials", count, train.model, train.dataset, p["test_rows"], ber, train.sizes)


def _components(p: Parameters) -> Iterator[Work]:
    dataset, rows, first = p["dataset"], p["test_rows"], p["models"][0]
    for model in p["models"]:
        yield _training(p, model, dataset)
        yield Work("trials", p["trials"], model, dataset, rows, per="stratum")
    for ber in p["bers"]:
        yield Work("trials", p["sweep_trials"], first, dataset, rows, ber, per="component")
    yield Work(
        "trials", p["anywhere"] + 2 * len(p["tables"]) * len(p["counts"]) * p["row_trials"], first, dataset, rows
    )


def _clipping(p: Parameters) -> Iterator[Work]:
    for dataset in p["datasets"]:  # a search tries about 9 multipliers
        yield Work("trials", 9 * p["search_trials"], p["model_name"], dataset, p["test_rows"], p["search_ber"])
        yield from _campaign(p, dataset, p["trials"] * (6 + 2 * len(p["bounds"])))  # both protocols


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


_NOTEBOOKS: dict[str, Callable[[Parameters], Iterator[Work]]] = {
    "00_models": _trained_pairs,
    "00_quickstart": lambda p: _campaign(p, p["dataset"], p["trials"]),
    "01_bit_sensitivity": _bits,
    "02_model_factors": _factors,
    "03_ber_sweep": _rates,
    "04_component_vulnerability": _components,
    "05_activation_clipping": _clipping,
    "06_selective_bit_protection": lambda p: (
        work for dataset in p["datasets"] for work in _campaign(p, dataset, p["trials"] * (4 + 3 * len(p["protected"])))
    ),
    "07_abft": _abft,
    "08_mitigation_recovery": _recovery,
    # Six methods (three of them slow), each stopped at `limit`.
    "09_injection_speed": lambda p: iter(
        [Work("limit", int(3 * (len(p["sizes"]) + len(p["int8_sizes"])) * p["limit"]), alone=True)]
    ),
}


@dataclass(frozen=True)
class Cost:
    """The cost of a model on data of one form, in seconds on one core."""

    parts: int
    strata: int
    parameters: int
    in_tables: int  # of these
    ids: int
    forward: float  # per row
    trial: dict[float | str, float]  # rate or ONE -> per row
    step: tuple[float, float]  # of training: fixed, and per row

    def weights(self, ids: int) -> float:
        """Parameters with tables of so many rows instead."""
        return self.parameters + self.in_tables * (max(1.0, ids / self.ids) - 1)

    def at(self, rate: float | str) -> float:
        """Seconds per row of a trial: between measured rates linear in the rate's logarithm."""
        if isinstance(rate, str):
            return self.trial[ONE]
        return float(np.interp(np.log10(rate), np.log10(RATES), [self.trial[measured] for measured in RATES]))


def stand_in(dataset: str, root: Path | None) -> str:
    """The data set on which costs are measured: itself where it is there and small, one of its family, or a generated one."""
    from drsrobust.data.registry import SOURCES, find_files, split_name

    name, schema = split_name(dataset)
    if not SOURCES[name].files:
        return dataset
    family = name.split("-")[0]
    for other in FAMILIES.get(family, ()):
        try:
            find_files(f"{other}/{schema}", root)
        except FileNotFoundError:
            continue
        return f"{other}/{schema}"
    return f"synthetic-movielens/{schema}" if family == "movielens" else "synthetic-criteo/dlrm"


@cache
def rows_and_ids(dataset: str, root: Path | None) -> tuple[int, int]:
    """Rows of a data set, and ids of all features: read, or for large sets known."""
    from drsrobust import load_dataset
    from drsrobust.data.registry import split_name

    if (name := split_name(dataset)[0]) in KNOWN:
        return KNOWN[name]
    data = load_dataset(dataset, root)
    return sum(len(part) for part in (data.train, data.valid, data.test)), _ids(data)


def _ids(data: Any) -> int:
    return sum(feature.cardinality for feature in data.schema.features)


@cache
def measure(model: str, dataset: str, sizes: tuple[tuple[str, int], ...], root: Path | None) -> Cost:
    """Times an untrained model on a stand-in (see there); some seconds.

    Args:
        model: its name.
        dataset: name of the stand-in.
        sizes: of the model, where they are not its default.
        root: folder of the real data.
    """
    import torch

    from drsrobust import BitFlip, Evaluator, FixedCount, components, inject, load_dataset
    from drsrobust.models import build_model, default_sizes, padded_batches, score
    from drsrobust.study.components import layer_strata

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data = load_dataset(dataset, root)
        made = build_model(model, data.schema, **(default_sizes(model, dataset) | dict(sizes))).eval()
        parameters = components(made).query("parameters > 0").set_index("component")["parameters"]
        split = data.test.head(ROWS)
        evaluator = Evaluator(made, split)

        def trial(error: Any, target: str) -> float:
            def run() -> None:
                with inject(made, error, target=target, seed=1) as error_map:
                    evaluator.rerun(error_map)

            return _timed(run) / len(split)

        trials: dict[float | str, float] = {rate: trial(BitFlip(rate), "all") for rate in RATES}
        trials[ONE] = float(np.mean([trial(FixedCount(1), part) for part in parameters.index]))
        return Cost(
            parts=len(parameters),
            strata=len(layer_strata(made)),
            parameters=sum(parameter.numel() for parameter in made.parameters()),
            in_tables=int(parameters["embedding"]),
            ids=_ids(data),
            forward=_timed(lambda: score(made, padded_batches(split), len(split))) / len(split),
            trial=trials,
            step=_step(model, made, data),
        )
    finally:
        torch.set_num_threads(threads)


def _step(name: str, model: Any, data: Any) -> tuple[float, float]:
    from drsrobust.training import default_settings
    from drsrobust.training.fit import Trainer
    from drsrobust.training.fused import fused_tables

    settings = default_settings(name, data.name)
    model.train()
    with fused_tables(model, settings) as fused:
        trainer = Trainer(model, settings, fused)
        batches = [data.train.head(size).batch() for size in BATCHES]
        small, large = (_timed(lambda batch=batch: trainer.step(batch)) for batch in batches)
    model.eval()
    per_row = max(0.0, (large - small) / (BATCHES[1] - BATCHES[0]))
    return max(0.0, small - per_row * BATCHES[0]), per_row


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
    """One notebook's share."""

    notebook: str
    models: int = 0
    trials: int = 0
    seconds: float = 0.0  # on one core
    alone: float = 0.0  # of these, on one core while nothing else runs
    trial_seconds: float = 0.0
    bytes: float = 0.0
    known: bool = True

    def wall(self, workers: int) -> float:
        """Seconds, with the work that several cores can share spread over them."""
        return START + self.alone + (self.seconds - self.alone) / workers


def lines(profile: Profile, data: Path | None) -> list[Line]:
    """The plan, a line per notebook. A model that several notebooks need is counted where it is trained first."""
    trained: set[Work] = set()
    return [_line(name, parameters, data, trained) for name, parameters in profile.parameters.items()]


def _line(name: str, parameters: Parameters, data: Path | None, trained: set[Work]) -> Line:
    line, works = Line(name), work_of(name, parameters)
    if works is None:
        line.known = False
        return line
    for work in works:
        if work.kind == "limit":
            seconds = float(work.count)
        elif work in trained:
            continue
        else:
            cost = measure(work.model, stand_in(work.dataset, data), work.sizes, data)
            rows, ids = rows_and_ids(work.dataset, data)
            weights = 4 * cost.weights(ids)  # bytes
            # The libraries; weights with gradients and two moments, or a second copy and cached outputs of 2 GB at most.
            line.bytes = max(
                line.bytes, 0.7e9 + (4 * weights + 0.5e9 if work.kind == "training" else 2 * weights + 2e9)
            )
            if work.kind == "training":
                trained.add(work)
                line.models += 1
                seconds = _training_seconds(work, cost, rows, ids)
            else:
                count = work.count * {"component": cost.parts, "stratum": cost.strata, "": 1}[work.per]
                scored = work.rows if work.generated else min(work.rows, int(SPLIT[1] * rows))
                seconds = count * scored * (cost.at(work.rate) if work.kind == "trials" else cost.forward)
                if work.kind == "trials":
                    line.trials += count
                    line.trial_seconds += seconds
        line.seconds += seconds
        line.alone += seconds if work.alone else 0.0
    return line


def _training_seconds(work: Work, cost: Cost, rows: int, ids: int) -> float:
    """Steps times their cost. Adam walks over all weights in each step, so its fixed part grows with the tables."""
    from drsrobust.training import default_settings

    batch = default_settings(work.model, work.dataset).batch_size
    step = cost.step[0] * cost.weights(ids) / cost.parameters + cost.step[1] * batch
    return SPLIT[0] * rows / batch * step * _epochs(work.model)


def _epochs(model: str) -> float:
    """Epochs of a model in the published run, the median over its data sets."""
    path = ROOT / "figures" / "models.csv"
    if not path.is_file():
        return EPOCHS
    with open(path, newline="") as handle:
        rows = csv.DictReader(line for line in handle if not line.startswith("#"))
        epochs = [int(row["epochs"]) for row in rows if row["model"] == model]
    return statistics.median(epochs) if epochs else EPOCHS


def print_plan(profile: Profile, data: Path | None, missing: list[str]) -> None:
    """Measures, and prints the plan."""
    workers, start = cores(), time.monotonic()
    print(f"plan of profile {profile.name}, data {', '.join(profile.datasets)}", flush=True)
    plan = lines(profile, data)
    took = time.monotonic() - start
    print(f"{'notebook':<28}{'models':>7}{'trials':>12}{'trials/s':>10}{'time':>12}{'GB':>6}")
    for line in plan:
        if not line.known:
            print(f"{line.notebook:<28}{'not predicted':>19}")
            continue
        speed = f"{line.trials / line.trial_seconds:.3g}" if line.trial_seconds else ""
        numbers = f"{line.models or '':>7}{line.trials or '':>12{',' if line.trials else ''}}{speed:>10}"
        print(f"{line.notebook:<28}{numbers}{_span(line.wall(workers)):>12}{line.bytes / 1e9:>6.1f}")
    total, most = sum(line.wall(workers) for line in plan), max(line.bytes for line in plan)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    print(f"in all {_span(total)} on {workers} cores, from an empty cache; finished trials and trained models are kept")
    print(f"memory: up to {most / 1e9:.1f} GB a process, {workers} at a time; this machine has {memory / 1e9:.0f} GB")
    print(
        f"measured in {took:.0f} s on untrained models and up to {ROWS:,} rows of the data set or one of its form "
        f"(trials/s: of one process), scaled to all rows; epochs as in figures/models.csv; "
        f"{', '.join(KNOWN)} by their known sizes"
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
