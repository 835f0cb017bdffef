"""Computing a schedule's trials: in this process, or by any executor of `concurrent.futures`."""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool

import pyarrow as pa

from drsrobust._processes import pool
from drsrobust.campaign.schedule import Schedule
from drsrobust.campaign.shipped import Order
from drsrobust.campaign.work import CHUNK_SECONDS, CHUNK_TRIALS, Chunk, Here, run_chunk

SOON = 60.0  # seconds: campaigns that end sooner are not worth starting processes for, which takes some ten
TRIED = 3.0  # seconds of work here before that is judged
RETRIES = 3  # how often workers may die before the campaign gives up

Finished = Callable[[pa.Table], None]  # stores trials and notes them in the schedule


class WorkersDied(RuntimeError):
    """Worker processes ended again and again. What was finished is stored."""


def run_here(schedule: Schedule, runner: Here, finished: Finished, *, worth_moving: Callable[[], bool]) -> bool:
    """Computes trials in this process.

    Args:
        schedule: of the campaign.
        runner: computes a chunk.
        finished: is given every chunk.
        worth_moving: asked between chunks, after TRIED seconds: whether to stop and let other processes go on.

    Returns:
        whether all are computed.
    """
    began = time.monotonic()
    while not schedule.done:
        for work in schedule.pending(CHUNK_TRIALS):
            left = work.trials
            while left:
                table, stopped = runner(Chunk(work.condition, left))
                left = left[len(table) :]
                if len(table):
                    finished(table)
                if stopped is not None:
                    raise stopped
                if time.monotonic() - began > TRIED and worth_moving():
                    schedule.take_back(Chunk(work.condition, left))
                    return False
    return True


def run_there(
    schedule: Schedule, order: Order, executor: Executor, finished: Finished, *, workers: int | None = None
) -> None:
    """Computes trials by an executor; its processes see the order's folder.

    Args:
        schedule: of the campaign.
        order: what is to be computed.
        executor: of `concurrent.futures`, or one that behaves so.
        finished: is given every chunk as it comes.
        workers: how many the executor has; None: it is asked, else 4 are assumed.
    """
    workers = workers or getattr(executor, "_max_workers", None) or 4
    running: dict[Future, Chunk] = {}
    chunks = schedule.pending(1)
    began = time.monotonic()
    try:
        while True:
            while len(running) < 2 * workers:
                work = next(chunks, None)
                if work is None:
                    size = _size(schedule, time.monotonic() - began)
                    chunks = schedule.pending(size)
                    work = next(chunks, None)
                if work is None:
                    break
                running[executor.submit(run_chunk, order, work)] = work
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                work = running.pop(future)
                try:
                    finished(future.result())
                except BaseException:
                    schedule.take_back(work)
                    raise
            chunks = schedule.pending(_size(schedule, time.monotonic() - began))
    except BaseException:
        _drain(running, schedule, finished)
        raise


def _size(schedule: Schedule, elapsed: float) -> int:
    """Trials of a chunk: few at first, then some CHUNK_SECONDS of work."""
    seconds = schedule.seconds_per_trial()
    if seconds is None or elapsed < CHUNK_SECONDS:
        return 8
    return max(1, min(CHUNK_TRIALS, int(CHUNK_SECONDS / max(seconds, 1e-6))))


def _drain(running: dict[Future, Chunk], schedule: Schedule, finished: Finished) -> None:
    """Keeps what is finished of what was given out, and gives the rest back."""
    for future, work in running.items():
        if future.cancel():
            schedule.take_back(work)
            continue
        try:
            finished(future.result(timeout=0))
        except (Exception, CancelledError):  # not finished, or gone with its worker
            schedule.take_back(work)


def run_in_processes(schedule: Schedule, order: Order, workers: int, finished: Finished) -> None:
    """Computes trials in fresh processes of one thread each. Processes that die are replaced.

    Raises:
        WorkersDied: they died RETRIES times.
    """
    for _ in range(RETRIES):
        with pool(workers) as executor:
            try:
                run_there(schedule, order, executor, finished, workers=workers)
                return
            except BrokenProcessPool as error:
                died = error
    raise WorkersDied(
        f"worker processes died {RETRIES} times (killed, or out of memory?); all finished trials are stored, and run() goes "
        "on from there: workers=1 computes in this process"
    ) from died
