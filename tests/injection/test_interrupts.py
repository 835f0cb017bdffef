"""Real SIGINTs at random moments, in a process of their own."""

import os
import random
import select
import signal
import subprocess
import sys
import time

# Interrupted 200 times; the exception is dropped and held in turn, as a notebook holds the last one.
CHILD = """
import signal, sys
import torch
from torch import nn
from drsrobust.injection import BitFlip, inject, restore

model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
before = [p.detach().view(torch.int32).clone() for p in model.parameters()]
held, caught, left = None, 0, 0
print("ready", flush=True)
seed = 0
while caught < 200:
    try:
        while True:
            seed += 1
            with inject(model, BitFlip(0.02), seed=seed):
                pass
    except KeyboardInterrupt as error:
        # Between here and the end of the checks no interrupt is sent: the parent waits for the line below.
        caught += 1
        held = error if caught % 2 else None
        left += restore(model)
    for p, old in zip(model.parameters(), before):
        assert torch.equal(p.detach().view(torch.int32), old), "a word is not what it was"
    print("restored", left, flush=True)
"""


def test_two_hundred_interrupts():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    moments = random.Random(0)
    assert child.stdout.readline() == "ready\n"
    for _ in range(200):
        time.sleep(moments.uniform(0.0, 0.004))
        child.send_signal(signal.SIGINT)
        # Python drops an interrupt that falls into the clean-up of a garbage-collected object: then it is sent again.
        while not select.select([child.stdout], [], [], 5)[0]:
            child.send_signal(signal.SIGINT)
        if not child.stdout.readline().startswith("restored"):
            break
    errors = child.communicate(timeout=60)[1]
    assert child.returncode == 0, errors
