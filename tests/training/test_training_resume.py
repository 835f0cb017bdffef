"""Killed training resumes where it stopped and ends with the same weights."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drsrobust._locks import exclusive
from drsrobust.models import build_model, state_digest
from drsrobust.training import Settings, fit, load_model, load_models
from drsrobust_extras.data.load import load_dataset
from tests.campaign.writer import killed
from tests.refusals import refuses

MODULE = sys.modules["drsrobust.training.fit"]  # (the package has the function under this name)
FEW = {"epochs": 4, "batch_size": 256, "patience": 2}
FUSED = {"table_optimizer": "rowwise_adagrad", "table_learning_rate": 0.05}
SETTINGS = {"adam": Settings(**FEW), "fused": Settings(**FEW, **FUSED)}


class Stopped(Exception):
    """Stands for the end of the process."""


def built(name, data):
    torch.manual_seed(0)
    return build_model(name, data.schema)


def stopped_after(saves, name, data, settings, path):
    """A run that ends right after its n-th snapshot, which it takes at every step."""
    save, count = MODULE.save_snapshot, iter(range(10**6))

    def stopping(*arguments):
        save(*arguments)
        if next(count) + 1 == saves:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(MODULE, "SAVE_EVERY", 0.0)
        patch.setattr(MODULE, "save_snapshot", stopping)
        fit(built(name, data), data, settings, progress=False, snapshot=path)


@pytest.mark.long
# Within an epoch, at its last step, at its first.
@pytest.mark.parametrize(("how", "saves"), [("adam", 1), ("fused", 19), ("adam", 20)])
def test_resumed_at_any_step(data, tmp_path, monkeypatch, how, saves):
    """wide_deep has dropout and BatchNorm: random state and buffers count."""
    settings = SETTINGS[how]
    whole = built("wide_deep", data)
    curve = fit(whole, data, settings, progress=False)
    stopped_after(saves, "wide_deep", data, settings, tmp_path / "s")
    steps, step = [], MODULE.Trainer.step
    monkeypatch.setattr(MODULE.Trainer, "step", lambda *arguments: steps.append(1) or step(*arguments))
    again = built("wide_deep", data)
    found = fit(again, data, settings, progress=False, snapshot=tmp_path / "s")
    assert state_digest(again) == state_digest(whole)
    assert [(e.train_loss, e.valid_auc) for e in found] == [(e.train_loss, e.valid_auc) for e in curve]
    assert len(steps) == len(curve) * 19 - saves  # 4,800 rows are 19 steps; none was done twice


@pytest.mark.long
def test_damaged_snapshots_and_those_of_other_runs_are_ignored(data, tmp_path):
    settings, path = SETTINGS["adam"], tmp_path / "s"
    whole = built("dlrm", data)
    fit(whole, data, settings, progress=False)
    stopped_after(5, "dlrm", data, settings, path)
    content = path.read_bytes()
    for damaged in (content[:-1] + bytes([content[-1] ^ 1]), content[:100], b""):
        path.write_bytes(damaged)
        model = built("dlrm", data)
        with pytest.warns(UserWarning, match="training restarts"):
            fit(model, data, settings, progress=False, snapshot=path)
        assert state_digest(model) == state_digest(whole)
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="of another training run"):
        fit(built("dlrm", data), data, Settings(epochs=1, batch_size=256), progress=False, snapshot=path)


def train_with_many_snapshots():
    MODULE.SAVE_EVERY = 0.0
    data = load_dataset("synthetic-movielens/full", rows=6000)
    load_model("dlrm", data, settings=Settings(epochs=4, batch_size=64, patience=4), progress=False)


@pytest.mark.long
def test_killed_and_called_again(data, empty_cache):
    def snapshots():
        return list(empty_cache.glob("checkpoints/*.training/*.safetensors"))

    killed(train_with_many_snapshots, when=snapshots, pause=0.5)
    assert list(empty_cache.glob("checkpoints/*.training"))
    settings = Settings(epochs=4, batch_size=64, patience=4)
    resumed = load_model("dlrm", data, settings=settings, progress=False)
    assert not list(empty_cache.glob("checkpoints/*.training"))
    whole = built("dlrm", data)
    curve = fit(whole, data, settings, progress=False)
    assert resumed.manifest["state"] == state_digest(whole)
    assert [epoch["valid_auc"] for epoch in resumed.manifest["curve"]] == [epoch.valid_auc for epoch in curve]


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
        few = load_dataset("synthetic-movielens/full", rows=3000)
        models = load_models(requests(few), workers=workers, progress=False)
        assert [model.manifest["model"] for model in models] == ["wide_deep", "dlrm", "wide_deep"]
        found[workers] = [state_digest(model) for model in models]
        folders = {path.name for path in (tmp_path / f"cache-{workers}" / "checkpoints").iterdir() if path.is_dir()}
        assert len(folders) == 2  # nothing else is left
    assert found[1] == found[2]


def test_what_starts_no_process(data, trained, monkeypatch):
    """Models that are there; and other rows than the cached ones, since a worker maps the folder of the data: it would train on
    rows that were not meant."""
    monkeypatch.setattr("drsrobust.training.load.pool", lambda *_: pytest.fail("processes were started"))
    settings = Settings(epochs=2, batch_size=512)
    load_model("fm", data, settings=settings, progress=False)
    there = [{"name": name, "data": data, "settings": settings} for name in ("fm", "dlrm")]
    assert state_digest(load_models(there, workers=2, progress=False)[1]) == state_digest(trained)
    few = replace(data, train=data.train.head(1000))
    assert len(load_models(requests(few), workers=2, progress=False)) == 3


def test_wrong_requests(data):
    refuses(lambda: load_models([{"name": "dlrm"}]), TypeError, "'data'")
    refuses(lambda: load_models([{"name": "dlrm", "data": data, "epochs": 3}]), TypeError, "'epochs'")
    refuses(lambda: load_models([]), ValueError, "requests")


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
