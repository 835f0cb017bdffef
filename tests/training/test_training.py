import json

import pytest
import torch

from drsrobust.data import load_dataset
from drsrobust.metrics import auc
from drsrobust.models import build_model, padded_batches, score, state_digest
from drsrobust.training import CheckpointError, Settings, fit, load_model, read_checkpoint

QUICK = Settings(epochs=2, batch_size=512)


def test_training_is_repeatable_and_learns(data):
    torch.manual_seed(123)
    digests, curves = set(), []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = build_model("wide_deep", data.schema)
        before = torch.random.get_rng_state()
        curves.append(fit(model, data, Settings(epochs=6, batch_size=256), show=False))
        assert torch.equal(before, torch.random.get_rng_state())  # the caller's random state is left alone
        digests.add(state_digest(model))
        assert not model.training
    assert len(digests) == 1
    assert curves[0][-1].train_loss < curves[0][0].train_loss
    best = max(epoch.valid_auc for epoch in curves[0])
    assert best > 0.6
    scores = score(model, padded_batches(data.valid), len(data.valid))
    assert auc(data.valid.labels, scores) == best  # the weights are those of the best epoch


def test_early_stopping(data):
    torch.manual_seed(0)
    curve = fit(build_model("dlrm", data.schema), data, Settings(epochs=40, batch_size=256, patience=2), show=False)
    best = max(range(len(curve)), key=lambda i: curve[i].valid_auc)
    assert len(curve) - 1 - best == 2 or len(curve) == 40


def test_divergence_is_told(data):
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match=r"training diverged in epoch \d+: the loss is nan.*learning_rate"):
        fit(build_model("dlrm", data.schema), data, Settings(epochs=9, learning_rate=1e19), show=False)
    with pytest.raises(ValueError, match="epochs is 0"):
        fit(build_model("dlrm", data.schema), data, Settings(epochs=0), show=False)


def test_load_model_trains_once(data, empty_cache, monkeypatch):
    first = load_model("dlrm", data, settings=QUICK, show=False)
    manifest = first.manifest
    assert manifest["model"] == "dlrm" and manifest["data"] == data.fingerprint and len(manifest["curve"]) == 2
    assert manifest["versions"]["torchrec"] and manifest["settings"]["batch_size"] == 512
    assert manifest["state"] == state_digest(first) and not first.training
    scores = score(first, padded_batches(data.test), len(data.test))
    assert manifest["test_auc"] == auc(data.test.labels, scores)
    monkeypatch.setattr("drsrobust.training.load.fit", lambda *_, **__: pytest.fail("trained again"))
    assert state_digest(load_model("dlrm", data, settings=QUICK, show=False)) == manifest["state"]
    with pytest.raises(ValueError, match=r"unknown model 'dlrn'; did you mean 'dlrm'\?"):
        load_model("dlrn", data)


def test_other_settings_train_anew(data, empty_cache):
    one = load_model("dlrm", data, settings=QUICK, show=False)
    two = load_model("dlrm", data, settings=QUICK, sizes={"over_mlp": [8, 1]}, show=False)
    assert one.manifest["state"] != two.manifest["state"]
    assert two.over_arch.model[1].weight.shape == (1, 8)
    other = load_dataset("synthetic-movielens/full", rows=600)
    assert load_model("dlrm", other, settings=QUICK, show=False).manifest["data"] == other.fingerprint


@pytest.fixture
def checkpoint(data, empty_cache):
    load_model("dlrm", data, settings=QUICK, show=False)
    return next(path for path in (empty_cache / "checkpoints").iterdir() if path.is_dir())


def change_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: change_a_bit(f / "model.safetensors"), "model.safetensors has SHA-256 .*, but its manifest says"),
        (lambda f: (f / "model.safetensors").write_bytes(b"12"), "model.safetensors has SHA-256"),
        (lambda f: (f / "model.safetensors").unlink(), "has SHA-256 no such file"),
        (lambda f: (f / "manifest.json").write_text('{"sha256'), "manifest.json is damaged"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (lambda f: (f / "manifest.json").write_text("{}"), "manifest.json is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_refused(data, checkpoint, damage, says):
    damage(checkpoint)
    with pytest.raises(CheckpointError, match=f"{says}.*Delete .* to train again"):
        load_model("dlrm", data, settings=QUICK, show=False)


def test_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        read_checkpoint(tmp_path)


def test_manifest_is_plain_json(checkpoint):
    assert json.loads((checkpoint / "manifest.json").read_text())["format"] == 1


def test_dlrm_on_real_movielens(real_data):
    """The defaults, on the whole of MovieLens-1M."""
    data = load_dataset("movielens-1m/full", real_data)
    model = load_model("dlrm", data, show=False)
    assert model.manifest["test_auc"] > 0.81
