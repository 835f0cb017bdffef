"""Models trained side by side are those that are trained one after another."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from drsrobust._locks import exclusive
from drsrobust.models import state_digest
from drsrobust.training import Settings, load_models
from drsrobust_extras.data.load import load_dataset

SCRIPT = """
import signal
import drsrobust as dr
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits SIG_IGN
    data = dr.load_dataset("synthetic-movielens", rows=20_000)
    settings = dr.training.Settings(epochs=1000, patience=1000, batch_size=64)
    dr.load_models([{"name": n, "data": data, "settings": settings} for n in ("fm", "dlrm")], workers=2)
"""


def requests(data):
    settings = Settings(epochs=1, batch_size=256)
    return [{"name": name, "data": data, "settings": settings} for name in ("wide_deep", "dlrm", "wide_deep")]


def test_the_same_weights_as_one_after_another(tmp_path, monkeypatch):
    """wide_deep uses dropout; it is requested twice and trained once."""
    found = {}
    for workers in (1, 2):
        monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / f"cache-{workers}"))
        models = load_models(
            requests(load_dataset("synthetic-movielens/full", rows=3000)), workers=workers, progress=False
        )
        assert [model.manifest["model"] for model in models] == ["wide_deep", "dlrm", "wide_deep"]
        found[workers] = [state_digest(model) for model in models]
        folders = {path.name for path in (tmp_path / f"cache-{workers}" / "checkpoints").iterdir() if path.is_dir()}
        assert len(folders) == 2  # nothing else is left
    assert found[1] == found[2]


def test_what_is_there_needs_no_process(data, trained, monkeypatch):
    monkeypatch.setattr("drsrobust.training.load.pool", lambda *_: pytest.fail("processes were started"))
    settings = Settings(epochs=2, batch_size=512)
    (model,) = load_models([{"name": "dlrm", "data": data, "settings": settings}], workers=2, progress=False)
    assert state_digest(model) == state_digest(trained)


def test_other_rows_than_the_cached_ones_are_trained_on_here(empty_cache, monkeypatch):
    """A worker maps the folder of the data: it would train on rows that were not meant."""
    monkeypatch.setattr("drsrobust.training.load.pool", lambda *_: pytest.fail("processes were started"))
    data = load_dataset("synthetic-movielens/full", rows=3000)
    models = load_models(requests(replace(data, train=data.train.head(1000))), workers=2, progress=False)
    assert len(models) == 3


def test_wrong_requests(data):
    for wrong, says in (({"name": "dlrm"}, "'data'"), ({"name": "dlrm", "data": data, "epochs": 3}, "'epochs'")):
        with pytest.raises(TypeError, match=says):
            load_models([wrong])
    with pytest.raises(ValueError, match="requests"):
        load_models([])


def about(pid):
    """State and parent of a process; Z (a zombie) where there is none."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return state, int(parent)
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0


def workers_of(process):
    """The children of its server process."""
    parents = {int(path.name): about(path.name)[1] for path in Path("/proc").iterdir() if path.name.isdigit()}
    children = [pid for pid, parent in parents.items() if parent == process]
    servers = [pid for pid in children if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [pid for pid, parent in parents.items() if parent in servers]


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_end_leaves_no_process_behind_and_training_goes_on(how, tmp_path, monkeypatch, start):
    monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / "cache"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = start([sys.executable, str(script)], **pipes)
    locks, until = tmp_path / "cache" / "checkpoints", time.monotonic() + 60
    while len(list(locks.glob("*.lock"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    os.kill(process.pid, how) if how == signal.SIGKILL else os.killpg(process.pid, how)
    _, said = process.communicate(timeout=30)
    assert said.count("Traceback") <= 1 and ("KeyboardInterrupt" in said) == (how == signal.SIGINT)
    while any(about(pid)[0] != "Z" for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert [about(pid)[0] for pid in workers] == ["Z", "Z"]
    for lock in locks.glob("*.lock"):
        with exclusive(lock.with_suffix(""), wait=False):  # free: the next call goes on
            pass
