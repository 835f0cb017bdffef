"""Trials in worker processes, of this machine or of any executor of `concurrent.futures`.

Workers read model, rows and conditions from files, which they map into their memory. Two of these are unpickled, which runs
code. So no other user may write to their folder, and their SHA-256 come with each task.
"""

import multiprocessing
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from drsrobust._amounts import amount
from drsrobust._files import writing
from drsrobust._hashing import folder_digests
from drsrobust._private import inside_private, private_folder
from drsrobust._processes import pool
from drsrobust.campaign.conditions import Condition, ResolvedTarget, Stratum, resolve_target
from drsrobust.campaign.model_file import model_file, read_model_file
from drsrobust.campaign.schedule import Chunk, Schedule, chunk_size
from drsrobust.campaign.trial import Finished, LocalRunner, Runner, worker
from drsrobust.campaign.trial_code import check_worker_code, trial_code
from drsrobust.data import Split
from drsrobust.data.cache import read_split, write_split
from drsrobust.evaluation import Evaluator
from drsrobust.evaluation.affected_rows import BOUND
from drsrobust.evaluation.tensor_probes import Probes
from drsrobust.injection import ErrorModel, Transient
from drsrobust.introspection.numerics import under_numerics
from drsrobust.introspection.tensors import is_sparse, is_wrapper, listed
from drsrobust.introspection.wrappers import is_script, to_evaluation

MAPPED = 4 << 20  # bytes: larger tables stay in the file that workers share; smaller tensors are copied
_STATE, _SPARSE, _MODEL, _GOLDEN = "state.safetensors", "sparse.pt", "model.pkl", "golden.npy"
_ROWS, _BATCHES = "rows", "batches.pt"


@dataclass(frozen=True)
class ConditionSpec:
    """A condition for a worker: the tensors that its target resolved to, each with the file of its rows, if any."""

    error_model: ErrorModel
    target: str
    tensors: "Transient | tuple[tuple[str, str | None], ...]"
    mitigation: Any
    stratum: Stratum | None


class TrialSpec(Protocol):
    """All that a worker needs of a campaign except the numbers of the trials. It can be pickled, and is small."""

    key: str  # identifies it among others, of other campaigns or runs
    numerics: dict[str, Any]  # settings of PyTorch, as `introspection.numerics` gives them

    def runner(self) -> Runner:
        """Computes chunks in this process, from the files of the campaign."""


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker needs except the numbers of the trials. It can be pickled, and is small.

    Attributes:
        folder: of the files, private; every worker must see it.
        owner: user id of the folder.
        files: SHA-256 (hex) of each file, by its path in the folder.
        key: identifies this object among others: no two that a worker meets have the same.
        numerics: settings of PyTorch under which the evaluator was made.
        code: of the trials, as `trial_code` gives it.
        process: that made it, as `trial.worker` names it.
        evaluator_options: of the evaluator.
        name: of the evaluator's model, as seeds have it: the class of one that is made here may be called otherwise.
        conditions: the grid.
        trial_options: of `run_trial`.
        full_run: why every rerun is a full run; None if reruns are partial.
        probes: of the evaluator.
    """

    folder: Path
    owner: int
    files: dict[str, str]
    key: str
    numerics: dict[str, Any]
    code: dict[str, Any]
    process: str
    evaluator_options: dict[str, Any]
    name: str
    conditions: tuple[ConditionSpec, ...]
    trial_options: dict[str, Any]
    full_run: str | None
    probes: Probes

    def runner(self) -> LocalRunner:
        return LocalRunner(*unpacked(self), self.trial_options)


def worker_folder(store: Path) -> Path:
    """What the names of folders of `worker_files` begin with."""
    return store.with_name(f"{store.name}.workers")


def new_key() -> str:
    """A key that no other specification has: code without a digest does not show in a campaign's identity, and a living worker
    keeps its runner by the key."""
    return secrets.token_hex(16)


@contextmanager
def worker_files(
    evaluator: Evaluator,
    conditions: Sequence[Condition],
    store: Path,
    trial_options: dict[str, Any],
    n_workers: int = 1,
) -> Iterator[WorkerSpec]:
    """Writes model and rows into a new private folder, `store`.workers-<random>, which is deleted when the block ends.

    Args:
        evaluator, conditions: of the campaign.
        store: folder of the campaign's store.
        trial_options: of `run_trial`.
        n_workers: that share the evaluator's `memory`.

    Raises:
        NotPicklable: workers could not make the model.
        OSError: there is no space for the files.
        PermissionError: others can write to the folder, whatever its mode.
    """
    from safetensors.torch import save_file

    content = model_file(evaluator)
    with private_folder(worker_folder(store)) as folder:
        with writing(folder):
            tensors = {name: tensor.detach().cpu() for name, tensor in _written(evaluator.model).items()}
            sparse = {name: tensor for name, tensor in tensors.items() if is_sparse(tensor)}
            strided = {name: tensors[name].contiguous().clone() for name in tensors.keys() - sparse.keys()}
            save_file(strided, folder / _STATE)
            del tensors, strided
            torch.save(sparse, folder / _SPARSE)
            (folder / _MODEL).write_bytes(content)
            if isinstance(evaluator.rows, Split):
                write_split(evaluator.rows, folder / _ROWS)
            else:
                torch.save(evaluator.rows, folder / _BATCHES)
            np.save(folder / _GOLDEN, evaluator.golden.scores)
            specs = [_condition_spec(condition, number, folder) for number, condition in enumerate(conditions)]
        how = {"output": evaluator.scoring.output, "task": evaluator.scoring.task}
        options = evaluator.options | how | {"memory": amount(evaluator.options["memory"]) // n_workers}
        yield WorkerSpec(
            folder,
            folder.stat().st_uid,
            folder_digests(folder),
            new_key(),
            evaluator.numerics,
            trial_code(evaluator.model, evaluator.scoring.forward, conditions, trial_options["own_metrics"]),
            worker(),
            options,
            evaluator.name,
            tuple(specs),
            trial_options,
            evaluator.full_run,
            evaluator.probe(),
        )


def _written(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors by name whose values are files; a wrapper around others comes with the model."""
    return {entry.name: entry.tensor for entry in listed(model) if not is_wrapper(entry.tensor)}


def _condition_spec(condition: Condition, number: int, folder: Path) -> ConditionSpec:
    """Writes the rows of its target."""
    tensors: Any = condition.space
    if condition.transient is None:
        files: list[tuple[str, str | None]] = []
        for index, tensor in enumerate(condition.space.tensors):
            file = None if tensor.rows is None else f"rows-{number}-{index}.npy"
            if file:
                np.save(folder / file, tensor.rows)
            files.append((tensor.name, file))
        tensors = tuple(files)
    return ConditionSpec(condition.error_model, str(condition.target), tensors, condition.mitigation, condition.stratum)


def unpacked(spec: WorkerSpec) -> tuple[Evaluator, list[Condition]]:
    """The evaluator and the conditions, in this process.

    Raises:
        PermissionError: others may write to the folder, or it was replaced; nothing was loaded.
        RuntimeError: a file is not the campaign's, and nothing was loaded; or the model made here has other tensors or other
            scores than the campaign's, or other code would run than the campaign's.
    """
    with inside_private(spec.folder, spec.owner) as folder:
        digests = folder_digests(folder)
        if differing := sorted({name for name, _ in digests.items() ^ spec.files.items()}):
            raise RuntimeError(
                f"{spec.folder / differing[0]} is not the file that the campaign wrote (SHA-256 "
                f"{digests.get(differing[0], 'none')}, it must be {spec.files.get(differing[0], 'none')}); nothing was loaded"
            )
        return _loaded(spec, folder)


def _loaded(spec: WorkerSpec, folder: Path) -> tuple[Evaluator, list[Condition]]:
    """As `unpacked`, from files that were checked."""
    from safetensors import safe_open

    model, forward = read_model_file((folder / _MODEL).read_bytes())
    entries = {entry.name: entry for entry in listed(model) if not is_wrapper(entry.tensor)}
    sparse = torch.load(folder / _SPARSE, weights_only=True)
    with safe_open(folder / _STATE, framework="pt") as state, torch.no_grad():
        if differing := sorted(set(entries) ^ {*state.keys(), *sparse}):
            raise RuntimeError(f"the factory made another model: tensors {', '.join(differing)} are not in both")
        for name, entry in entries.items():
            saved, tensor = sparse[name] if name in sparse else state.get_tensor(name), entry.tensor
            kinds = [(stored.layout, stored.dtype, list(stored.shape)) for stored in (tensor, saved)]
            if kinds[0] != kinds[1]:
                is_kind, right = (" ".join(map(str, kind)).removeprefix("torch.strided ") for kind in kinds)
                raise RuntimeError(f"the factory made another model: {name} is {is_kind}, it should be {right}")
            if name in sparse:
                tensor.data = saved.to(tensor.device)
                continue
            separate = (
                tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
            )
            mapped = saved.nbytes >= MAPPED and tensor.device.type == "cpu"
            if mapped and separate and entry.parameter and entry.table is None:
                tensor.data = saved  # private pages of the file: writes stay in this process
            else:
                tensor.data.copy_(saved)
    conditions = [_condition(folder, condition, model) for condition in spec.conditions]

    def code() -> dict[str, Any]:
        found = trial_code(model, forward, conditions, spec.trial_options["own_metrics"])
        if any(map(is_script, model.modules())):
            # Another text once it is loaded; all of its code came in a file whose SHA-256 was checked.
            found["model code"] = spec.code["model code"]
        return found

    to_evaluation(model)
    found = code()
    if (batches := folder / _BATCHES).exists():
        rows = torch.load(batches, weights_only=False, mmap=True)
    else:
        rows = read_split(folder / _ROWS)
    same_process = spec.process == worker()
    try:
        evaluator = Evaluator(model, rows, forward=forward, **spec.evaluator_options)
    except Exception:
        check_worker_code(spec.code, found, same_process=same_process)  # the likely reason
        raise
    if found != spec.code:
        found = code()  # with the attributes that a model of a factory gets when it is first called
    check_worker_code(spec.code, found, same_process=same_process)
    evaluator.name = spec.name
    golden = np.load(folder / _GOLDEN)
    if not np.allclose(evaluator.golden.scores, golden, rtol=BOUND, atol=BOUND):
        raise RuntimeError("the model made here has other scores than the campaign's")
    if spec.full_run:
        evaluator.use_full_runs(spec.full_run)
    evaluator.probe(spec.probes, quiet=True)
    return evaluator, conditions


def _condition(folder: Path, condition: ConditionSpec, model: nn.Module) -> Condition:
    target = condition.tensors
    if isinstance(target, tuple):
        rows = {name: None if file is None else np.load(folder / file) for name, file in target}
        target = ResolvedTarget(condition.target, rows)
    return Condition(
        condition.error_model, target, resolve_target(model, target), condition.mitigation, condition.stratum
    )


_MINE = threading.local()  # of a thread: its spec and runner; errors go into a model that no other thread uses


def run_chunk(spec: TrialSpec, work: Chunk) -> pa.Table:
    """Runs all trials of a chunk; an executor calls it in a worker. Evaluator and model stay for further chunks of the spec."""
    with under_numerics(spec.numerics):
        if getattr(_MINE, "key", None) != spec.key:
            _MINE.key = None
            if multiprocessing.parent_process() is not None:
                torch.set_num_threads(1)  # several processes with several threads each are far slower
            _MINE.runner, _MINE.key = spec.runner(), spec.key
        tables, remaining = [], work.trials
        while remaining:
            table, stopped = _MINE.runner(Chunk(work.condition, remaining))
            if stopped is not None:
                raise stopped
            tables.append(table)
            remaining = remaining[len(table) :]
    return pa.concat_tables(tables).combine_chunks()


ASK_SECONDS = 1.0  # between two looks at how many workers there are
SILENT_SECONDS = 600.0  # without a result, after which a warning names the trials that workers have
RETRIES = 3  # times that workers may die before the campaign gives up


class WorkersDied(RuntimeError):
    """Worker processes ended again and again. Finished trials are stored."""


def run_there(
    schedule: Schedule,
    spec: TrialSpec,
    executor: Executor,
    finished: Finished,
    names: Sequence[str],
    *,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda workers: None,
) -> None:
    """Computes trials by an executor, whose workers see the folder of the spec.

    Args:
        schedule: of the campaign.
        spec: for the workers.
        executor: of `concurrent.futures`, or one with the same interface.
        finished: called with every finished chunk.
        names: of the conditions, for messages.
        workers: of the executor; None: as many as it has (`_workers_of`), asked again as they come and go.
        progress: called with the number of workers, when it may have changed.

    Warns:
        UserWarning: no result came for SILENT_SECONDS; nothing is ended, since a trial may take that long.
    """
    running: dict[Future, Chunk] = {}
    ended: SimpleQueue[Future] = SimpleQueue()
    began, asked, heard = time.monotonic(), -inf, time.monotonic()
    n_workers = 0
    try:
        while True:
            if (now := time.monotonic()) - asked > ASK_SECONDS:
                n_workers, asked = workers or _workers_of(executor), now
                progress(n_workers)
            while len(running) < 2 * n_workers:
                work = schedule.take(chunk_size(schedule, now - began, n_workers))
                if work is None:
                    break
                try:
                    future = executor.submit(run_chunk, spec, work)
                except BaseException:  # a worker has just died
                    schedule.take_back(work)
                    raise
                running[future] = work
                future.add_done_callback(ended.put)
            if not running:
                return
            try:
                future = ended.get(timeout=ASK_SECONDS)
            except Empty:
                if time.monotonic() - heard > SILENT_SECONDS:
                    heard = time.monotonic()
                    warnings.warn(_silent(list(running.values()), names), stacklevel=2)
                continue
            work, heard = running.pop(future), time.monotonic()
            try:
                finished(future.result())
            except BaseException:
                schedule.take_back(work)
                raise
    except BaseException:
        _drain(running, schedule, finished)
        raise


def _workers_of(executor: Executor) -> int:
    """How many chunks an executor computes at a time: of Dask's the threads of its workers now, else what it was made with."""
    if (client := getattr(executor, "_client", None)) is not None:
        return max(1, sum(client.nthreads().values()))
    return getattr(executor, "_max_workers", None) or getattr(executor, "num_workers", None) or 4


def _silent(waited_for: Sequence[Chunk], names: Sequence[str]) -> str:
    """What is said of workers that have not returned anything for long."""
    parts = [f"trials {work.trials[0]} to {work.trials[-1]} of {names[work.condition]}" for work in waited_for]
    more = f", and {len(parts) - 3} more" if len(parts) > 3 else ""
    return (
        f"no worker has returned a result for {SILENT_SECONDS / 60:.3g} minutes; waited for: {'; '.join(parts[:3])}{more}. If "
        "they hang, interrupt the campaign and run it again: finished trials are stored"
    )


def _drain(running: dict[Future, Chunk], schedule: Schedule, finished: Finished) -> None:
    """Stores chunks that are finished; the other ones become pending again."""
    for future, work in running.items():
        if future.cancel():
            schedule.take_back(work)
            continue
        try:
            finished(future.result(timeout=0))
        except (Exception, CancelledError):  # not finished, or lost with its worker
            schedule.take_back(work)


def run_in_processes(
    schedule: Schedule,
    spec: TrialSpec,
    workers: int,
    finished: Finished,
    names: Sequence[str],
    progress: Callable[[int], None],
) -> None:
    """Computes trials in fresh processes of one thread each. Processes that die are replaced.

    Raises:
        WorkersDied: they died RETRIES times.
    """
    for _ in range(RETRIES):
        with pool(workers) as executor:
            try:
                run_there(schedule, spec, executor, finished, names, workers=workers, progress=progress)
                return
            except BrokenProcessPool as error:
                died = error
    raise WorkersDied(
        f"worker processes died {RETRIES} times (killed, out of memory, or by an error of the script, which they import?); all "
        "finished trials are stored, and run() goes on from there; workers=1 computes in this process"
    ) from died
