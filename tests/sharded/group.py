"""Ranks of a process group as forked processes, which begin in 0.1 s; a launcher's import the packages for 15 s."""

import os
import pickle
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.processes import start

TIMEOUT = timedelta(seconds=8)


def run_ranks(world, function, *arguments, folder, timeout=90, hanging=()):
    """Calls function(*arguments) on every rank; returns what each returned, or the text of what it raised, and its exit code.
    Ranks that hang, as they should, are killed when the others have ended, as a launcher does."""
    files = [Path(folder) / f"rank-{rank}-of-{world}" for rank in range(world)]
    meeting = (Path(folder) / f"meeting-{world}-{os.urandom(4).hex()}").as_uri()
    ranks = [start(_rank, rank, world, meeting, str(files[rank]), function, arguments) for rank in range(world)]
    for number, rank in enumerate(ranks):
        if number not in hanging:
            rank.join(timeout)
    for number in hanging:
        ranks[number].kill()
        ranks[number].join()
    if stuck := [number for number, rank in enumerate(ranks) if rank.exitcode is None]:
        for rank in ranks:
            rank.kill()
        pytest.fail(f"ranks {stuck} were still running after {timeout} s")
    results = [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]
    return results, [rank.exitcode for rank in ranks]


def _rank(rank, world, meeting, file, function, arguments):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=TIMEOUT)
    try:
        result = function(*arguments)
    except Exception:
        Path(file).write_bytes(pickle.dumps(traceback.format_exc()))
        os._exit(1)  # as a process that raises ends, without waiting for the group
    Path(file).write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
