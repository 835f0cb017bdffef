"""Ranks of a process group as forked processes, which begin in 0.1 s; a launcher's import the packages for 15 s."""

import os
import pickle
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.processes import start

TIMEOUT = timedelta(seconds=8)


def run_ranks(world, function, *arguments, folder, timeout=90, hanging=(), limit=TIMEOUT, per_host=None):
    """Calls function(*arguments) on every rank; returns what each returned, or the text of what it raised, and its exit code.
    Ranks that hang, as they should, are killed when the others have ended, as a launcher does. A collective of the group fails
    after `limit`; `per_host` ranks count as those of one host."""
    files = [Path(folder) / f"rank-{rank}-of-{world}" for rank in range(world)]
    meeting = (Path(folder) / f"meeting-{world}-{os.urandom(4).hex()}").as_uri()
    about = world, per_host or world, meeting, limit
    ranks = [start(_rank, rank, *about, str(files[rank]), function, arguments) for rank in range(world)]
    for number, rank in enumerate(ranks):
        if number not in hanging:
            rank.join(timeout)
    for number in hanging:
        ranks[number].kill()
        ranks[number].join()
    if stuck := [number for number, rank in enumerate(ranks) if rank.exitcode is None]:
        for rank in ranks:
            rank.kill()
        raise AssertionError(f"ranks {stuck} were still running after {timeout} s")
    results = [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]
    return results, [rank.exitcode for rank in ranks]


def _rank(rank, world, per_host, meeting, limit, file, function, arguments):
    local = {"LOCAL_WORLD_SIZE": str(per_host), "LOCAL_RANK": str(rank % per_host)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), **local}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=limit)
    try:
        result = function(*arguments)
    except Exception:
        Path(file).write_bytes(pickle.dumps(traceback.format_exc()))
        os._exit(1)  # as a process that raises ends, without waiting for the group
    Path(file).write_bytes(pickle.dumps(result))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
