"""Several notebooks at a time, each in a process of its own, without disturbing those that measure time."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from itertools import groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from drsrobust._environment import end_with_parent
from reproduce.notebooks import Notebook
from reproduce.runner import MEMORY, Outcome, run_notebook

# These use both cores by themselves (training), or draw times, which another notebook beside them would spoil.
ALONE = ("00_models", "07_abft", "08_mitigation_recovery", "09_injection_speed")

Say = Callable[[str], None]


def run_notebooks(
    chosen: dict[str, dict[str, Any]], notebooks: dict[str, Notebook], folder: Path, jobs: int, begun: Say
) -> Iterator[Outcome]:
    """Runs notebooks, up to `jobs` at a time, each on its share of the cores; gives their outcomes in their order.

    A notebook that fails stops no other. An interrupt ends all that run, with their kernels.

    Args:
        chosen: notebook name -> parameters.
        notebooks: those there are.
        folder: of the run.
        jobs: 1 runs one after another, in this process.
        begun: is told the name of the notebook whose outcome comes next.
    """
    for alone, names in groupby(chosen, lambda name: name in ALONE):
        names = list(names)
        if alone or jobs == 1 or len(names) == 1:
            for name in names:
                begun(name)
                yield run_notebook(notebooks[name], chosen[name], folder)
        else:
            yield from _side_by_side({name: chosen[name] for name in names}, notebooks, folder, jobs, begun)


def _side_by_side(
    chosen: dict[str, dict[str, Any]], notebooks: dict[str, Notebook], folder: Path, jobs: int, begun: Say
) -> Iterator[Outcome]:
    context, waiting = multiprocessing.get_context("spawn"), list(chosen)
    running: dict[str, tuple[Any, Connection, set[int]]] = {}
    done: dict[str, Outcome] = {}
    free = _shares(jobs)
    try:
        for name in chosen:
            begun(name)
            while name not in done:
                while waiting and free:
                    new, cores = waiting.pop(0), free.pop()
                    mine, theirs = context.Pipe(duplex=False)
                    process = context.Process(target=_run, args=(theirs, notebooks[new], chosen[new], folder, cores))
                    process.start()
                    theirs.close()
                    running[new] = process, mine, cores
                ready = wait([mine for _, mine, _ in running.values()])
                for one in [key for key, (_, mine, _) in running.items() if mine in ready]:
                    process, mine, cores = running.pop(one)
                    done[one] = _outcome(process, mine, notebooks[one], chosen[one])
                    process.join()
                    free.append(cores)
            yield done[name]
    finally:  # of an interrupt, or of a caller that wants no more
        for process, _, _ in running.values():
            process.terminate()
        for process, _, _ in running.values():
            process.join()


def _outcome(process: Any, mine: Connection, notebook: Notebook, parameters: dict[str, Any]) -> Outcome:
    try:
        found = mine.recv()
    except EOFError:
        process.join()
        code = process.exitcode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        error = f"the process that ran it {how}; memory may have run out, {MEMORY}"
        output = f"notebooks/{notebook.name}.ipynb"
        return Outcome(
            notebook.name, notebook.title, False, 0.0, parameters, output, figures=[], error=error, peak_mib=0
        )
    if isinstance(found, BaseException):
        raise found
    return found


def _shares(jobs: int) -> list[set[int]]:
    """Which cores each of `jobs` notebooks may use; none: any. Campaigns start as many processes as they have cores: two
    notebooks with both cores each were 15 % slower than with one each."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // jobs
    return [set(cores[number * each : (number + 1) * each]) for number in range(jobs)]


def _run(theirs: Connection, notebook: Notebook, parameters: dict[str, Any], folder: Path, cores: set[int]) -> None:
    """In a process of its own. It is ended by SIGTERM, which lets papermill shut the kernel down as an interrupt does."""
    signal.signal(signal.SIGTERM, _interrupted)
    if cores:
        os.sched_setaffinity(0, cores)
    end_with_parent()
    try:
        theirs.send(run_notebook(notebook, parameters, folder))
    except KeyboardInterrupt:
        pass
    except Exception as error:
        theirs.send(error)


def _interrupted(*_) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    logging.disable()  # nbclient and asyncio report the kernel that is shut down as a failure
    raise KeyboardInterrupt
