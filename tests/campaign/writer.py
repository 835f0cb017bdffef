"""Made-up trials, and a process that stores them without PyTorch: what the tests of the store kill, starve and read."""

import os
import time
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from drsrobust.campaign.store import Store
from drsrobust.campaign.table import BIT_COUNT, SCHEMA, chunk, stored_schema
from tests.processes import start

CONDITIONS, TRIALS = 4, 600


def store(folder, **definition):
    """The store that the tests are about; with a definition: another one."""
    return Store(Path(folder), {"what": "made up"} | definition, {"versions": {"made": "up"}}, stored_schema(["gauc"]))


def row(condition, trial):
    """Values that follow from the two numbers."""
    found = dict.fromkeys(SCHEMA.names)
    counts = [{"component": "c", "tensor": f"t{i}", "bit": i, "count": trial + 1} for i in range(trial % 3)]
    found |= {"model": "m", "trial": trial, "seed": 2**64 - 1 - trial, "outcome": "ok", "auc": 1 / (1 + trial)}
    found |= {
        "gauc": condition / (1 + trial),
        "error": "text" if trial % 7 == 0 else None,
        "seconds": 0.5,
        "worker": "a:1",
    }
    return found | {"errors": pa.array(counts, BIT_COUNT)}


def trials(condition, numbers):
    return chunk(condition, [row(condition, trial) for trial in numbers], stored_schema(["gauc"]))


def killed(run, *arguments, when, pause):
    """A process that calls a function, and is killed a while after something has come true; its exit code."""
    child, end = start(run, *arguments), time.monotonic() + 60
    while child.is_alive() and not when() and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(pause)
    child.kill()
    child.join()
    return child.exitcode


def write_all(folder, seed, say, sync_seconds=0):
    """Writes what is missing, in chunks of random sizes with gaps between their trials, and says so after each.

    `sync_seconds` are added to each `os.fsync`, as on a slow disk, so that a kill mostly falls into a write.
    """
    random, fsync = Random(seed), os.fsync
    os.fsync = lambda handle: (time.sleep(sync_seconds), fsync(handle))
    say({})
    here = store(folder)
    with here.writing() as keys:
        for condition in range(CONDITIONS):
            missing = np.setdiff1d(np.arange(TRIALS), keys[keys[:, 0] == condition, 1])
            while len(missing):
                taken = missing[: 2 * random.randint(1, 30) : random.choice((1, 2))]
                here.write(trials(condition, taken.tolist()))
                say({(condition, int(trial)) for trial in taken})
                missing = np.setdiff1d(missing, taken)
