"""A campaign of a million trials on a thousand workers that are simulated: what scheduler, store and merge cost.

The trials are stubs, whose time is simulated, as the workers are. Scheduler, store and merge are real, and their
time is measured: the process of an executor writes one chunk after the other.
"""

import heapq
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.common import Result, about, text
from drsrobust.campaign.merging import merge
from drsrobust.campaign.schedule import CHUNK_TRIALS, Chunk, Schedule, chunk_seconds, chunk_size
from drsrobust.campaign.shards import Shard, shard_folder
from drsrobust.campaign.store import Store
from drsrobust.campaign.table import BIT_COUNT, SCHEMA, chunk, stored_schema

COLUMNS = (
    *("way", "workers", "trials", "deaths", "busy_share", "minutes", "chunks", "merged_chunks"),
    *("scheduler_s", "writer_s", "merge_s", "open_s", "read_s", "read_at_start_mb"),
)
SECONDS = 1.0  # of a trial, mean
DEFINITION = {"format": 0, "what": "stub trials"}


class _Stub:
    """Made-up trials of one condition."""

    def __init__(self) -> None:
        errors = pa.array([{"component": "embedding", "tensor": "table", "bit": 30, "count": 1}], BIT_COUNT)
        row = dict.fromkeys(SCHEMA.names) | {"outcome": "ok", "auc": 0.8, "error": None, "seconds": SECONDS}
        row |= {"worker": "host:1", "errors": errors, "trial": 0, "seed": 1}
        self._rows = chunk(0, [row] * CHUNK_TRIALS, stored_schema())
        self._at = self._rows.schema.get_field_index("trial")
        self._random = np.random.default_rng(0)

    def seconds(self, n: int) -> float:
        """Simulated seconds of n trials, which vary by 30 %."""
        return float(self._random.normal(n * SECONDS, 0.3 * SECONDS * np.sqrt(n)))

    def table(self, work: Chunk) -> pa.Table:
        field = self._rows.schema.field(self._at)
        return self._rows.slice(0, len(work.trials)).set_column(self._at, field, pa.array(work.trials, pa.int64()))


class _Stopwatch:
    """Seconds by name."""

    def __init__(self) -> None:
        self.total: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.total[name] = self.total.get(name, 0.0) + time.perf_counter() - start


def executor(folder: Path, workers: int, trials: int, deaths: int) -> dict:
    """A campaign by an executor: one process hands out chunks, two for each worker, and writes them."""
    stub, watch = _Stub(), _Stopwatch()
    store, schedule = Store(folder / "s", DEFINITION, {}, stored_schema()), Schedule([[0]], trials)
    ends = dict(
        enumerate(np.random.default_rng(1).uniform(0, trials * SECONDS / workers, deaths))
    )  # worker -> when it dies
    idle, queue, ended, alive = list(range(workers)), deque(), [], workers
    clock = busy = 0.0  # of the process that hands out; of all workers
    with store.writing():
        while not schedule.done:
            start = time.perf_counter()
            with watch("scheduler"):
                while len(queue) + len(ended) < 2 * alive:
                    if (work := schedule.take(chunk_size(schedule, clock, alive))) is None:
                        break
                    queue.append(work)
            clock += time.perf_counter() - start
            while idle and queue:
                worker, work = idle.pop(), queue.popleft()
                end = clock + stub.seconds(len(work.trials))
                heapq.heappush(ended, (min(end, ends.get(worker, end)), worker, work))
            at, worker, work = heapq.heappop(ended)
            clock = max(clock, at)
            if ends.get(worker, np.inf) <= at:  # it has died, and its chunk goes to another worker
                alive -= 1
                queue.appendleft(work)
                continue
            busy += len(work.trials) * SECONDS
            idle.append(worker)
            start = time.perf_counter()
            with watch("writer"):
                store.write(table := stub.table(work))
            with watch("scheduler"):
                schedule.add(table)
            clock += time.perf_counter() - start
    row = {
        "way": "executor",
        "workers": workers,
        "trials": trials,
        "deaths": deaths,
        "busy_share": busy / clock / workers,
    }
    row |= {"minutes": clock / 60, "chunks": len(list(store.folder.glob("*.parquet")))}
    return row | _afterwards(store, watch)


def shards(folder: Path, workers: int, trials: int, deaths: int) -> dict:
    """A campaign in shards: each worker is a process of its own; one that dies is started again, and goes on."""
    stub, watch, minutes, busy = _Stub(), _Stopwatch(), [], 0.0
    when = dict(enumerate(np.random.default_rng(1).uniform(0, trials * SECONDS / workers, deaths)))
    stores = {}
    for index in range(workers):
        shard = Shard(index, workers)
        record = {**shard._asdict(), "pilots": [0]}
        stores[shard] = Store(shard_folder(folder / "s", shard), DEFINITION, {}, stored_schema(), record)
        schedule, clock, began = Schedule([[0]], trials, shard), 0.0, 0.0
        with stores[shard].writing():
            while (work := schedule.take(CHUNK_TRIALS)) is not None:
                left = work.trials
                while left:
                    start = time.perf_counter()
                    n = max(1, min(len(left), int(chunk_seconds(clock - began) / SECONDS)))
                    clock += stub.seconds(n)
                    if index in when and clock > when[index]:  # the chunk is lost, and the age of the run begins again
                        del when[index]
                        began = clock
                        continue
                    with watch("writer"):
                        stores[shard].write(table := stub.table(Chunk(0, left[:n])))
                    with watch("scheduler"):
                        schedule.add(table)
                    busy, left = busy + n * SECONDS, left[n:]
                    clock += time.perf_counter() - start
        minutes.append(clock / 60)
    count = sum(len(list(store.folder.glob("*.parquet"))) for store in stores.values())
    whole = Store(folder / "s", DEFINITION, {}, stored_schema())
    with watch("merge"):
        merge(_campaign(whole, stores, trials))
    row = {"way": "shards", "workers": workers, "trials": trials, "deaths": deaths, "chunks": count}
    row |= {"busy_share": busy / 60 / max(minutes) / workers, "minutes": max(minutes)}
    return row | _afterwards(whole, watch)


def _campaign(whole: Store, stores: dict[Shard, Store], trials: int) -> SimpleNamespace:
    """What `merge` needs of a campaign."""

    def _schedule_of(table: pa.Table) -> Schedule:
        schedule = Schedule([[0]], trials)
        schedule.add(table)
        return schedule

    _of_shard = lambda shard, path: SimpleNamespace(store=stores[shard])  # noqa: E731
    condition = SimpleNamespace(error_model="stub", target="all")
    return SimpleNamespace(
        store=whole, _of_shard=_of_shard, _schedule_of=_schedule_of, conditions=[condition], table=whole.read
    )


def _afterwards(store: Store, watch: _Stopwatch) -> dict:
    """Opening and reading the finished store, which is compacted if it has too many chunks."""
    with watch("open"), store.writing():
        pass
    with watch("read"):
        store.read()
    chunks = list(store.folder.glob("*.parquet"))
    names = ("scheduler", "writer", "merge", "open", "read")
    seconds = {f"{name}_s": watch.total.get(name, 0.0) for name in names}
    size = sum(path.stat().st_size for path in chunks) / 1e6
    return seconds | {"merged_chunks": len(chunks), "read_at_start_mb": size}


def cluster(*, workers: int = 1000, trials: int = 1_000_000, dying: float = 0.01) -> pd.DataFrame:
    """Both ways, one row each (COLUMNS).

    Args:
        workers: that are simulated, of one thread each.
        trials: of one condition.
        dying: share of the workers that die at some time of the run.
    """
    rows = []
    for way in (executor, shards):
        folder = Path(tempfile.mkdtemp(prefix="cluster-"))
        try:
            rows.append(way(folder, workers, trials, round(dying * workers)))
        finally:
            shutil.rmtree(folder)
    return pd.DataFrame(rows)[list(COLUMNS)]


def run() -> Result:
    """The table, and how it was made."""
    table = cluster()
    note = "simulated: time of workers and trials (1 s each); measured: seconds of scheduler, writer and merge"
    return Result({"cluster": table}, f"{about()}\n{note}\n{text(table)}")
