"""Maps in models of several threads."""

import sys
import threading

import pytest
import torch
from torch import nn

from drsrobust.injection import BitFlip, FixedCount, inject, restore
from drsrobust.injection.apply import applied_maps
from drsrobust.injection.words import WordView


@pytest.fixture
def eager():
    """Python changes between threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_a_map_is_seen_while_other_threads_put_theirs_in_and_out(eager):
    mine, other = nn.Linear(4, 4), nn.Linear(4, 4)
    done = threading.Event()

    def busy():
        while not done.is_set():
            with inject(other, FixedCount(1), seed=1):
                pass

    thread = threading.Thread(target=busy)
    try:
        thread.start()
        for seed in range(60):  # so that mine comes now before, now after the other thread's
            with inject(mine, FixedCount(1), seed=seed) as error_map:
                assert all(applied_maps(mine) == (error_map,) for _ in range(20))
    finally:
        done.set()
        thread.join()


def test_applying_is_one_step_among_threads(monkeypatch):
    """A second thread tries to apply a map between the reading and the writing of the first."""
    model = nn.Linear(4, 4)
    before, write, reached, result = model.weight.detach().clone(), WordView.write, [], []

    def second():
        try:
            with inject(model, FixedCount(3), "weight", seed=2):
                result.append("applied")
        except RuntimeError as error:
            result.append(str(error))

    thread = threading.Thread(target=second)

    def paused(words, index, values):
        reached.append(threading.current_thread())
        if len(reached) == 1:  # the first thread is about to write
            thread.start()
            thread.join(0.2)  # a lock keeps the second one waiting, so this is how long the test takes
            assert reached == [threading.main_thread()]
        write(words, index, values)

    monkeypatch.setattr(WordView, "write", paused)
    with inject(model, FixedCount(3), "weight", seed=1):
        thread.join()
    assert len(result) == 1 and "another thread has errors in this model" in result[0]
    assert restore(model) == 0 and torch.equal(model.weight, before)


def test_threads_that_share_a_model_leave_it_as_it_was(eager):
    """Reading, noting and writing words are one step: whoever is refused changes nothing."""
    model = nn.Linear(64, 64)
    before = model.weight.detach().clone()

    def work(seed):
        for _ in range(50):
            try:
                with inject(model, BitFlip(0.01), seed=seed):
                    pass
            except RuntimeError as error:
                assert "another thread has errors in this model" in str(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert restore(model) == 0 and torch.equal(model.weight, before)
