"""Real SIGINTs at random moments, in a process of their own."""

import os
import random
import signal
import time
import traceback
from multiprocessing import Pipe

import torch
from torch import nn

from drsrobust.injection import BitFlip, applied_maps, inject, restore
from tests import processes


def interrupted(answers):
    """Interrupted 1,000 times; the exception is dropped and held in turn, as a notebook holds the last one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored below a shell's background job
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    before = [p.detach().view(torch.int32).clone() for p in model.parameters()]
    held, caught, seed = None, 0, 0
    while True:
        try:
            answers.send(caught)  # the parent waits for it, so an interrupt comes in this `try` and nowhere else
            while caught < 1000:
                seed += 1
                with inject(model, BitFlip(0.02), seed=seed):
                    pass
            break
        except KeyboardInterrupt as error:
            caught += 1
            held = error if caught % 2 else None
            if held is None:
                error.__traceback__ = None  # its frames keep the block's generator alive, whose end undoes the errors
            if applied_maps(model):
                # The exception is kept, and it came while contextlib called the block's generator: no code of ours ran then.
                last = traceback.extract_tb(held.__traceback__)[-1]
                assert last.filename.endswith("contextlib.py") and last.name in ("__enter__", "__exit__"), last
            restore(model)
            for p, old in zip(model.parameters(), before, strict=True):
                assert torch.equal(p.detach().view(torch.int32), old), "a word is not what it was"


def test_a_thousand_interrupts(request):
    answers, end = Pipe(duplex=False)
    child = processes.start(interrupted, end)
    request.addfinalizer(child.kill)
    end.close()  # the child has its own: if that is closed, `poll` says so
    moments = random.Random(0)
    assert answers.recv() == 0
    for caught in range(1, 1001):
        time.sleep(moments.uniform(0.0, 0.002))
        for _ in range(4):
            # Python drops an interrupt that falls into the clean-up of a garbage-collected object: send it again.
            os.kill(child.pid, signal.SIGINT)
            if answers.poll(5):
                break
        assert answers.poll() and answers.recv() == caught, (
            "an interrupt was not answered, or the child failed: see stderr"
        )
    child.join(60)
    assert child.exitcode == 0
