"""The measuring itself: rows, limits, memory. Nothing here depends on how fast this machine is."""

import math

import numpy as np
import pytest
import torch

from drsrobust.study import injection_speed as worker
from drsrobust.study.injection_speed import COLUMNS
from drsrobust.study.injectors import METHODS, Sparse
from drsrobust.timing import peak, resident

SIZE = 30_000


def run(method="drsrobust", rates=(1e-3, 1e-5), **given):
    return list(worker.measure(method, [(SIZE, "float32", rates)], **{"seed": 0, "limit": math.inf} | given))


def test_rows():
    rows = run()
    assert [set(row) for row in rows] == [set(COLUMNS)] * 2
    assert [row["rate"] for row in rows] == [1e-5, 1e-3] and rows[1]["errors"] > rows[0]["errors"] > 0
    for row in rows:
        assert row["cpu_ms"] > 0 and row["undo_cpu_ms"] > 0 and row["peak_mib"] >= 0 and row["note"] == ""


def test_what_has_no_undo_is_put_back_between_calls():
    rows = run("dense error map")
    assert all(row["undo_cpu_ms"] is None and row["note"] == "no undo: the model is loaded again" for row in rows)
    alone = run("dense error map", rates=[1e-3])
    assert alone[0]["errors"] == rows[1]["errors"]


def test_after_an_injection_over_the_limit_there_is_no_other(monkeypatch):
    """Neither at higher rates nor, at these, on larger models; at lower ones only where the smaller model had such."""
    models = [
        (n * SIZE, "float32", rates) for n, rates in ((1, [1e-5, 1e-3, 1e-2]), (2, [1e-6, 1e-4]), (4, [1e-6, 1e-3]))
    ]

    def ran(slow_from):
        def cpu_seconds(call):  # a clock of its own: an injection takes 9 seconds from a rate on
            rate, *_ = getattr(call, "args", (0,))
            return call(), 9.0 if rate >= slow_from else 0.2

        monkeypatch.setattr(worker, "cpu_seconds", cpu_seconds)
        rows = list(worker.measure("drsrobust", models, seed=0, limit=5))
        return rows, [row["cpu_ms"] is not None for row in rows]

    rows, which = ran(1e-3)
    assert which == [True, True, False, True, True, True, False]
    assert rows[0]["cpu_ms"] == 200 and rows[1]["cpu_ms"] == 9000
    assert rows[2]["errors"] is rows[2]["peak_mib"] is rows[2]["undo_cpu_ms"] is None
    assert rows[2]["note"] == "not run: one injection took 9 s at 30,000 parameters, rate 0.001; limit 5 s"
    assert rows[6]["note"] == rows[2]["note"]
    assert ran(1e-6)[1] == [True, False, False, False, False, False, False]


def test_what_a_method_cannot_hit():
    models = [(SIZE, "int8", [1e-3]), (SIZE, "float32", [1e-3])]
    rows = list(worker.measure("dense error map", models, seed=0, limit=60))
    assert rows[0]["note"] == "not run: it hits float32 only" and rows[1]["cpu_ms"] > 0


class Broken(Sparse):
    error = MemoryError()

    def inject(self, rate, seed):
        super().inject(rate, seed)
        if rate in (2e-3, 3e-3):  # not where it is tried on a tiny model
            raise self.error
        return self.model


def test_memory_that_does_not_suffice_is_told(monkeypatch):
    monkeypatch.setitem(METHODS, "broken", Broken)
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        monkeypatch.setattr(Broken, "error", error)
        rows = run("broken", rates=[1e-3, 2e-3, 3e-3])
        assert rows[0]["cpu_ms"] > 0
        assert [row["note"] for row in rows[1:]] == ["not run: too little memory at 30,000 parameters, rate 0.002"] * 2


def test_a_model_that_does_not_fit_is_told(monkeypatch):
    def model(parameters, *_, **__):
        raise MemoryError

    monkeypatch.setattr(worker, "study_model", model)
    assert [row["note"] for row in run()] == ["not run: too little memory at 30,000 parameters, rate 1e-05"] * 2


def test_errors_of_ours_are_errors_and_those_of_published_tools_are_told(monkeypatch):
    monkeypatch.setitem(METHODS, "broken", Broken)
    monkeypatch.setattr(Broken, "error", ValueError("Invalid error rate"))
    with pytest.raises(ValueError, match="Invalid error rate"):
        run("broken", rates=[2e-3])
    monkeypatch.setattr(Broken, "needs", "json")
    rows = run("broken", rates=[1e-3, 2e-3, 4e-3])  # and its errors do not stay
    assert (
        rows[0]["cpu_ms"] > 0 and rows[1]["note"] == "not run: ValueError: Invalid error rate" and rows[2]["cpu_ms"] > 0
    )


def test_errors_that_undo_leaves_are_found(monkeypatch):
    monkeypatch.setattr(METHODS["drsrobust"], "undo", lambda self: None)
    with pytest.raises(AssertionError, match="drsrobust at rate 0.001: .* wrong bits after undo"):
        run(rates=[1e-3])


def test_memory_of_a_second_model_is_seen_too():
    """A dense map takes over 300 bytes for each parameter of the largest tensor, whatever model was there before."""
    models = [(n, "float32", [1e-3]) for n in (1_000_000, 950_000)]  # largest tensors: 188,000 parameters, and less
    first, second = worker.measure("dense error map", models, seed=0, limit=math.inf)
    for row in (first, second):
        # How many temporaries of 32 values lie there at once is the allocator's affair: 600 to 1,000 bytes were seen.
        assert 188_000 * 300 / 2**20 < row["peak_mib"] < 188_000 * 2000 / 2**20


def test_threads_are_what_they_were():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    run(rates=[1e-3])
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.parametrize("block", [1 << 14, 1 << 20, 1 << 26])
def test_memory_is_seen_although_it_was_used_and_freed_before(block):
    """Small blocks come from freed ones of the heap, large ones from the system: both count."""

    def take():
        return [np.ones(block, np.uint8) for _ in range((1 << 26) // block)]

    for _ in range(2):
        before = resident()
        kept, high = peak(take)
        del kept
        assert 62 < (high - before) / 1024 < 72
