"""The examples that docs/scale.md names."""

import contextlib
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

import drsrobust as dr
from tests.conftest import ROOT
from tests.processes import start

STUDY = """
[model]
make = "parts:model"

[rows]
dataset = "synthetic-movielens/ids"

[campaign]
errors = [{ kind = "BitFlip", ber = [1e-5, 1e-3] }]
targets = ["all", "embedding"]
trials = 75
store = "STORE"
"""


# A model that is trained for a short time on the rows of the study.
PARTS = """
import drsrobust as dr

def model():
    data, short = dr.load_dataset("synthetic-movielens/ids"), dr.training.Settings(epochs=1, batch_size=4096)
    return dr.load_model("fm", data, settings=short, progress=False)
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder with files of campaigns, and the table that one process makes."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "parts.py").write_text(PARTS)
    for name in ("one", "dask", "mpi", "ray"):
        (folder / f"{name}.toml").write_text(STUDY.replace("STORE", name))
    return folder, dr.read_campaign(folder / "one.toml").run(workers=1, progress=False)


def check(study, name):
    folder, expected = study
    campaign = dr.read_campaign(folder / f"{name}.toml")
    pd.testing.assert_frame_equal(campaign.table(), expected, check_exact=True)
    return campaign.timings()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.long
def test_a_dask_cluster_whose_worker_is_killed(study, warm_python):
    """The example's workers are processes of their own, and the table is that of one process."""
    dask = pytest.importorskip("dask")
    # Read at the import: workers are forked from the process that has imported PyTorch for the other tests.
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    distributed = pytest.importorskip("distributed", reason="pip install drsrobust[cluster]")
    dask.config.set({"distributed.admin.tick.limit": "60s", "distributed.worker.memory.terminate": False})
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**local) as cluster, distributed.Client(cluster) as client:
        killed = next(iter(client.run(os.getpid).values()))

        def kill():
            while not list((study[0] / "dask").glob("*.parquet")):
                time.sleep(0.02)
            os.kill(killed, signal.SIGKILL)

        assassin = threading.Thread(target=kill, daemon=True)
        assassin.start()
        done = warm_python.run(ROOT / "examples" / "dask_client.py", study[0] / "dask.toml", cluster.scheduler_address)
        assert done.returncode == 0 and "300 trials" in done.stdout, done.stderr
        assassin.join(timeout=10)
        assert killed not in client.run(os.getpid).values()
    assert check(study, "dask")["worker"].nunique() >= 2


def sharded_example(rank, port, folder):
    """In a process of its own: what the launcher that the page names runs as a rank of two."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.chdir(folder)
    with open(f"rank-{rank}.txt", "w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(str(ROOT / "examples" / "sharded.py"), run_name="__main__")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "module", "before", "after"),
    [
        ("mpi", "mpi4py", ["mpiexec", "-n3", "python", "-mmpi4py.futures", "mpi.py"], []),
        ("ray", "ray", ["python", "ray_tasks.py"], ["2"]),
    ],
)
def test_other_launchers(study, name, module, before, after):
    pytest.importorskip(module)
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PATH": os.pathsep.join(paths)}
    run = {"env": environment, "cwd": ROOT / "examples", "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([*before, study[0] / f"{name}.toml", *after], **run)
    assert done.returncode == 0 and "300 trials" in done.stdout, done.stderr
    check(study, name)


@pytest.mark.long
def test_a_sharded_model(tmp_path):
    """All ranks draw the unsharded model's map."""
    port = free_port()
    ranks = [start(sharded_example, rank, port, str(tmp_path)) for rank in range(2)]
    for rank in ranks:
        rank.join(timeout=300)
    assert [rank.exitcode for rank in ranks] == [0, 0] and (tmp_path / "rank-1.txt").read_text() == ""
    printed = (tmp_path / "rank-0.txt").read_text()
    words, table = re.search(r"(\d+) words are wrong: AUC [\d.]+ of [\d.]+\n([\s\S]*)", printed).groups()
    data = dr.load_dataset("synthetic-movielens/full", rows=6_000)
    model = dr.load_model("dlrm", data, progress=False)
    with dr.inject(model, dr.BitFlip(1e-4), "embedding", seed=7) as error_map:
        assert len(error_map) == int(words)
    assert re.findall(r"^(Rank\(1\)|all)\s+30 ", table, re.MULTILINE) == ["Rank(1)", "all"]
