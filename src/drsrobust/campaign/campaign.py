"""A campaign: all trials of a grid of error models, targets and mitigations on one evaluator, stored as they finish."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drsrobust._environment import commit, cores, machine, unknown, versions
from drsrobust._files import cache_folder
from drsrobust._hashing import digest
from drsrobust.campaign.conditions import Condition, cells, grid, sharing_maps
from drsrobust.campaign.progress import Report
from drsrobust.campaign.queue import Schedule
from drsrobust.campaign.store import Store
from drsrobust.campaign.table import SCHEMA, stored_schema
from drsrobust.campaign.workers import (
    SOON,
    Here,
    NotPicklable,
    factory_of,
    run_here,
    run_in_processes,
    run_there,
    shipped,
)
from drsrobust.evaluation import CoupledRowsError, Evaluator
from drsrobust.injection import ErrorModel, Target, Transient, restore_leftovers
from drsrobust.metrics import NAMES
from drsrobust.mitigation import Mitigation
from drsrobust.statistics.columns import FIXED, MITIGATION, PRECISION, STOPPING
from drsrobust.statistics.stopping import checkpoints
from drsrobust.statistics.summary import summarise

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 5  # of what a trial computes and stores: raise it when that changes
FIRST, MAX = 32, 4096  # trials at the first and at the last look, where a precision is asked for
GROWTH = 1.25  # from look to look: the interval holds at all of them, so looking often costs nothing and saves trials
_SCHEDULED = ["condition", "trial", "auc", "seconds"]
_KEY = ["error_model", "rate", "target", *MITIGATION, "trial"]


class Campaign:
    """All trials of errors x targets x mitigations, or of a list of conditions.

    A trial depends on the model's state, the rows, its condition and its number alone, so that a campaign may be stopped
    at any time and goes on where it was; one with more trials goes on from one with fewer; and the table is the same, bit for
    bit, however many processes computed it.

    Args:
        evaluator: the evaluator.
        errors: error models, as `[BitFlip(b) for b in decades(1e-9, 1e-2)]`.
        targets: as in `inject`.
        mitigations: what protects the model; None: nothing does. All of them meet the same error maps.
        conditions: instead of these axes a list of (error model, target), (error model, target, mitigation), or mappings
            with the keys error, target, mitigation.
        trials: how many for each condition (default 100); with `precision`, how many at least (default 32).
        precision: go on until the 95 % interval of every condition's mean AUC has at most this half-width (see
            `drsrobust.statistics.stopping`). Conditions on the same maps stop together.
        max_trials: with `precision`, how many at most (default 4096).
        metrics: further columns of the table, of `drsrobust.metrics.NAMES`, as `["ndcg", "decision_changed"]`.
        seed: all error maps follow from it.
        protocol: a label for the table (`corrected` or `as_released` in the study).
        coupled: trials of one number at different rates share nested error maps; False: all are independent.
        store: folder of the results; None: one in the cache, named by the definition.

    Raises:
        TypeError: an error model or a mitigation that is none.
        ValueError: an empty axis, a number of trials under 1, a target that matches nothing, a bit that its words do not
            have, a condition that is there twice (mitigations differ by `identity()`, not by label), an
            unknown metric, or a precision that is not positive.
        StoreError: `store` holds another campaign.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        errors: Iterable[ErrorModel] | None = None,
        targets: Iterable[str | Target | Transient] = ("all",),
        mitigations: Iterable[Mitigation | None] = (None,),
        conditions: Iterable[Any] | None = None,
        trials: int | None = None,
        precision: float | None = None,
        max_trials: int | None = None,
        metrics: Sequence[str] = (),
        seed: int = 0,
        protocol: str = "corrected",
        coupled: bool = True,
        store: str | PathLike | None = None,
    ) -> None:
        self._cells = cells(errors, targets, mitigations, conditions)
        self._looks = _looks(trials, precision, max_trials)
        self.precision = precision
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        for name in self.metrics:
            if name not in NAMES:
                raise unknown("metric", name, NAMES)
        restore_leftovers(evaluator.model)
        self.evaluator, self.seed, self.protocol, self.coupled = evaluator, index(seed), protocol, bool(coupled)
        self.conditions = grid(evaluator.model, self._cells)
        _refuse_doubles(self.conditions)
        for condition in self.conditions:
            condition.check(evaluator.model)
        definition = self._definition()
        if store is None:
            name = f"{evaluator.name}-{evaluator.rows.dataset.replace('/', '-')}-{digest(definition)[:16]}"
            store = cache_folder("campaigns", name)
        about = {"versions": versions(), "commit": commit(), "machine": machine()}
        self.store = Store(Path(store).expanduser().resolve(), definition, about, stored_schema(self.metrics))

    def _definition(self) -> dict[str, Any]:
        """All that decides the results; the number of trials does not."""
        evaluator, targets = self.evaluator, {}
        for condition in self.conditions:
            targets.setdefault(str(condition.target), condition.resolved)
        options = evaluator.options
        options.pop("memory")
        return {
            "format": FORMAT,
            "model": evaluator.name,
            "checkpoint": evaluator.checkpoint,
            "dataset": evaluator.rows.dataset,
            "data": evaluator.rows.fingerprint,
            # Of a foreign model the state is not all: its code decides too. What it computes tells it apart.
            "golden": [round(evaluator.golden.auc, 6), round(evaluator.golden.logloss, 6)],
            "conditions": [list(condition.key) for condition in self.conditions],
            "targets": targets,
            "mitigations": {c.identity: c.protection for c in self.conditions if c.mitigation},
            "metrics": {name: options for name in self.metrics},
            "seed": self.seed,
            "coupled": self.coupled,
            "protocol": self.protocol,
        }

    def __repr__(self) -> str:
        asked = f"{self._looks[0]} trials" if self.precision is None else f"precision {self.precision:g}"
        name = f"{self.evaluator.name} on {self.evaluator.rows.dataset}"
        return f"<Campaign {name}: {len(self.conditions)} conditions, {asked}, in {self.store.folder}>"

    @property
    def _options(self) -> dict[str, Any]:
        """What `run_trial` takes besides the condition."""
        return {"seed": self.seed, "coupled": self.coupled, "protocol": self.protocol, "metrics": self.metrics}

    def run(
        self, *, workers: int | None = None, executor: Executor | None = None, progress: bool = True
    ) -> "pd.DataFrame":
        """Computes the trials that are not in the store yet, and gives the table of all of them.

        What an interrupted `with dr.inject(...)` left in the model is undone first, with a warning.

        Args:
            workers: processes, of one thread each: 1 is this one, which needs no other. None: this one, until it shows that
                more than a minute of work is left; then as many as there are cores, where they can make the model (see
                `factory` of `Evaluator`).
            executor: computes instead: any of `concurrent.futures`, as a `ProcessPoolExecutor`, dask's
                `Client(...).get_executor()` or `mpi4py.futures.MPIPoolExecutor()`. Its workers must see the store's folder.
            progress: a progress bar.

        Raises:
            RuntimeError: something other than errors changed the model meanwhile.
            NotPicklable: workers or an executor were asked for and cannot make the model.
            StoreError: another process is writing to the store, a stored chunk is damaged, or the disk is full.
            ValueError: the model is not the one that the evaluator was made for.
            WorkersDied: worker processes ended again and again.
        """
        if workers is not None and index(workers) < 1:
            raise ValueError(f"workers is {workers!r}; it must be 1 or more")
        restore_leftovers(self.evaluator.model)
        if not self.evaluator.unchanged():
            raise ValueError("the model has changed since its Evaluator was made; make a new Evaluator for it")
        self.conditions = grid(self.evaluator.model, self._cells)  # its tensors may have moved
        if executor is not None or (workers or 1) > 1:
            factory_of(self.evaluator)  # says at once why it cannot be
        with self.store.writing():
            self.evaluator.full_run = self.evaluator.full_run or self.store.full_run
            try:
                self._compute(workers, executor, progress)
            except CoupledRowsError as coupled:
                warnings.warn(f"all trials of this campaign are computed again, as full runs: {coupled}", stacklevel=2)
                self.evaluator.use_full_runs(str(coupled))
                self.store.restart(str(coupled))
                self._compute(workers, executor, progress)
        return self.table()

    def _compute(self, workers: int | None, executor: Executor | None, progress: bool) -> None:
        """Computes and stores the trials that are not in the store yet. Arguments and errors are those of `run`."""
        schedule = self._schedule()
        name = f"{self.evaluator.name} on {self.evaluator.rows.dataset}"
        with Report(schedule, name, len(self.conditions), self.precision, progress=progress) as report:

            def finished(table: pa.Table) -> None:
                self.store.write(table)
                schedule.add(table)
                report.update()

            if executor is None and (workers or 1) == 1:
                moving = _Moving(self, schedule, asked=workers is not None)
                runner = Here(self.evaluator, self.conditions, self._options)
                if run_here(schedule, runner, finished, worth_moving=moving.worth):
                    return
                workers = cores()
            self._run_there(schedule, finished, workers, executor)

    def _run_there(self, schedule: Schedule, finished, workers: int | None, executor: Executor | None) -> None:
        folder = self.store.folder.with_name(f"{self.store.folder.name}.workers")
        # Processes of this machine share what the evaluator may take; those of an executor may be on several machines.
        share = 1 if executor is not None else workers
        with shipped(self.evaluator, self.conditions, folder, self.store.identity, self._options, share) as order:
            if executor is not None:
                run_there(schedule, order, executor, finished)
            else:
                run_in_processes(schedule, order, workers, finished)

    def _schedule(self) -> Schedule:
        schedule = Schedule(sharing_maps(self.conditions), self._looks, self.precision)
        schedule.add(self.store.read(_SCHEDULED))
        return schedule

    def table(self) -> "pd.DataFrame":
        """One row per finished trial, in the order of the grid; the same bit for bit however it was run. May be read
        while another process computes. The column `stopping` says how the number of trials came about: `fixed`, or
        `precision`, by their AUC."""
        found = _frame(self._stored([*SCHEMA.names, *self.metrics]))
        found.insert(len(SCHEMA.names), STOPPING, FIXED if self.precision is None else PRECISION)
        return found

    def summary(self, metrics: Sequence[str] = ("auc", "auc_drop", "logloss", "ne")) -> "pd.DataFrame":
        """One row per condition, with intervals: see `summarise`."""
        return summarise(self.table(), tuple(metrics))

    def timings(self) -> "pd.DataFrame":
        """Seconds of each finished trial, with its condition: what is not the same from run to run."""
        return _frame(self._stored([*_KEY, "seconds"]))

    def raised(self) -> "pd.DataFrame":
        """The trials in which the model raised, with the text of its error."""
        table = self._stored([*_KEY, "seed", "error", "outcome"])
        return _frame(table.filter(pc.field("outcome") == "raised").drop_columns(["outcome"]))

    def errors(self) -> "pd.DataFrame":
        """How many bits were flipped in each trial, before any mitigation: a row per trial, tensor and number of the bit, with
        `component`, `tensor`, `bit` (0 the lowest) and `count`."""
        table = self._stored([*_KEY, "errors"])
        lengths = pc.list_value_length(table["errors"]).to_numpy()
        found = table.select(_KEY).take(pa.array(np.repeat(np.arange(len(table)), lengths)))
        counts = pa.Table.from_struct_array(pc.list_flatten(table["errors"]))
        for name in counts.column_names:
            column = counts[name].cast(pa.int64()) if name == "bit" else counts[name]
            found = found.append_column(name, column)
        return _frame(found)

    def _stored(self, columns: list[str]) -> pa.Table:
        """Columns of the stored trials that belong to this campaign (a store may hold more of them)."""
        table = self.store.read([*columns, *(name for name in _SCHEDULED if name not in columns)])
        schedule = Schedule(sharing_maps(self.conditions), self._looks, self.precision)
        schedule.add(table.select(_SCHEDULED))
        limits = np.array([schedule.limit(number) for number in range(len(self.conditions))], np.int64)
        belongs = table["trial"].to_numpy() < limits[table["condition"].to_numpy()]
        return table.filter(pa.array(belongs)).select(columns)


class _Moving:
    """Whether a campaign that began in this process goes on in several."""

    def __init__(self, campaign: Campaign, schedule: Schedule, *, asked: bool) -> None:
        self._schedule, self._evaluator = schedule, campaign.evaluator
        self._possible = not asked and cores() > 1

    def worth(self) -> bool:
        """Asked between chunks."""
        left = self._schedule.seconds_left() if self._possible else None
        if left is None or left < SOON:
            return False
        self._possible = False
        try:
            factory_of(self._evaluator)
        except NotPicklable as error:
            warnings.warn(f"{left / 60:.0f} minutes are left, and run in this process alone: {error}", stacklevel=2)
            return False
        return True


def _looks(trials: int | None, precision: float | None, max_trials: int | None) -> list[int]:
    """The numbers of trials at which intervals are looked at; one where all trials are to be done."""
    for name, value in (("trials", trials), ("max_trials", max_trials)):
        if value is not None and index(value) < 1:
            raise ValueError(f"{name} is {value!r}: nothing to do; it must be 1 or more")
    if precision is None:
        if max_trials is not None:
            raise ValueError(
                f"max_trials={max_trials} goes with precision=; without it, trials= says how many there are"
            )
        return [100 if trials is None else index(trials)]
    if not precision > 0:
        raise ValueError(f"precision is {precision!r}; it is the half-width of an interval of the mean AUC, as 0.005")
    first, last = (FIRST if trials is None else index(trials)), (MAX if max_trials is None else index(max_trials))
    return checkpoints(first, last, growth=GROWTH)


def _refuse_doubles(conditions: Sequence[Condition]) -> None:
    """Raises ValueError for a condition that is there twice, and for different targets that one text names."""
    keys, targets = set(), {}
    for condition in conditions:
        if condition.key in keys:
            raise ValueError(
                f"duplicate condition: {condition.error_model!r} in {str(condition.target)!r} with mitigation "
                f"{condition.protection!r}; give each once"
            )
        keys.add(condition.key)
        text = str(condition.target)
        if targets.setdefault(text, condition.resolved) != condition.resolved:
            raise ValueError(f"two different targets are both named {text!r}; run each in a campaign of its own")


def _frame(table: pa.Table) -> "pd.DataFrame":
    """A pandas frame in which absent integers and booleans stay absent."""
    import pandas as pd

    types = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=types.get)


def auc_under_errors(
    evaluator: Evaluator, error: ErrorModel, *, target: str | Target = "all", trials: int = 20, seed: int
) -> Callable[[Mitigation], float]:
    """How good a model with a mitigation is under errors, as a score for `ActivationClipping.search`.

    Args:
        evaluator: of rows that the mitigation will not be judged on, as `data.valid`.
        error, target: as in `inject`.
        trials: error maps, the same for each mitigation.
        seed: another one than in the campaign that the mitigation will be judged by.

    Returns:
        mitigation -> mean AUC over all trials. One in which the model raises counts as an AUC of 0: if such trials were left
        out, a bound that makes the worst of them raise would look better.
    """
    pass

    options = {"errors": [error], "targets": [target], "trials": trials, "seed": seed}

    def score(mitigation: Mitigation) -> float:
        found = Campaign(evaluator, mitigations=[mitigation], **options).run(progress=False)
        return float(found["auc"].fillna(0.0).mean())

    return score
