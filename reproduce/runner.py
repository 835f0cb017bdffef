"""Runs notebooks by papermill, up to several at a time, strictly: what papermill lets pass (unknown parameters, dead kernels,
half-written output, a notebook without figures) is a failure here. One run at a time writes to a folder."""

import ctypes
import errno
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drsrobust._files import cache_folder
from drsrobust._locks import exclusive
from drsrobust._processes import end_with_parent
from drsrobust_study.notebook import datasets_of
from reproduce.notebooks import Notebook, progress_file
from reproduce.time_left import read_events, steps_of
from reproduce.usage import Usage

if TYPE_CHECKING:
    from reproduce.warm_kernels import ForkedKernel

MODELS = "00_models"  # trains on all cores the models that the others load
# These measure how much longer a model runs with a protection: on all cores, by differences of some percent.
ALONE = (
    "07_abft",
    "08_mitigation_recovery",
    "14_protection_plan",
    "17_training_errors",
    "20_stuck_unit",
    "21_checkpoints",
)
# Begin before others of their batch: a core that waits for them at the end is idle.
LONG = ("03_ber_sweep", "19_sequence_models", "02_model_factors", "06_selective_bit_protection", "09_injection_speed")
MEMORY = "the machine's or that of `ulimit -v`; --jobs 1 runs one notebook at a time"
# Read by glibc when a program starts. It gives large freed blocks back to the system, which clears their pages again for the
# next tensor: a sixth of the time of a training.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent ends
# A kernel is interrupted at its end, and it or its event loop may report that as an error.
_QUIET_END = ["--log-level=50", "--IPKernelApp.exec_lines=__import__('logging').getLogger('asyncio').setLevel(50)"]


@dataclass
class Outcome:
    """How the run of one notebook ended."""

    notebook: str
    title: str
    ok: bool
    seconds: float
    parameters: dict[str, Any]
    output: str  # the executed notebook, relative to the run's folder
    figures: list[str] = field(default_factory=list)  # names, without ending
    error: str = ""
    peak_mib: int = 0  # the most memory of its processes
    steps: list[str] = field(default_factory=list)  # as `time_left.steps_of`; empty where some of it was stored
    cpu_seconds: float = 0.0  # user and system, of all its processes


class Run(NamedTuple):
    """A notebook that is to run: with which parameters, into which folder."""

    notebook: Notebook
    parameters: dict[str, Any]
    folder: Path


def run_notebooks(
    chosen: dict[str, dict[str, Any]],
    notebooks: dict[str, Notebook],
    folder: Path,
    jobs: int,
    alone: Collection[str] = ALONE,
) -> Iterator[Outcome]:
    """Runs notebooks, up to `jobs` at a time, each on its share of the cores. The models come first, and no notebook that reads
    a data set begins before they are trained; those of `alone` come last, one by one. Yields their outcomes in this order.

    A notebook that fails stops no other. An interrupt ends all that run, with their kernels.

    Args:
        chosen: notebook name -> parameters.
        notebooks: all notebooks.
        folder: of the run.
        jobs: 1 runs one after another, in this process.
        alone: names of notebooks during which no other may run.
    """
    order = sorted(chosen, key=lambda name: _turn(name, alone))
    if jobs == 1 or len(order) == 1:
        for name in order:
            yield run_notebook(notebooks[name], chosen[name], folder)
        return
    last = [name for name in order if name in alone]
    for names, at_a_time in (([name for name in order if name not in last], jobs), (last, 1)):
        done: dict[str, Outcome] = {}
        first = [name for name in (MODELS, *LONG) if name in names]
        runs = {name: Run(notebooks[name], chosen[name], folder) for name in (*first, *names)}
        with closing(side_by_side(runs, at_a_time)) as ended:
            for name in names:
                while name not in done:
                    done |= [next(ended)]
                yield done[name]


def _turn(name: str, alone: Collection[str]) -> int:
    """The models come first (0), notebooks that run alone last (2)."""
    return 0 if name == MODELS else 2 if name in alone else 1


def total_seconds(seconds: Mapping[str, float], jobs: int, alone: Collection[str] = ALONE) -> float:
    """How long `run_notebooks` takes in all, from the seconds of each notebook."""
    turns = {name: _turn(name, alone) for name in seconds}
    first, parallel, last = ([taken for name, taken in seconds.items() if turns[name] == turn] for turn in range(3))
    return sum(first) + max([*parallel, sum(parallel) / jobs]) + sum(last)


def side_by_side(runs: Mapping[str, Run], jobs: int) -> Iterator[tuple[str, Outcome]]:
    """Runs notebooks in processes of their own, up to `jobs` at a time, begun in their order, but for those that wait for
    models; yields the key and the outcome of each when it ends."""
    context, waiting = multiprocessing.get_context("forkserver"), list(runs)
    # 10 s of imports once, not for each notebook of the study
    of_study = any("drsrobust_study" in run.notebook.path.read_text() for run in runs.values())
    packages = ["reproduce.preloaded"] if of_study else []
    context.set_forkserver_preload([__name__, "papermill", "reproduce.warm_kernels", *packages])
    with environment(**ALLOCATOR | os.environ):  # what the caller has set goes first
        forkserver.ensure_running()
    running: dict[str, tuple[Any, Connection, set[int]]] = {}
    free = _core_sets(jobs)

    def next_run() -> str | None:
        needed = MODELS in waiting or MODELS in running
        may_begin = (key for key in waiting if key == MODELS or not (needed and datasets_of(runs[key].parameters)))
        return next(may_begin, None)

    try:
        while waiting or running:
            while free and (new := next_run()):
                waiting.remove(new)
                cores = free.pop()
                parent_end, child_end = context.Pipe(duplex=False)
                variables = ALLOCATOR | os.environ  # the fork server has those of its start
                process = context.Process(
                    target=_run_in_child, args=(child_end, runs[new], set() if new == MODELS else cores, variables)
                )
                process.start()
                child_end.close()
                running[new] = process, parent_end, cores
            heard = wait([parent_end for _, parent_end, _ in running.values()])
            for key in [key for key, (_, parent_end, _) in running.items() if parent_end in heard]:
                process, parent_end, cores = running.pop(key)
                outcome = _outcome(process, parent_end, runs[key])
                process.join()
                free.append(cores)
                yield key, outcome
    finally:  # of an interrupt, or of a caller that wants no more
        for process, _, _ in running.values():
            process.terminate()
        for process, _, _ in running.values():
            process.join()


def _outcome(process: Any, connection: Connection, run: Run) -> Outcome:
    try:
        result = connection.recv()
    except EOFError:
        process.join()
        code = process.exitcode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        error = f"the process that ran it {how}; memory may have run out, {MEMORY}"
        output = f"notebooks/{run.notebook.name}.ipynb"
        return Outcome(run.notebook.name, run.notebook.title, False, 0.0, run.parameters, output, error=error)
    if isinstance(result, BaseException):
        raise result
    return result


def _core_sets(jobs: int) -> list[set[int]]:
    """The cores of each of `jobs` notebooks; empty: any. Campaigns start as many processes as they have cores: two notebooks
    with both cores each were 15 % slower than with one each."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // jobs
    return [set(cores[number * each : (number + 1) * each]) for number in range(jobs)]


def _run_in_child(connection: Connection, run: Run, cores: set[int], variables: dict[str, str]) -> None:
    """SIGTERM ends this process and lets papermill shut the kernel down, as an interrupt does."""
    from reproduce.warm_kernels import ForkedKernel

    os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGTERM, _interrupted)
    if cores:
        os.sched_setaffinity(0, cores)
    kernel = ForkedKernel(connection)  # while this process has no threads
    end_with_parent()
    try:
        connection.send(run_notebook(*run, kernel))
    except KeyboardInterrupt:
        pass
    except Exception as error:
        connection.send(error)


def _interrupted(*_) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    logging.disable()  # nbclient and asyncio report the kernel that is shut down as a failure
    raise KeyboardInterrupt


def run_notebook(
    notebook: Notebook, parameters: dict[str, Any], folder: Path, kernel: "ForkedKernel | None" = None
) -> Outcome:
    """Executes a notebook into `folder`: notebooks/<name>.ipynb, figures/, figures/data/.

    The executed notebook appears under its name only when every cell ran and its figures are there; after a failure it is
    kept as <name>.failed.ipynb, up to the cell that failed, unless the disk had no room for it.

    Raises:
        ValueError, TypeError: as `Notebook.check`, before a kernel starts.
    """
    notebook.check(parameters)
    outputs, figures = folder / "notebooks", folder / "figures"
    done, failed = outputs / f"{notebook.name}.ipynb", outputs / f"{notebook.name}.failed.ipynb"
    part = outputs / f".{notebook.name}.part.ipynb"
    files = [*figures.glob(f"{notebook.name}*.*"), *figures.glob(f"data/{notebook.name}*.*")]
    for old in (done, failed, part, *files, *tables_of(notebook.name, figures)):
        old.unlink(missing_ok=True)
    start = time.monotonic()
    with Usage(kernel and kernel.pid) as usage:
        try:
            outputs.mkdir(parents=True, exist_ok=True)
            counts = progress_file(folder, notebook.name)
            counts.parent.mkdir(exist_ok=True)
            counts.write_text(f"started 1 {time.time():.2f}\n")
            error = _execute(notebook, parameters, part, figures, kernel)
        except OSError as problem:
            error = explained(type(problem).__name__, str(problem), folder)
    with suppress(OSError), open(progress_file(folder, notebook.name), "a") as counts:
        counts.write(f"ended 1 {time.time():.2f}\n")
    drawn = sorted(path.stem for path in figures.glob(f"{notebook.name}*.svg"))
    complete = [n for n in drawn if (figures / f"{n}.png").is_file() and (figures / "data" / f"{n}.csv").is_file()]
    if error is None and (complete != drawn or not (drawn or parameters.get("shard"))):  # a shard draws none
        error = f"ended without its figure (expected figures/{notebook.name}*.svg, .png and data/*.csv)"
    kept = done if error is None else failed
    if _read(part) is not None:
        part.rename(kept)
    part.unlink(missing_ok=True)
    counted = steps_of(read_events(progress_file(folder, notebook.name)))
    steps = [f"{kind} {count} {seconds:.2f}" for kind, count, seconds in counted]
    about = (
        notebook.name,
        notebook.title,
        error is None,
        time.monotonic() - start,
        parameters,
        f"notebooks/{kept.name}",
    )
    return Outcome(*about, [] if error else drawn, error or "", usage.mib, steps, round(usage.cpu_seconds, 1))


def tables_of(notebook: str, figures: Path) -> list[Path]:
    """The tables that a notebook wrote: they have its name, but for the models' table of `00_models`."""
    named = figures.glob("models.csv") if notebook == "00_models" else ()
    return sorted([*figures.glob(f"{notebook}*.csv"), *named])


def _execute(
    notebook: Notebook, parameters: dict[str, Any], output: Path, figures: Path, kernel: "ForkedKernel | None"
) -> str | None:
    """None, or what went wrong in one line. A kernel that never started (a race for ports) is tried once more, as a new one."""
    import papermill
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    from reproduce.warm_kernels import manager_of

    logging.getLogger("papermill").setLevel(logging.ERROR)
    # ipykernel 7 remarks on plain TCP otherwise. A kernel that is terminated, after half of its time, leaves semaphores behind.
    seconds = 60.0 if kernel else 5.0
    quiet = Config({"KernelManager": {"transport_encryption": "auto", "shutdown_wait_time": seconds}})
    variables = {"DRSROBUST_FIGURES": str(figures), "DRSROBUST_BATCH": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    variables["DRSROBUST_WAIT"] = "1"  # for another notebook that computes the same campaign
    variables["DRSROBUST_PROGRESS"] = str(progress_file(figures.parent, notebook.name))
    for attempt in (1, 2):
        try:
            with environment(**variables):
                papermill.execute_notebook(
                    str(notebook.path),
                    str(output),
                    parameters=parameters,
                    kernel_name="python3",
                    language="python",
                    progress_bar=False,
                    config=quiet,
                    extra_arguments=_QUIET_END,
                    **({"kernel_manager_class": manager_of(kernel)} if kernel and attempt == 1 else {}),
                )
            return None
        except PapermillExecutionError as error:
            name, text = error.ename, error.evalue
            if name == "CellExecutionError":  # IPython itself failed to say which, as it may when memory runs out
                name, text = _printed(output)
            return explained(name, text, figures.parent)
        except Exception as error:  # the kernel died, or never came: papermill's own metadata cannot be trusted here
            executed = _read(output)
            cells = [] if executed is None else executed.cells
            started = any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
            if started or attempt == 2 or isinstance(error, OSError):
                return explained(type(error).__name__, str(error), figures.parent)


def _read(path: Path) -> Any | None:
    """The notebook in a file; None where there is none, or only the part of one that fitted on the disk."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except (FileNotFoundError, nbformat.reader.NotJSONError):
        return None


def _printed(output: Path) -> tuple[str, str]:
    """Name and message of the first exception in the error streams of an executed notebook."""
    executed = _read(output)
    outputs = [one for cell in executed.cells for one in cell.get("outputs", ())] if executed else []
    text = "".join(one.text for one in outputs if one.get("name") == "stderr")
    found = re.search(r"^(\w*(?:Error|Exception))(?:: (.*))?$", text, re.MULTILINE)
    return (found[1], found[2] or "") if found else ("CellExecutionError", "see the notebook")


def explained(name: str, text: str, folder: Path) -> str:
    """An error in one line. A full disk is named by the space that is free where a run writes, lacking memory as such.

    Args:
        name: the exception's type.
        text: its message, which may be empty.
        folder: of the run.
    """
    line = f"{name}: {text}".splitlines()[0].rstrip(": ")
    if any(os.strerror(code) in text for code in (errno.ENOSPC, errno.EDQUOT)):
        return f"{line}; free space: {free_space(folder)}"
    if name == "MemoryError" or "allocate memory" in text:
        return f"{line}; memory ran out, {MEMORY}"
    return f"{line}; memory may have run out, {MEMORY}" if "Kernel died" in text else line


def free_space(folder: Path) -> str:
    """MiB that are free where a run writes: its folder, the cache, and the folder of temporary files."""
    places = []
    for place in (folder, cache_folder(), Path(tempfile.gettempdir())):
        there = next(above for above in (place, *place.parents) if above.exists())
        places.append(f"{shutil.disk_usage(there).free / 2**20:,.1f} MiB in {place}")
    return ", ".join(dict.fromkeys(places))


@contextmanager
def environment(**values: str):
    """Variables of this process inside a `with` block. Kernels inherit them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def read_run(folder: Path) -> dict[str, Any]:
    """The record of a finished run, its run.json.

    Raises:
        FileNotFoundError: there is none in the folder.
    """
    record = folder / "run.json"
    if not record.is_file():
        raise FileNotFoundError(f"there is no finished run in {folder}: make reproduce PROFILE={folder.name}")
    return json.loads(record.read_text())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a run's folder, the file `<folder>.lock`, which names this process. The system drops the lock when
    the process ends, even by `kill -9`.

    Raises:
        BlockingIOError: another process holds it; the message has its pid.
    """
    lock = folder.with_name(f"{folder.name}.lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folder, wait=False))
        except BlockingIOError:
            holder = lock.read_text().strip() or "unknown"
            raise BlockingIOError(
                f"another run is writing to {folder} (process {holder}); wait for its end, or choose another --out"
            ) from None
        lock.write_text(f"{os.getpid()}\n")
        yield


def end_with_make() -> bool:
    """Makes this process end when the `make` that started it does, even by `kill -9`. The Makefile passes make's pid as
    `DRSROBUST_MAKE`; without it nothing is done, since a shell that started a run in the background may end before it.

    Returns:
        whether to go on: make has not ended yet.
    """
    make = os.environ.pop("DRSROBUST_MAKE", None)
    if make is None:
        return True
    # Not SIGTERM: while a notebook runs in this process, nbclient answers that by ending the kernel alone.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == int(make)  # no signal comes if make ended before the call
