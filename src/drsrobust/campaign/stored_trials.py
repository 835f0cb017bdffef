"""Trials of some conditions that are computed by any runner and stored as they finish: what kinds of campaigns share.

A kind of campaign says what a trial is (its runner) and what a worker process needs (its files); store, schedule, shards,
executors and the table are the same.
"""

import copy
import shutil
import tempfile
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drsrobust._arguments import check_truth, check_whole, wrong
from drsrobust._files import cache_folder
from drsrobust._private import delete_leftovers
from drsrobust._processes import UnguardedScript, check_script, cores
from drsrobust._provenance import commit, machine, versions
from drsrobust.campaign.conditions import Condition, sharing_maps
from drsrobust.campaign.model_file import NotPicklable
from drsrobust.campaign.progress import CampaignProgress
from drsrobust.campaign.repeat import HARM, Repeats
from drsrobust.campaign.schedule import Schedule
from drsrobust.campaign.shards import Shard, shard_folder
from drsrobust.campaign.store import Store
from drsrobust.campaign.table import DESCRIPTION, SCHEMA, stored_schema
from drsrobust.campaign.trial import Runner, run_here
from drsrobust.campaign.trial_code import differing
from drsrobust.campaign.workers import TrialSpec, run_in_processes, run_there, worker_folder
from drsrobust.statistics.columns import MITIGATION
from drsrobust.statistics.summary import summarise

if TYPE_CHECKING:
    import pandas as pd

MOST_WORKERS = 2**22  # Linux has no numbers for more processes (proc(5), pid_max)
MIN_SECONDS_FOR_PROCESSES = 60.0  # starting them takes some ten: not worthwhile for campaigns that end sooner
_KEY = ["error_model", "rate", "target", *MITIGATION, "trial"]


class StoredTrials(ABC):
    """A campaign's trials. `__init__` of a subclass sets all attributes but `_shard` and `_whole`.

    Attributes:
        conditions: the grid.
        trials: of each condition.
        metrics: names of further float64 columns of the table.
        store: of the results.
    """

    conditions: Sequence[Condition]
    trials: int
    metrics: tuple[str, ...]
    store: Any
    _what: dict[str, Any]  # the definition
    _noted: dict[str, Any]  # as `_note_code` left it
    _checked: bool  # whether a run of this object has repeated stored trials
    _is_temporary: bool
    _shard: Shard | None = None
    _whole: Store | None = None  # of a shard: the store that it is merged into
    _scheduled: Sequence[str] = ("condition", "trial", "auc", "seconds")  # columns that schedules read

    @property
    @abstractmethod
    def name(self) -> str:
        """What progress bars call it."""

    @abstractmethod
    def _worker_spec(self, workers: int) -> AbstractContextManager[TrialSpec]:
        """Writes what workers need, for the length of a block; `workers` share this machine's memory."""

    @abstractmethod
    def _check_workers(self) -> None:
        """Raises NotPicklable if other processes cannot make what a trial needs."""

    @abstractmethod
    def _present(self) -> dict[str, Any]:
        """What decides the trials and can change while this object lives, code included, by the keys of the definition."""

    def _note_code(self) -> None:
        """Notes what `_present` is now: when this object is made, and after each run, which may move an object's state."""
        noted = self.__dict__.setdefault("_noted", {})  # shards share it
        noted.clear()
        noted.update(self._present())

    def _check_code(self, any_of: Callable[[bool], bool] = bool) -> None:
        """Raises ValueError, which names the part, if code or settings changed since they were noted.

        Args:
            any_of: whether it is so on any rank, of a model that is sharded over ranks.
        """
        changed = differing(self._noted, self._present())
        if any_of(bool(changed)):
            raise ValueError(
                f"{', '.join(changed) or 'code of another rank'} changed since this {type(self).__name__} was made, and its "
                f"results would be stored as those of other code; make a new {type(self).__name__}"
            )

    def _temporary(self, name: str, missing: str) -> str:
        """A new folder for the results, which is deleted with this campaign."""
        warnings.warn(
            f"this campaign's results are not kept, since a later run could not see whether this is the same: {missing}; pass "
            "store= a folder to keep them",
            stacklevel=4,
        )
        folder = cache_folder("campaigns")
        folder.mkdir(parents=True, exist_ok=True)
        store = tempfile.mkdtemp(prefix=f"{name}-", dir=folder)
        weakref.finalize(self, shutil.rmtree, store, ignore_errors=True)
        return store

    def _store(self, folder: Path, shard: dict[str, Any] | None = None) -> Store:
        provenance = {"versions": versions(), "commit": commit(), "machine": machine()}
        return Store(folder, self._what, provenance, stored_schema(self.metrics), shard)

    def _of_shard(self, shard: Shard, folder: Path | None = None) -> "StoredTrials":
        """This campaign, as far as a shard computes it: its store, in `folder` or next to the whole campaign's, and its table.

        Raises:
            ValueError: results that are not kept.
            StoreError: the folder holds something else.
        """
        if self._is_temporary:
            raise ValueError("a shard's results must be kept: pass store=, since part of the code has no digest")
        part = copy.copy(self)
        part._shard, part._whole, part._checked = shard, self.store, False
        empty = self.store.schema.empty_table()
        schedule = part._schedule_of(empty)
        pilots = [schedule.pilot(number) for number in range(len(self.conditions))]
        part.store = self._store(
            folder or shard_folder(self.store.folder, shard), {**shard._asdict(), "pilots": pilots}
        )
        return part

    @property
    def _narrow(self) -> list[str]:
        """The store's columns that `run` and `table` read. A trial may have very many flipped bits."""
        return [name for name in self.store.schema.names if name not in ("error", "worker", "errors")]

    def _compute(self, runner: Runner, workers: int | None, executor: Executor | None, progress: bool) -> None:
        """Computes and stores the trials that are not in the store yet. Arguments and errors are those of `run`."""
        delete_leftovers(worker_folder(self.store.folder))
        stored = self.store.read(list(dict.fromkeys([*HARM, *self.metrics[:1], *self._scheduled])))
        schedule = self._schedule(stored.select(self._scheduled))
        names = [f"{condition.error_model} in {condition.target}" for condition in self.conditions]
        repeats = Repeats(self.store, runner, self.conditions, stored.slice(0, 0 if self._checked else None))
        repeats.begin()
        self._checked = True
        name = self.name + (f", shard {self._shard}" if self._shard else "")
        report = CampaignProgress(schedule, name) if progress else None

        def finished(table: pa.Table) -> None:
            self.store.write(table)
            schedule.add(table)
            if report:
                report.update()
            repeats.go_on()

        with report or nullcontext():
            if executor is None and (workers or 1) == 1:
                switch = _SwitchToProcesses(self, schedule, requested=workers is not None)
                if run_here(schedule, runner, finished, may_switch=switch.worthwhile):
                    return
                workers = cores()
            working = report.working if report else lambda workers: None
            self._run_there(schedule, finished, names, workers, executor, working)

    def _run_there(
        self, schedule: Schedule, finished, names, workers: int | None, executor: Executor | None, progress
    ) -> None:
        # Processes of this machine share the evaluator's memory; workers of an executor may be on several machines.
        with self._worker_spec(1 if executor is not None else workers) as spec:
            if executor is not None:
                run_there(schedule, spec, executor, finished, names, workers=workers, progress=progress)
            else:
                run_in_processes(schedule, spec, workers, finished, names, progress)

    def _schedule_of(self, *stored: pa.Table) -> Schedule:
        """The trials that are to be computed, when those of some tables have finished."""
        schedule = self._new_schedule()
        schedule.add(pa.concat_tables([table.select(self._scheduled) for table in stored]))
        return schedule

    def _new_schedule(self) -> Schedule:
        return Schedule(sharing_maps(self.conditions), self.trials, self._shard)

    def _schedule(self, stored: pa.Table | None = None) -> Schedule:
        merged = [] if self._whole is None else [self._whole.read(self._scheduled)]
        return self._schedule_of(*merged, self.store.read(self._scheduled) if stored is None else stored)

    def table(self) -> "pd.DataFrame":
        """One row per finished trial, in the order of the grid; the same bit for bit however it was run. It may be read while
        another process computes."""
        return self._described(self._stored([*SCHEMA.names, "condition", *self.metrics]))

    def _described(self, stored: pa.Table) -> "pd.DataFrame":
        """Stored trials with the columns of their conditions."""
        conditions = pa.Table.from_pylist([condition.description for condition in self.conditions], DESCRIPTION)
        described = conditions.take(stored["condition"])
        columns = {name: part[name] for part in (stored, described) for name in part.column_names}
        return _frame(
            pa.table({name: columns[name] for name in [*SCHEMA.names, *described.column_names, *self.metrics]})
        )

    def summary(
        self,
        metrics: Sequence[str] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
    ) -> "pd.DataFrame":
        """One row per condition, with intervals, by `summarise`."""
        return summarise(self.table(), metrics, bounds)

    def timings(self) -> "pd.DataFrame":
        """Seconds of each finished trial, with its condition and the process that ran it (`worker`, as `host:pid`); they differ
        from run to run."""
        return _frame(self._stored([*_KEY, "seconds", "worker"]))

    def raised(self) -> "pd.DataFrame":
        """The trials in which the model raised, with its error message."""
        table = self._stored([*_KEY, "seed", "error", "outcome"])
        return _frame(table.filter(pc.field("outcome") == "raised").drop_columns(["outcome"]))

    def raised_text(self) -> str:
        """How many finished trials raised, and the first of them; an empty text if none did."""
        if not len(raised := self.raised()):
            return ""
        first = raised.iloc[0]
        return (
            f"{len(raised):,} of {len(self.timings()):,} trials raised, and have no scores; the first: "
            f"{first['error_model']} in {first['target']}, trial {first['trial']}: {first['error']}"
        )

    def left_out_text(self) -> str:
        """How many stored trials a campaign of more trials left that this one does not ask for; an empty text without any."""
        n_stored = len(self.store.keys())  # first: another process may be writing
        if (left := n_stored - len(self._stored(["trial"]))) <= 0:
            return ""
        return (
            f"{left:,} of {n_stored:,} stored trials are left out, those beyond the first {self.trials:,} of each condition; a "
            "larger number of trials shows them"
        )

    def errors(self) -> "pd.DataFrame":
        """Flipped bits of each trial before any mitigation: a row per trial, tensor and number of the bit, with `component`,
        `tensor`, `bit` (0 the lowest) and `count`."""
        table = self._stored([*_KEY, "errors"])
        lengths = pc.list_value_length(table["errors"]).to_numpy()
        rows = table.drop_columns(["errors"]).take(pa.array(np.repeat(np.arange(len(table)), lengths)))
        counts = pa.Table.from_struct_array(pc.list_flatten(table["errors"]))
        for name in counts.column_names:
            column = counts[name].cast(pa.int64()) if name == "bit" else counts[name]
            rows = rows.append_column(name, column)
        return _frame(rows)

    def _stored(self, columns: list[str]) -> pa.Table:
        """Columns of the stored trials that belong to this campaign (a store may hold more of them)."""
        if self.store is None:
            raise RuntimeError("rank 0 has the results of this campaign; the other ranks only compute")
        table = self.store.read([*columns, *(name for name in self._scheduled if name not in columns)])
        schedule = self._schedule(table.select(self._scheduled))
        limits = np.array([schedule.limit(number) for number in range(len(self.conditions))], np.int64)
        belongs = table["trial"].to_numpy() < limits[table["condition"].to_numpy()]
        return table.filter(pa.array(belongs)).select(columns)


class _SwitchToProcesses:
    """Whether a campaign that began in this process continues in several."""

    def __init__(self, campaign: StoredTrials, schedule: Schedule, *, requested: bool) -> None:
        self._schedule, self._campaign = schedule, campaign
        self._possible = not requested and cores() > 1

    def worthwhile(self) -> bool:
        seconds = self._schedule.seconds_left() if self._possible else None
        if seconds is None or seconds < MIN_SECONDS_FOR_PROCESSES:
            return False
        self._possible = False
        try:
            self._campaign._check_workers()
            check_script()
        except (NotPicklable, UnguardedScript) as error:
            warnings.warn(f"{seconds / 60:.0f} minutes are left, and run in this process alone: {error}", stacklevel=2)
            return False
        return True


def check_run(workers: int | None, executor: Executor | None, progress: bool) -> int | None:
    """The number of workers as an int, or None. Raises ArgumentError for arguments of `run` of another kind."""
    check_truth("progress", progress)
    if executor is not None and (isinstance(executor, type) or not callable(getattr(executor, "submit", None))):
        raise wrong("executor", "an executor of concurrent.futures, as ProcessPoolExecutor(2)", executor)
    return None if workers is None else check_whole("workers", workers, 1, MOST_WORKERS)


def _frame(table: pa.Table) -> "pd.DataFrame":
    """As a pandas frame; null integers and booleans stay null."""
    import pandas as pd

    types = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=types.get)
