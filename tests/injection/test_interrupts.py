"""Real SIGINTs at random moments, in a process of their own."""

import os
import random
import select
import signal
import subprocess
import sys
import time

import pytest

# Interrupted 1,000 times; the exception is dropped and held in turn, as a notebook holds the last one.
CHILD = """
import signal
import traceback
import torch
from torch import nn
from drsrobust.injection import BitFlip, applied_maps, inject, restore

signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored below a shell's background job
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
before = [p.detach().view(torch.int32).clone() for p in model.parameters()]
held, caught, seed = None, 0, 0
while True:
    try:
        print(caught, flush=True)  # the parent waits for this line, so an interrupt comes in this `try` and nowhere else
        while caught < 1000:
            seed += 1
            with inject(model, BitFlip(0.02), seed=seed):
                pass
        break
    except KeyboardInterrupt as error:
        caught += 1
        held = error if caught % 2 else None
        if held is None:
            error.__traceback__ = None  # its frames keep the generator of the block alive, whose end undoes the errors
        if applied_maps(model):
            # The exception is kept, and it came while contextlib called the block's generator: no code of ours ran then.
            last = traceback.extract_tb(held.__traceback__)[-1]
            assert last.filename.endswith("contextlib.py") and last.name in ("__enter__", "__exit__"), last
        restore(model)
        for p, old in zip(model.parameters(), before):
            assert torch.equal(p.detach().view(torch.int32), old), "a word is not what it was"
"""


def test_a_thousand_interrupts(start):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = start([sys.executable, "-c", CHILD], env=environment, **pipes)
    moments = random.Random(0)
    assert child.stdout.readline() == "0\n"
    for caught in range(1, 1001):
        time.sleep(moments.uniform(0.0, 0.002))
        for _ in range(4):
            # Python drops an interrupt that falls into the clean-up of a garbage-collected object: send it again.
            child.send_signal(signal.SIGINT)
            if select.select([child.stdout], [], [], 5)[0]:
                break
        else:
            pytest.fail("four interrupts were not answered")
        if child.stdout.readline() != f"{caught}\n":
            break
    errors = child.communicate(timeout=60)[1]
    assert child.returncode == 0 and caught == 1000, errors
