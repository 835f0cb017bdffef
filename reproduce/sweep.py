"""A sweep: one notebook over a grid of its parameters, or over lists that are paired, several points at a time.

A point that has finished is not run again."""

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import drsrobust
import drsrobust_study
from drsrobust._choices import check_choice, unknown
from drsrobust._files import new_file
from drsrobust._hashing import canonical_json, digest, file_digest
from drsrobust_extras.pages.annotated_types import fits
from reproduce.notebooks import Notebook, literal, parse_assignment, progress_file
from reproduce.plan import Record, duration, matching, read_records, remember
from reproduce.plan_estimate import growth
from reproduce.profiles import Profile
from reproduce.progress import Progress
from reproduce.runner import ALONE, MODELS, Outcome, Run, side_by_side, total_seconds
from reproduce.time_left import Step

POINT = "point.json"  # in the folder of a point that has finished: its outcome
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_LONGEST = 100  # characters of a folder's name
_MOST = 10_000  # points of a sweep
_SEVERAL = "give several values, as 'seed=0..2'"
_TABLES = ("notebook", "fixed", "grid", "zip")


@dataclass(frozen=True)
class Sweep:
    """A sweep of a notebook.

    Attributes:
        fixed: the values of all parameters that do not vary.
        points: the values of those that do, by the name of the point's folder; points with fewer trials come first, since those
            with more continue their campaigns.
        real: whether the data are.
    """

    notebook: Notebook
    fixed: dict[str, Any]
    points: dict[str, dict[str, Any]]
    real: bool

    @property
    def varied(self) -> list[str]:
        """Names of the parameters that vary, in the notebook's order."""
        return list(next(iter(self.points.values())))

    def parameters(self, point: str) -> dict[str, Any]:
        """All parameters of a point, in the notebook's order."""
        values = self.fixed | self.points[point]
        return {name: values[name] for name in self.notebook.parameters}

    @property
    def identity(self) -> str:
        """A hash of the notebook, its parameters, and the code of library and study, whatever the order of the points."""
        points = sorted(canonical_json(values) for values in self.points.values())
        files = [
            path for package in (drsrobust, drsrobust_study) for path in Path(package.__file__).parent.rglob("*.py")
        ]
        code = [file_digest(path) for path in sorted(files)]
        return digest([self.notebook.name, file_digest(self.notebook.path), code, self.fixed, points])[:10]


def read_grid(path: Path, notebooks: Mapping[str, Notebook], profile: Profile) -> Sweep:
    """Reads a sweep from a TOML file: `notebook`, a table `[fixed]` of parameters (may be missing), and a table `[grid]` (all
    combinations) or `[zip]` (lists of equal length, paired) of lists of values.

    Raises:
        ValueError, TypeError, OSError: whatever is wrong with it, in one line that names the file.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        for name in tables:
            check_choice("entry", name, _TABLES)
        given = [key for key in ("grid", "zip") if key in tables]
        if "notebook" not in tables:
            raise ValueError('it lacks notebook = "..."')
        check_choice("notebook", tables["notebook"], notebooks)
        if len(given) != 1:
            raise ValueError(
                f"it has {' and '.join(f'[{key}]' for key in given) or 'no [grid] or [zip]'}; give one of them"
            )
        for key in ("fixed", *given):
            if not isinstance(tables.get(key, {}), dict):
                raise TypeError(f"{key} is {tables[key]!r}; it must be a table, [{key}]")
        lists, fixed = tables[given[0]], tables.get("fixed", {})
        return _sweep(notebooks[tables["notebook"]], profile, fixed, lists, paired=given == ["zip"])
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except RecursionError:
        raise ValueError(f"{path}: its lists are nested too deep") from None
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{path}: {error}") from None


def read_assignments(words: Sequence[str], notebooks: Mapping[str, Notebook], profile: Profile) -> Sweep:
    """A sweep of the command line: a notebook, and words `name=value`. The grid is of those with several values.

    Raises:
        ValueError, TypeError: whatever is wrong with them, in one line.
    """
    names = [word for word in words if "=" not in word]
    if len(names) != 1:
        raise ValueError(f"a sweep is of one notebook, not of {len(names)}: {', '.join(names) or 'none is named'}")
    if names[0] not in notebooks:
        raise unknown("notebook", names[0], notebooks)
    notebook = notebooks[names[0]]
    values: dict[str, list] = {}
    for word in words:
        if "=" in word:
            name, several = read_values(word, notebook)
            if name in values:
                raise ValueError(f"{name} is given twice; give all of its values at once")
            values[name] = several
    fixed = {name: several[0] for name, several in values.items() if len(several) == 1}
    lists = {name: several for name, several in values.items() if len(several) > 1}
    if not lists:
        whole = [name for name, value in fixed.items() if isinstance(value, list) and len(value) > 1]
        raise ValueError(f"nothing varies; {_apart(whole[0], fixed[whole[0]]) if whole else _SEVERAL}")
    return _sweep(notebook, profile, fixed, lists, paired=False)


def _apart(name: str, value: list) -> str:
    """How a list is passed whose items are to be values of their own."""
    each = _bare([[item] for item in value])
    return f"{name} is a list, so what is given is one run with all of it; for a run each write '{name}={each}'"


def _bare(value: Any) -> str:
    """A value as `read_values` reads it, with no more quotes than needed."""
    if isinstance(value, list):
        return f"[{','.join(map(_bare, value))}]"
    return json.dumps(value) if isinstance(value, str) and re.search(r"[^\w./+-]", value) else str(value)


def read_values(word: str, notebook: Notebook) -> tuple[str, list]:
    """Name and values of a word: `a,b` and `0..2` are several, of a parameter that is a list `[[...],[...]]`; a quoted value is
    one.

    Raises:
        ValueError: an unknown parameter, an empty value, a range that is empty or has too many values.
    """
    name, value = parse_assignment(word, notebook)
    annotation, text = notebook.parameters[name].annotation, word.partition("=")[2]
    read = literal(text)
    if isinstance(read, tuple) and text[0] in "'\"":
        return name, list(read)
    if fits([], annotation):
        is_several = (
            isinstance(read, list) and not fits(read, annotation) and all(isinstance(one, list) for one in read)
        )
        return name, read if is_several else [value]
    if text[:1] in ("'", '"') or (not isinstance(read, str | tuple) and fits(read, annotation)):
        return name, [value]
    if "," in text and set(text) & set("'\"") and read == text:
        raise ValueError(f"{word!r} has a quote; put quotes around each of its values")
    values: list = []
    for item in map(str.strip, text.split(",")):
        if not item:
            raise ValueError(f"{word!r} has an empty value")
        if ends := _RANGE.fullmatch(item):
            low, high = map(int, ends.groups())
            if low > high:
                raise ValueError(f"the range {item} in {word!r} is empty; write its lower end first")
            _check_number(high - low + 1, f"the range {item}")
            values += range(low, high + 1)
        else:
            values.append(parse_assignment(f"{name}={item}", notebook)[1])
    return name, values


def _check_number(points: int, what: str) -> None:
    if points > _MOST:
        raise ValueError(f"{what} is {points:,} points; a sweep has at most {_MOST:,}")


def _sweep(
    notebook: Notebook, profile: Profile, fixed: dict[str, Any], lists: dict[str, Any], *, paired: bool
) -> Sweep:
    if notebook.name not in profile.parameters:
        raise ValueError(f"profile {profile.name} has no table for {notebook.name}")
    notebook.check(fixed)
    for name, values in lists.items():
        if name not in notebook.parameters:
            notebook.check({name: values})
        if name in fixed:
            raise ValueError(f"{name} is both fixed and varied")
        is_list = fits([], notebook.parameters[name].annotation)
        if not isinstance(values, list) or (is_list and not all(isinstance(value, list) for value in values)):
            kind = "lists, as [[...], [...]]" if is_list else "values"
            raise TypeError(f"{name} is {values!r}; to vary it give a list of {kind}")
        for value in values:
            notebook.check({name: value})
    if not lists or not all(lists.values()):
        empty = [name for name, values in lists.items() if not values]
        raise ValueError(f"{empty[0]} has no values" if empty else f"nothing varies; {_SEVERAL}")
    lengths = {name: len(values) for name, values in lists.items()}
    if paired and len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"[zip] pairs lists of equal length, but {counts}")
    parts = (" and " if paired else " x ").join(f"{length} of {name}" for name, length in lengths.items())
    _check_number(max(lengths.values()) if paired else math.prod(lengths.values()), parts)
    names = [name for name in notebook.parameters if name in lists]
    columns = [lists[name] for name in names]
    rows = zip(*columns, strict=True) if paired else product(*columns)
    points = sorted(
        (dict(zip(names, row, strict=True)) for row in rows),
        key=lambda point: [value for name, value in point.items() if name.endswith("trials")],
    )
    seen = set()
    for point in points:
        if (key := _hashable(list(point.values()))) in seen:
            raise ValueError(f"two points are equal: {_name(point)}")
        seen.add(key)
    values = profile.parameters[notebook.name] | fixed
    return Sweep(notebook, {name: values[name] for name in values if name not in lists}, _named(points), profile.real)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _name(point: Mapping[str, Any]) -> str:
    """As `trials=20,seed=0`."""
    texts = {name: "+".join(map(str, value)) if isinstance(value, list) else value for name, value in point.items()}
    return ",".join(f"{name}={text}" for name, text in texts.items())


def _named(points: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Points by names that differ and are allowed on any file system."""
    safe = [(re.sub(r"[^\w.,=+-]", "_", _name(point), flags=re.ASCII), point) for point in points]
    counts = Counter(name.casefold() for name, _ in safe)
    return {
        name
        if len(name) <= _LONGEST and counts[name.casefold()] == 1
        else f"{name[:_LONGEST]}-{digest(point)[:8]}": point
        for name, point in safe
    }


def finished(sweep: Sweep, folder: Path) -> dict[str, Outcome]:
    """The outcomes of the points that earlier runs have finished."""
    files = {point: folder / point / POINT for point in sweep.points}
    return {point: Outcome(**json.loads(file.read_text())) for point, file in files.items() if file.is_file()}


def run_sweep(sweep: Sweep, notebooks: Mapping[str, Notebook], folder: Path, jobs: int) -> dict[str, Outcome]:
    """Runs the points that have not finished yet; returns the outcomes of all. The caller holds the lock of the folder."""
    outcomes, name = finished(sweep, folder), sweep.notebook.name
    left = [point for point in sweep.points if point not in outcomes]
    print(f"sweep of {name}: {len(sweep.points)} points, {len(outcomes)} finished earlier; {folder}", flush=True)
    runs = {point: Run(sweep.notebook, sweep.parameters(point), folder / point) for point in left}
    steps = _expected(sweep, left, read_records(folder.parent, dict(notebooks)))
    files, jobs = {point: progress_file(folder / point, name) for point in left}, _jobs(sweep, jobs)
    with Progress(files, steps, jobs) as progress, closing(side_by_side(runs, jobs)) as ended:
        for point, outcome in ended:
            outcomes[point] = outcome
            if outcome.ok:
                with new_file(folder / point / POINT) as part:
                    part.write_text(json.dumps(asdict(outcome), indent=1))
            remember(outcome, folder.parent)
            steps |= _expected(sweep, left, read_records(folder.parent, dict(notebooks)))
            took = duration(outcome.seconds) if outcome.ok else f"FAILED: {outcome.error}"
            progress.line(f"  {point} ... {took}", finished=point)
    return {point: outcomes[point] for point in sweep.points}


def print_sweep_plan(sweep: Sweep, notebooks: Mapping[str, Notebook], folder: Path, jobs: int) -> None:
    """Prints the points, the time of each by records of runs with the same fixed parameters, and where results would go."""
    records, done = read_records(folder.parent, dict(notebooks)), finished(sweep, folder)
    left = [point for point in sweep.points if point not in done]
    expected = {point: sum(step.seconds for step in steps) for point, steps in _expected(sweep, left, records).items()}
    print(f"plan of a sweep of {sweep.notebook.name}: {len(sweep.points)} points; {folder}")
    width = max(map(len, sweep.points)) + 2
    for point in sweep.points:
        text = "finished" if point in done else "no record with these fixed parameters"
        if point in expected:
            record = _nearest(sweep, point, records)
            other = [name for name, value in sweep.points[point].items() if record.parameters[name] != value]
            source = record.source + (f", with other {', '.join(other)}" if other else "")
            text = f"{duration(expected[point]):>10}  {source}"
        print(f"{point:<{width}}{text}")
    if expected:
        total, jobs = total_seconds(expected, _jobs(sweep, jobs)), _jobs(sweep, jobs)
        what = (
            "in all" if len(expected) == len(left) else f"{len(expected)} of {len(left)} points, those with a record:"
        )
        print(f"{what} about {duration(total)}, {jobs} at a time; finished trials and trained models are kept")


def _jobs(sweep: Sweep, jobs: int) -> int:
    """A notebook that trains on all cores, or that measures time, runs alone."""
    return 1 if sweep.notebook.name in (MODELS, *ALONE) else jobs


def _nearest(sweep: Sweep, point: str, records: Sequence[Record]) -> Record | None:
    """The record with the fixed parameters that shares most of the others with a point."""
    asked = sweep.parameters(point)
    if exact := matching(records, {sweep.notebook.name: asked}):
        return exact[sweep.notebook.name]
    alike = [
        record
        for record in records
        if record.notebook == sweep.notebook.name
        and record.parameters.keys() == asked.keys()
        and all(record.parameters[name] == value for name, value in sweep.fixed.items())
    ]
    differing = {id(record): sum(record.parameters[name] != asked[name] for name in sweep.varied) for record in alike}
    return min(alike, key=lambda record: differing[id(record)], default=None)


def _expected(sweep: Sweep, points: Iterable[str], records: Sequence[Record]) -> dict[str, list[Step]]:
    """The steps of points by their nearest records, with trials in proportion to what grows."""
    steps = {}
    for point in points:
        if (record := _nearest(sweep, point, records)) is not None:
            share = growth(record.parameters, sweep.parameters(point))
            shares = [(step, share if step.kind == "trials" else 1.0) for step in record.work]
            steps[point] = [Step(kind, max(1, round(n * by)), seconds * by) for (kind, n, seconds), by in shares]
    return steps
