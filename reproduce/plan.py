"""The plan of a profile, printed before anything runs: what it will compute, how long, in how much memory, and what data it
lacks. Times are measured in a short calibration on this machine, not assumed."""

import csv
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drsrobust._environment import cores
from reproduce.calibration import KNOWN, Cost, measure, memory_of_machine, peak_bytes, rows_and_ids, stand_in
from reproduce.notebooks import ROOT
from reproduce.profiles import Profile
from reproduce.workload import Work, work_of

EPOCHS = 15  # of training, where no published run says how many a model takes
SPLIT = 0.8, 0.1  # training and test rows
START = 6.0  # seconds until a notebook's kernel has its libraries


@dataclass
class Line:
    """One notebook's share."""

    notebook: str
    models: int = 0
    trials: int = 0
    seconds: float = 0.0  # on one core
    alone: float = 0.0  # of these, that no second core can take
    trial_seconds: float = 0.0
    bytes: float = 0.0
    known: bool = True

    def wall(self, workers: int) -> float:
        """Seconds, with everything that several cores can share spread over them."""
        return START + self.alone + (self.seconds - self.alone) / workers


def lines(profile: Profile, data: Path | None) -> list[Line]:
    """The plan, a line per notebook. A model that several notebooks need is counted where it is trained first."""
    trained: set[tuple] = set()
    return [_line(name, parameters, data, trained) for name, parameters in profile.parameters.items()]


def _line(name: str, parameters: dict[str, Any], data: Path | None, trained: set[tuple]) -> Line:
    line, todo = Line(name), work_of(name, parameters)
    if todo is None:
        line.known = False
        return line
    for work in todo:
        if work.kind == "limit":
            line.seconds += work.count
            line.alone += work.count
            continue
        cost = measure(work.model, stand_in(work.dataset, data), work.sizes, data)
        rows, ids = rows_and_ids(work.dataset, data)
        if work.kind == "training":
            key = (work.model, work.dataset, work.sizes)
            if key in trained:
                continue
            trained.add(key)
            line.models += 1
            line.seconds += _training(work, cost, rows, ids)
        else:
            count = work.count * {"component": cost.parts, "stratum": cost.strata, "": 1}[work.per]
            scored = work.rows if work.whole else min(work.rows, int(SPLIT[1] * rows))
            each = (
                cost.trial(work.rate, scored) if work.kind == "trials" else cost.forward[0] + cost.forward[1] * scored
            )
            line.seconds += count * each
            line.alone += count * each if work.alone else 0.0
            if work.kind == "trials":
                line.trials += count
                line.trial_seconds += count * each
        line.bytes = max(line.bytes, peak_bytes(cost, ids, training=work.kind == "training"))
    return line


def _training(work: Work, cost: Cost, rows: int, ids: int) -> float:
    """Seconds: steps times what a step costs. Adam walks over all weights in each, so its part grows with the tables."""
    from drsrobust.training import default_settings

    batch = default_settings(work.model, work.dataset).batch_size
    each = cost.step[0] * cost.weights(ids) / cost.parameters + cost.step[1] * batch
    return SPLIT[0] * rows / batch * each * _epochs(work.model)


def _epochs(model: str) -> float:
    """How many epochs a model took in the published run, in the middle of its data sets."""
    path = ROOT / "figures" / "models.csv"
    if not path.is_file():
        return EPOCHS
    with open(path, newline="") as handle:
        rows = csv.DictReader(line for line in handle if not line.startswith("#"))
        found = [int(row["epochs"]) for row in rows if row["model"] == model]
    return statistics.median(found) if found else EPOCHS


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
    print(f"in all {_span(total)} on {workers} cores, from an empty cache; finished trials and trained models are kept")
    print(
        f"memory: up to {most / 1e9:.1f} GB a process, {workers} at a time; this machine has {memory_of_machine() / 1e9:.0f} GB"
    )
    print(
        f"measured in {took:.0f} s: trials, passes and steps of untrained models on up to 2,048 rows of the data set or one of "
        "its form (trials/s: of one process), scaled to all rows; epochs as in figures/models.csv; "
        f"{', '.join(KNOWN)} by their known sizes"
    )
    if not profile.real:
        print("no data folder was given: the run would use generated data, and say so")
    for text in missing:
        print(f"missing: {text}")


def _span(seconds: float) -> str:
    """A duration as people say it."""
    for unit, size in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"
