"""The same table from one process, from several, from threads and from Dask; and from workers that are killed."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
from torch import nn

from drsrobust._processes import pool
from drsrobust.campaign import Campaign, NotPicklable, WorkersDied
from drsrobust.campaign import workers as running
from drsrobust.campaign.progress import CampaignProgress
from drsrobust.evaluation import Evaluator
from drsrobust.injection import BitFlip, Inputs, Rows, SingleBit

GRID = {
    "errors": [BitFlip(1e-6), BitFlip(1e-3), SingleBit(30)],
    "targets": ["all", "embedding", "over_mlp", Inputs("dense")],
    "metrics": ["calibration", "ndcg", "decision_changed"],
    "trials": 12,
}


def campaign(evaluator, folder, **options):
    grid = GRID | {"targets": [*GRID["targets"], Rows.hot("user", evaluator.rows, 0.05)]}
    return Campaign(evaluator, store=folder, **(grid | options))


@pytest.fixture(scope="module")
def alone(trained, data, tmp_path_factory):
    runner = campaign(Evaluator(trained, data.test), tmp_path_factory.mktemp("alone") / "one")
    runner.run(progress=False, workers=1)
    return runner


def same(table, expected):
    pd.testing.assert_frame_equal(table, expected, check_exact=True)


def test_processes(evaluator, alone, tmp_path):
    """Two processes, after some trials were computed in this one."""
    campaign(evaluator, tmp_path / "s", trials=5).run(progress=False, workers=1)
    runner = campaign(evaluator, tmp_path / "s")
    same(runner.run(progress=False, workers=2), alone.table())
    assert not list(tmp_path.glob("s.workers*"))
    errors = runner.errors()
    same(errors, alone.errors())
    assert errors.groupby(["error_model", "rate", "target", "trial"], dropna=False)["count"].sum().max() > 1


def test_threads(evaluator, alone, tmp_path):
    """Each thread has a model of its own."""
    with ThreadPoolExecutor(2) as executor:
        same(campaign(evaluator, tmp_path / "s").run(progress=False, executor=executor), alone.table())


def test_a_killed_process_is_replaced(evaluator, alone, tmp_path):
    """All workers are killed as soon as a first chunk is there."""
    killed = []

    def kill():
        while not list((tmp_path / "s").glob("*.parquet")):
            time.sleep(0.02)
        for child in multiprocessing.active_children():
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)

    assassin = threading.Thread(target=kill)
    assassin.start()
    same(campaign(evaluator, tmp_path / "s").run(progress=False, workers=2), alone.table())
    assassin.join()
    assert killed


class RefusingOnce(ThreadPoolExecutor):
    """Its second `submit` finds the pool broken, as after the death of a worker between two calls."""

    calls = 0

    def submit(self, *args):
        self.calls += 1
        if self.calls == 2:
            raise BrokenProcessPool("a process was terminated abruptly")
        return super().submit(*args)


@pytest.mark.long
def test_a_chunk_that_a_broken_pool_refuses_is_not_lost(evaluator, alone, tmp_path, monkeypatch):
    pools = [RefusingOnce(2), ThreadPoolExecutor(2)]
    monkeypatch.setattr(running, "pool", lambda workers: pools.pop(0))
    same(campaign(evaluator, tmp_path / "s").run(progress=False, workers=2), alone.table())
    assert not pools


def test_workers_that_always_die(evaluator, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "run_chunk", _die)
    monkeypatch.setattr(running, "RETRIES", 1)
    with pytest.raises(WorkersDied, match=r"worker processes died 1 times .* run\(\) goes on from there"):
        campaign(evaluator, tmp_path / "s").run(progress=False, workers=2)


def _die(order, work):
    os._exit(1)


def test_workers_that_return_nothing_for_long_are_named(evaluator, alone, tmp_path, monkeypatch):
    """Nothing is ended: the table is whole."""
    for name, value in {"SILENT_SECONDS": 0.3, "ASK_SECONDS": 0.02, "run_chunk": _late}.items():
        monkeypatch.setattr(running, name, value)
    with ThreadPoolExecutor(1) as executor, pytest.warns(UserWarning, match=r"for: trials \d to \d+ of \w+\(.* in "):
        same(campaign(evaluator, tmp_path / "s").run(progress=False, executor=executor), alone.table())


def _late(order, work, real=running.run_chunk):
    if (work.condition, work.trials[0]) == (0, 0):
        time.sleep(0.5)
    return real(order, work)


def test_how_many_workers_an_executor_has():
    nthreads = {"tcp://a": 2, "tcp://b": 1}
    dask = SimpleNamespace(_client=SimpleNamespace(nthreads=lambda: nthreads))
    assert running._workers_of(dask) == 3
    nthreads.clear()
    assert running._workers_of(dask) == 1  # until a worker comes
    assert running._workers_of(ThreadPoolExecutor(7)) == 7
    assert running._workers_of(SimpleNamespace(num_workers=5)) == 5  # MPI


class Tower(nn.Module):
    """A user's own model, in a module that workers can import."""

    def __init__(self, features, width=8):
        super().__init__()
        self.hidden, self.top = nn.Linear(features, width), nn.Linear(width, 1)

    def forward(self, dense_features, sparse_features):
        return self.top(self.hidden(dense_features).relu())


class Unpicklable(Tower):
    """It holds what no other process can have."""

    def __init__(self, features):
        super().__init__(features)
        self.lock = threading.Lock()


def test_a_foreign_model(data, tmp_path):
    n = len(data.schema.dense)
    model, locked = Tower(n), Unpicklable(n)
    locked.load_state_dict(model.state_dict())

    def run(model, store, factory=None, **how):
        evaluator = Evaluator(model, data.test, factory=factory)
        grid = {"errors": [BitFlip(1e-3)], "targets": ["all", "top"], "trials": 6}
        return Campaign(evaluator, store=tmp_path / store, **grid).run(progress=False, **how)

    with pytest.raises(NotPicklable, match=r"workers cannot make this Unpicklable \(.*lock.*\); pass a function that"):
        run(locked, "s", workers=2)
    factory = partial(Unpicklable, n)
    with pool(1) as executor:
        same(run(model, "two", executor=executor), run(model, "one", workers=1))
        same(run(locked, "s", factory, executor=executor), run(locked, "three", factory, workers=1))
    for factory, said in (
        (partial(Tower, n, width=4), "the factory made another model: hidden.* should be"),
        (partial(nn.Linear, 3, 3), "the factory made another model: tensors .* are not in both"),
    ):
        with pytest.raises(RuntimeError, match=said), ThreadPoolExecutor(1) as executor:
            run(model, "t", factory, executor=executor)


@pytest.fixture
def hurried(monkeypatch):
    """As if a minute of work were left after a moment."""
    monkeypatch.setattr("drsrobust.campaign.stored_trials.MIN_SECONDS_FOR_PROCESSES", 0.0)
    monkeypatch.setattr("drsrobust.campaign.trial.TRIED", 0.05)
    monkeypatch.setattr("drsrobust.campaign.schedule.SHORTEST_CHUNK", 0.02)
    monkeypatch.setattr("drsrobust.campaign.stored_trials.cores", lambda: 2)


@pytest.mark.long
def test_long_campaigns_move_to_processes(evaluator, alone, tmp_path, monkeypatch, hurried):
    """The rest is computed by as many processes as there are cores."""
    moved, real = [], running.run_in_processes

    def noted(schedule, order, workers, *others):
        moved.append((workers, schedule.computed))
        real(schedule, order, workers, *others)

    monkeypatch.setattr("drsrobust.campaign.stored_trials.run_in_processes", noted)
    same(campaign(evaluator, tmp_path / "s").run(progress=False), alone.table())
    assert len(moved) == 1 and moved[0][0] == 2 and 0 < moved[0][1] < len(alone.table())


def test_a_model_that_cannot_move_stays_and_says_so(data, tmp_path, monkeypatch, hurried):
    evaluator = Evaluator(Unpicklable(len(data.schema.dense)), data.test)
    monkeypatch.setattr("drsrobust.campaign.trial.TRIED", 0.0)
    with pytest.warns(UserWarning, match="in this process alone: workers cannot make this Unpicklable"):
        table = Campaign(evaluator, errors=[SingleBit(30)], trials=5, store=tmp_path / "s").run(progress=False)
    assert len(table) == 5


@pytest.mark.long
def test_an_interrupt_keeps_what_is_finished(evaluator, alone, tmp_path, monkeypatch):
    """Ctrl-C while workers compute: chunks that came are stored, no process is left, the next run goes on."""
    updates = iter(range(1000))

    def interrupt(self):
        if next(updates) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(CampaignProgress, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        campaign(evaluator, tmp_path / "s").run(progress=True, workers=2)
    assert not multiprocessing.active_children() and not list(tmp_path.glob("s.workers*"))
    monkeypatch.undo()
    there = len(campaign(evaluator, tmp_path / "s").table())
    assert 0 < there < len(alone.table())
    same(campaign(evaluator, tmp_path / "s").run(progress=False, workers=1), alone.table())
