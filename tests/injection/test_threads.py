"""Maps in models of several threads."""

import sys
import threading

import pytest
import torch
from torch import nn

from drsrobust.injection import BitFlip, FixedCount, inject, restore
from drsrobust.injection.apply import applied_maps
from drsrobust.injection.words import WordView


def test_a_map_is_seen_while_other_threads_put_theirs_in_and_out():
    mine, other = nn.Linear(4, 4), nn.Linear(4, 4)
    interval, done = sys.getswitchinterval(), threading.Event()

    def busy():
        while not done.is_set():
            with inject(other, FixedCount(1), seed=1):
                pass

    thread = threading.Thread(target=busy)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for seed in range(60):  # so that mine comes now before, now after the other thread's
            with inject(mine, FixedCount(1), seed=seed) as error_map:
                assert all(applied_maps(mine) == (error_map,) for _ in range(20))
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_a_model_takes_the_errors_of_one_thread_at_a_time():
    model = nn.Linear(4, 4)
    before, refused = model.weight.detach().clone(), []

    def other():
        says = "another thread has errors in this model"
        with pytest.raises(RuntimeError, match=says), inject(nn.Sequential(model), FixedCount(1), seed=2):
            pass
        refused.append(True)

    with inject(model, FixedCount(1), seed=1):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert refused and torch.equal(model.weight, before)


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


def test_threads_that_share_a_model_leave_it_as_it_was():
    """Reading, noting and writing words are one step: whoever is refused changes nothing."""
    model = nn.Linear(64, 64)
    before, interval = model.weight.detach().clone(), sys.getswitchinterval()

    def work(seed):
        for _ in range(50):
            try:
                with inject(model, BitFlip(0.01), seed=seed):
                    pass
            except RuntimeError as error:
                assert "another thread has errors in this model" in str(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert restore(model) == 0 and torch.equal(model.weight, before)
