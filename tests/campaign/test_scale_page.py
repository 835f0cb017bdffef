"""docs/scale.md as written, and the examples that it names."""

import contextlib
import importlib
import importlib.util
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
import pyarrow.parquet as pq
import pytest

import drsrobust as dr
from drsrobust._processes import process_context
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


@pytest.mark.long
def test_python_runs(capsys, run_page):
    names = run_page("scale.md", blocks=5)
    printed = capsys.readouterr().out
    assert "4 trials of the last shard, 12 in all" in printed and "\nTrue\n" in printed and "in 4 blocks>" in printed
    assert names["table"]["nan_rows"].eq(0).all()


def test_examples_are_short_and_named_by_the_page():
    page = (ROOT / "docs" / "scale.md").read_text()
    examples = sorted((ROOT / "examples").iterdir())
    assert {path.name for path in examples} == set(re.findall(r"\]\(\.\./examples/([\w.]+)\)", page))
    lines = {path.name: len(path.read_text().splitlines()) for path in examples if path.suffix == ".py"}
    assert lines.pop("sharded.py") < 60 and all(number <= 20 for number in lines.values())


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder with files of campaigns, and the table that one process makes."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "parts.py").write_text(PARTS)
    for name in ("one", "dask", "mpi", "ray"):
        (folder / f"{name}.toml").write_text(STUDY.replace("STORE", name))
    return folder, dr.read_campaign(folder / "one.toml").run(workers=1, progress=False)


def command(*arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(list(map(str, arguments)), env=environment, capture_output=True, text=True, timeout=300)


def check(study, name):
    folder, expected = study
    campaign = dr.read_campaign(folder / f"{name}.toml")
    pd.testing.assert_frame_equal(campaign.table(), expected, check_exact=True)
    return campaign.timings()


def dask_command(name, *arguments):
    """In a process of its own: what `dask scheduler` and `dask worker` run."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    importlib.import_module(f"distributed.cli.{name}").main(arguments)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.long
def test_a_dask_cluster_whose_worker_is_killed(study, warm_python):
    """Scheduler and four workers are processes of their own; all compute, and the table is that of one process."""
    pytest.importorskip("distributed", reason="pip install drsrobust[cluster]")
    address = f"127.0.0.1:{free_port()}"
    commands = [["dask_scheduler", "--host", address, "--no-dashboard"]]
    commands += [["dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]] * 4
    forks = process_context()  # new interpreters would import PyTorch again, on too few cores
    processes = [forks.Process(target=dask_command, args=command, daemon=True) for command in commands]
    for process in processes:
        process.start()
    folder = study[0] / "dask"

    def kill():
        worker = f":{processes[1].pid}"
        chunks: set[Path] = set()  # that other workers computed
        while not any(worker in pq.read_table(path, columns=["worker"])["worker"][0].as_py() for path in new(chunks)):
            time.sleep(0.02)
        processes[1].kill()

    def new(chunks):
        there = set(folder.glob("*.parquet")) - chunks
        chunks |= there
        return there

    assassin = threading.Thread(target=kill, daemon=True)
    assassin.start()
    try:
        done = warm_python.run(ROOT / "examples" / "dask_client.py", study[0] / "dask.toml", address)
        assert done.returncode == 0, done.stderr
    finally:
        for process in processes[2:] + processes[:1]:
            process.kill()
            process.join()
    assassin.join(timeout=10)
    assert processes[1].exitcode == -signal.SIGKILL and "300 trials" in done.stdout
    assert check(study, "dask")["worker"].nunique() == 4


def sharded_example(rank, port, folder):
    """In a process of its own: what the launcher that the page names runs as a rank of two."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.chdir(folder)
    with open(f"rank-{rank}.txt", "w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(str(ROOT / "examples" / "sharded.py"), run_name="__main__")


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


@pytest.mark.long
def test_mpi(study):
    pytest.importorskip("mpi4py", reason="pip install mpi4py mpich")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.is_file():
        pytest.skip("there is no mpiexec in this environment: pip install mpich")
    example = ROOT / "examples" / "mpi.py"
    done = command(mpiexec, "-n", 3, sys.executable, "-m", "mpi4py.futures", example, study[0] / "mpi.toml")
    assert done.returncode == 0 and "300 trials" in done.stdout, done.stderr
    assert check(study, "mpi")["worker"].nunique() == 2


@pytest.mark.long
def test_ray(study):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("pip install ray")
    done = command(sys.executable, ROOT / "examples" / "ray_tasks.py", study[0] / "ray.toml", 2)
    assert done.returncode == 0 and "300 trials" in done.stdout, done.stderr
    check(study, "ray")
