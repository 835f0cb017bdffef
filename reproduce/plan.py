"""The plan of a profile, printed before it runs: what each notebook took when it last computed with the same parameters, and
missing data. Where no record has these parameters, the plan scales the CPU time of one with others, and says so."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from drsrobust._files import new_file
from drsrobust._processes import cores
from drsrobust._provenance import machine
from reproduce import plan_estimate
from reproduce.notebook_index import TIMES, read_times
from reproduce.notebooks import FIGURES, Notebook
from reproduce.profiles import Profile
from reproduce.runner import MODELS, Outcome, total_seconds
from reproduce.time_left import START, Step, parsed

RECORDS = "times.json"  # in the folder of all runs


@dataclass(frozen=True)
class Record:
    """What a notebook took that computed all of its trials.

    Attributes:
        parameters: of the notebook.
        seconds, peak_mib, steps, cpu_seconds: as in `Outcome`; no steps where only the sum is known, 0 CPU seconds where they
            were not counted.
        source: which run it was, in words.
    """

    notebook: str
    parameters: dict[str, Any]
    seconds: float
    peak_mib: int
    steps: list[str]
    source: str
    cpu_seconds: float = 0.0

    @property
    def work(self) -> list[Step]:
        """The steps, or the whole as one."""
        return [Step(*parsed(text)) for text in self.steps] or [Step("other", 1, self.seconds)]

    @property
    def counted(self) -> int:
        """Trials and models."""
        return sum(step.count for step in self.work if step.kind != "other")


def read_records(build: Path, notebooks: Mapping[str, Notebook]) -> list[Record]:
    """All records: those of runs on this machine, then the published run, then the times of notebooks with their defaults."""
    records, published = _of_this_machine(build), FIGURES / "run.json"
    if published.is_file():
        run = json.loads(published.read_text())
        source = f"published run of {run['started'][:10]}, {run['machine']['cores']} cores"
        for entry in run["notebooks"]:
            values = [entry[name] for name in ("notebook", "parameters", "seconds", "peak_mib")]
            steps = entry.get("steps")  # None: of before version 0.5
            if steps or steps is None and not run["cached"]:
                records.append(Record(*values, steps or [], source, entry.get("cpu_seconds", 0.0)))
    for row in read_times(TIMES):
        if row["notebook"] in notebooks:
            defaults = {name: parameter.default for name, parameter in notebooks[row["notebook"]].parameters.items()}
            values = (row["notebook"], defaults, float(row["seconds"]), int(row["peak_mib"]))
            cpu = float(row.get("cpu_seconds") or 0)
            records.append(Record(*values, [], f"with its defaults, {row['machine']}", cpu))
    return records


def matching(records: Iterable[Record], chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, Record]:
    """Of each notebook the first record with exactly the chosen parameters, if any."""
    first: dict[str, Record] = {}
    for record in records:
        if record.parameters == chosen.get(record.notebook):
            first.setdefault(record.notebook, record)
    return first


def remember(outcome: Outcome, build: Path) -> None:
    """Keeps what a notebook took for later plans, if it computed as much as the last time with these parameters."""
    values = (outcome.notebook, outcome.parameters, outcome.seconds, outcome.peak_mib, outcome.steps)
    record, records = (
        Record(*values, f"run here of {datetime.now():%Y-%m-%d}, {cores()} cores", outcome.cpu_seconds),
        _of_this_machine(build),
    )
    earlier = matching(records, {record.notebook: record.parameters}).get(record.notebook)
    least = earlier.counted if earlier else int(record.notebook == MODELS)  # of which all models may be in the cache
    if outcome.ok and record.steps and record.counted >= least:
        entries = [asdict(other) for other in (*records, record) if other is not earlier]
        with suppress(OSError), new_file(build / RECORDS) as part:
            part.write_text(json.dumps(entries, indent=1))


def _of_this_machine(build: Path) -> list[Record]:
    with suppress(FileNotFoundError):
        return [Record(**entry) for entry in json.loads((build / RECORDS).read_text())]
    return []


def print_plan(profile: Profile, records: list[Record], jobs: int, missing: list[str]) -> None:
    """Prints the plan of a profile that runs `jobs` notebooks at a time."""
    known = matching(records, profile.parameters)
    print(f"plan of profile {profile.name}, data {', '.join(profile.datasets)}")
    scaled = {}
    for name, parameters in profile.parameters.items():
        text, near = (
            "no record with these parameters",
            next((one for one in records if one.notebook == name and one.cpu_seconds), None),
        )
        if name not in known and near is not None:
            scaled[name] = estimate(near, parameters)
            text = f"about {duration(scaled[name])} of CPU time, scaled from: {near.source}"
        if (record := known.get(name)) is not None:
            cpu = f"{record.cpu_seconds:,.0f} CPU s" if record.cpu_seconds else ""
            text = f"{duration(record.seconds):>10}{cpu:>14}{record.peak_mib / 1024:>6.1f} GiB  {record.source}"
        print(f"{name:<28}{text}")
    total = duration(total_seconds({name: record.seconds for name, record in known.items()}, jobs, profile.alone))
    most, of = max((record.peak_mib for record in known.values()), default=0) / 1024, len(profile.parameters)
    what = "in all" if len(known) == of else f"{len(known)} of {of} notebooks, those with a record:"
    if known:
        cpu = sum(record.cpu_seconds for record in known.values())
        total += f" ({duration(cpu)} of CPU time)" if all(record.cpu_seconds for record in known.values()) else ""
        print(f"{what} {total}, {jobs} at a time, from an empty cache; finished trials and trained models are kept")
        print(f"memory: up to {most:.1f} GiB a notebook")
    if scaled:
        cpu = sum(scaled.values()) + sum(record.cpu_seconds for record in known.values())
        print(f"with records of other parameters too: about {cpu / 3600:.0f} hours of CPU time")
    print(f"this machine has {cores()} cores, {machine()['memory_gib']} GiB")
    if not profile.real:
        print("no data folder was given: the run would use generated data, and say so")
    for text in missing:
        print(f"missing: {text}")


def estimate(record: Record, parameters: Mapping[str, Any]) -> float:
    """CPU seconds of a notebook with other parameters than those of a record of it."""
    if record.notebook == MODELS and (models := FIGURES / "models.csv").is_file():
        return plan_estimate.trainings(parameters, models)
    start = min(START, record.cpu_seconds)
    return start + (record.cpu_seconds - start) * plan_estimate.growth(record.parameters, parameters)


def duration(seconds: float) -> str:
    """In words."""
    for unit, size in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"
