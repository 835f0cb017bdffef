"""Killed training resumes where it stopped and ends with the same weights."""

import json
import sys
import time

import numpy as np
import pytest
import torch

from drsrobust.models import build_model, state_digest
from drsrobust.training import Settings, fit, load_model
from drsrobust_extras.data.load import load_dataset
from tests.processes import start

MODULE = sys.modules["drsrobust.training.fit"]  # (the package has the function under this name)
SETTINGS = {
    "adam": Settings(epochs=4, batch_size=256, patience=2),
    "fused": Settings(
        epochs=4, batch_size=256, patience=2, table_optimizer="rowwise_adagrad", table_learning_rate=0.05
    ),
}


class Stopped(Exception):
    """Stands for the end of the process."""


def built(name, data):
    torch.manual_seed(0)
    return build_model(name, data.schema)


def stop_after(monkeypatch, saves):
    """The run ends right after its n-th snapshot, which it takes at every step."""
    monkeypatch.setattr(MODULE, "SAVE_EVERY", 0.0)
    save, count = MODULE.save_snapshot, iter(range(10**6))

    def stopping(*arguments):
        save(*arguments)
        if next(count) + 1 == saves:
            raise Stopped

    monkeypatch.setattr(MODULE, "save_snapshot", stopping)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "saves"), [("adam", 1), ("fused", 19), ("adam", 20)]
)  # within an epoch, at its last step, at its first
def test_resumed_at_any_step(data, tmp_path, monkeypatch, how, saves):
    """wide_deep has dropout and BatchNorm: random state and buffers count."""
    settings = SETTINGS[how]
    whole = built("wide_deep", data)
    curve = fit(whole, data, settings, progress=False)
    stop_after(monkeypatch, saves)
    with pytest.raises(Stopped):
        fit(built("wide_deep", data), data, settings, progress=False, snapshot=tmp_path / "s")
    monkeypatch.undo()
    steps, step = [], MODULE.Trainer.step
    monkeypatch.setattr(MODULE.Trainer, "step", lambda *arguments: steps.append(1) or step(*arguments))
    again = built("wide_deep", data)
    found = fit(again, data, settings, progress=False, snapshot=tmp_path / "s")
    assert state_digest(again) == state_digest(whole)
    assert [(e.train_loss, e.valid_auc) for e in found] == [(e.train_loss, e.valid_auc) for e in curve]
    assert len(steps) == len(curve) * 19 - saves  # 4,800 rows are 19 steps; none was done twice


@pytest.mark.long
def test_damaged_snapshots_and_those_of_other_runs_are_ignored(data, tmp_path, monkeypatch):
    settings = SETTINGS["adam"]
    whole = built("dlrm", data)
    fit(whole, data, settings, progress=False)
    stop_after(monkeypatch, 5)
    path = tmp_path / "s"
    with pytest.raises(Stopped):
        fit(built("dlrm", data), data, settings, progress=False, snapshot=path)
    monkeypatch.undo()
    content = path.read_bytes()
    for damage, says in (
        (lambda: path.write_bytes(content[:-1] + bytes([content[-1] ^ 1])), "SHA-256"),
        (lambda: path.write_bytes(content[:100]), "ignoring snapshot"),
        (lambda: path.write_bytes(b""), "ignoring snapshot"),
    ):
        damage()
        with pytest.warns(UserWarning, match=f"{says}.*training restarts"):
            model = built("dlrm", data)
            fit(model, data, settings, progress=False, snapshot=path)
        assert state_digest(model) == state_digest(whole)
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="of another training run"):
        fit(built("dlrm", data), data, Settings(epochs=1, batch_size=256), progress=False, snapshot=path)


def train_with_many_snapshots():
    """In a process of its own."""
    MODULE.SAVE_EVERY = 0.0
    data = load_dataset("synthetic-movielens/full", rows=6000)
    load_model("dlrm", data, settings=Settings(epochs=4, batch_size=64, patience=4), progress=False)


@pytest.mark.long
def test_killed_and_called_again(data, empty_cache):
    settings = Settings(epochs=4, batch_size=64, patience=4)
    child = start(train_with_many_snapshots)
    deadline = time.monotonic() + 60
    while not list(empty_cache.glob("checkpoints/*.training/*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    child.kill()
    child.join()
    assert list(empty_cache.glob("checkpoints/*.training"))
    resumed = load_model("dlrm", data, settings=settings, progress=False)
    assert not list(empty_cache.glob("checkpoints/*.training"))
    whole = built("dlrm", data)
    curve = fit(whole, data, settings, progress=False)
    assert resumed.manifest["state"] == state_digest(whole)
    assert [epoch["valid_auc"] for epoch in resumed.manifest["curve"]] == [epoch.valid_auc for epoch in curve]


def test_the_checkpoint_folder_holds_the_learning_curve(data, empty_cache):
    model = load_model("dlrm", data, settings=Settings(epochs=2, batch_size=512), progress=False)
    (file,) = empty_cache.glob("checkpoints/*/curve.csv")
    lines = file.read_text().splitlines()
    assert lines[0] == "epoch,train_loss,valid_loss,valid_auc,valid_ne,seconds,cpu_seconds" and len(lines) == 3
    assert np.allclose(list(map(float, lines[2].split(","))), list(model.manifest["curve"][1].values()))
    manifest = json.loads((file.parent / "manifest.json").read_text())
    assert manifest["parameters"] == sum(p.numel() for p in model.parameters())
    assert 0.5 < manifest["test_ne"] < 1.5
