"""Settings, training, FBGEMM's fused tables against plain PyTorch, and checkpoints that are whole or refused."""

import json
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from drsrobust._processes import threads
from drsrobust.introspection.embedding_modules import torchrec
from drsrobust.metrics import auc
from drsrobust.models import build_model, padded_batches, score, state_digest
from drsrobust.training import CheckpointError, Settings, default_settings, fit, load_model, read_checkpoint
from drsrobust.training.fit import Epoch, last_epoch, warn_if_hardly_learned
from drsrobust.training.fused import fused_tables
from drsrobust_extras.data.load import load_dataset
from tests.refusals import refuses

MODULE = sys.modules["drsrobust.training.fit"]  # (the package has the function under this name)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
QUICK = Settings(epochs=2, batch_size=512)


def test_training_is_repeatable_and_learns(data):
    torch.manual_seed(123)
    digests, curves = set(), []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = build_model("wide_deep", data.schema)
        before = torch.random.get_rng_state()
        curves.append(fit(model, data, Settings(epochs=6, batch_size=256), progress=False))
        assert torch.equal(before, torch.random.get_rng_state())  # the caller's random state is left alone
        digests.add(state_digest(model))
        assert not model.training
    assert len(digests) == 1
    assert curves[0][-1].train_loss < curves[0][0].train_loss
    best = max(epoch.valid_auc for epoch in curves[0])
    assert best > 0.6
    scores = score(model, padded_batches(data.valid), len(data.valid))
    assert auc(data.valid.labels, scores) == best  # the weights are those of the best epoch


@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcn"])
def test_the_number_of_threads_changes_nothing(data, tmp_path, monkeypatch, name):
    """Neither a weight nor a number of the manifest, times apart."""
    found = []
    for number in (1, 2):
        monkeypatch.setenv("DRSROBUST_CACHE", str(tmp_path / str(number)))
        with threads(number):
            manifest = load_model(name, data, settings=QUICK, progress=False).manifest
            assert torch.get_num_threads() == number
        manifest["curve"] = [epoch | {"seconds": 0, "cpu_seconds": 0} for epoch in manifest["curve"]]
        found.append(manifest | {"seconds": 0, "cpu_seconds": 0})
    assert found[0] == found[1]


def curve_of(aucs, losses, nes=None):
    """A learning curve of those validation results."""
    nes = nes or [0.9] * len(aucs)
    rows = enumerate(zip(aucs, losses, nes, strict=True), 1)
    return [Epoch(n, 0.6, loss, auc, ne, 1.0) for n, (auc, loss, ne) in rows]


@pytest.mark.parametrize(
    ("aucs", "losses", "last"),
    [
        ([0.6, 0.7, 0.69, 0.69, 0.69], [0.6, 0.5, 0.51, 0.52, 0.53], 5),  # the AUC has not risen for 3 epochs
        ([0.6, 0.7, 0.69, 0.69, 0.69], [0.6, 0.5, 0.51, 0.52, 0.49], 6),  # but the loss is the lowest so far
        ([0.6, 0.7, 0.69, 0.69, 0.69, 0.69], [0.6, 0.5, 0.4, 0.3, 0.2, 0.2], 6),  # no longer
        ([0.6, 0.7, 0.69, 0.69, 0.69, 0.71], [0.6, 0.5, 0.4, 0.3, 0.2, 0.3], 9),  # and the AUC rises again
        ([0.6, 0.5], [0.6, 0.5], 4),
        ([], [], 3),
    ],
)
def test_training_ends_when_neither_auc_nor_loss_improves(aucs, losses, last):
    assert last_epoch(curve_of(aucs, losses), Settings(patience=3)) == last
    assert last_epoch(curve_of(aucs, losses), Settings(patience=3, epochs=2)) == 2


def test_training_goes_on_while_the_loss_falls(data, monkeypatch):
    """The weights are those of the best AUC all the same."""
    monkeypatch.setattr(MODULE, "auc", lambda *_: aucs.pop(0))
    monkeypatch.setattr(MODULE, "log_loss", lambda *_: losses.pop(0))
    aucs, losses = [0.6, 0.5, 0.5, 0.5, 0.7, 0.6, 0.6, 0.6], [0.6, 0.5, 0.4, 0.3, 0.4, 0.5, 0.6, 0.7]
    curve = fit(build_model("fm", data.schema), data, Settings(epochs=40, patience=2), progress=False)
    assert [epoch.valid_auc for epoch in curve] == [0.6, 0.5, 0.5, 0.5, 0.7, 0.6, 0.6]


def test_a_model_that_has_hardly_learned_warns(data, empty_cache):
    settings = Settings(epochs=1, batch_size=4096)
    for _ in range(2):  # from the cache too
        with pytest.warns(UserWarning, match="after epoch 1 the model has hardly learned") as caught:
            load_model("dlrm", data, settings=settings, progress=False)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_hardly_learned(curve_of([0.6, 0.6], [0.6, 0.6], [1.1, 0.97]), 1)


def test_divergence_raises(data):
    with pytest.raises(RuntimeError, match=r"epoch \d+, step \d+ of 2: the loss is nan"):
        fit(build_model("dlrm", data.schema), data, Settings(epochs=9, learning_rate=1e19), progress=False)
    one_class = replace(data, valid=data.valid.take(data.valid.labels == 1))
    refuses(lambda: fit(build_model("dlrm", data.schema), one_class, QUICK), ValueError, "both classes")


def test_load_model_trains_once(data, empty_cache, monkeypatch):
    first = load_model("dlrm", data, settings=QUICK, progress=False)
    manifest = first.manifest
    assert manifest["model"] == "dlrm" and manifest["data"] == data.fingerprint and len(manifest["curve"]) == 2
    assert manifest["versions"]["torchrec"] and manifest["settings"]["batch_size"] == 512
    assert manifest["state"] == state_digest(first) and not first.training
    scores = score(first, padded_batches(data.test), len(data.test))
    assert manifest["test_auc"] == auc(data.test.labels, scores)
    assert manifest["parameters"] == sum(p.numel() for p in first.parameters()) and 0.5 < manifest["test_ne"] < 1.5
    (file,) = empty_cache.glob("checkpoints/*/curve.csv")
    lines = file.read_text().splitlines()
    assert lines[0] == "epoch,train_loss,valid_loss,valid_auc,valid_ne,seconds,cpu_seconds" and len(lines) == 3
    assert np.allclose(list(map(float, lines[2].split(","))), list(manifest["curve"][1].values()))
    monkeypatch.setattr("drsrobust.training.load.fit", lambda *_, **__: pytest.fail("trained again"))
    assert state_digest(load_model("dlrm", data, settings=QUICK, progress=False)) == manifest["state"]


def test_other_settings_are_another_checkpoint(data, empty_cache):
    one = load_model("dlrm", data, settings=QUICK, progress=False)
    two = load_model("dlrm", data, settings=QUICK, sizes={"over_mlp": [8, 1]}, progress=False)
    assert one.manifest["state"] != two.manifest["state"]
    assert two.over_arch.model[1].weight.shape == (1, 8)
    same = load_model("dlrm", data, settings=QUICK, sizes={"over_mlp": (np.int64(8), 1)}, progress=False)
    assert same.manifest == two.manifest and len(list((empty_cache / "checkpoints").glob("*/"))) == 2
    other = load_dataset("synthetic-movielens/full", rows=600)
    assert load_model("dlrm", other, settings=QUICK, progress=False).manifest["data"] == other.fingerprint


def test_test_rows_of_one_class_have_no_auc(data, empty_cache):
    clicked = replace(data, test=data.test.take(data.test.labels == 1))
    assert load_model("dlrm", clicked, settings=QUICK, progress=False).manifest["test_auc"] is None


@pytest.fixture
def checkpoint(data, empty_cache):
    load_model("dlrm", data, settings=QUICK, progress=False)
    return next(path for path in (empty_cache / "checkpoints").iterdir() if path.is_dir())


def change_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_another_checkpoint_in_its_place_is_refused(data, checkpoint, empty_cache):
    """A whole checkpoint, but of another seed."""
    other = Settings(epochs=2, batch_size=512, seed=1)
    load_model("dlrm", data, settings=other, progress=False)
    folder = next(p for p in (empty_cache / "checkpoints").iterdir() if p.is_dir() and p != checkpoint)
    for file in folder.iterdir():
        file.write_bytes((checkpoint / file.name).read_bytes())
    with pytest.raises(CheckpointError, match=r"holds another checkpoint: settings is .*delete"):
        load_model("dlrm", data, settings=other, progress=False)


def test_training_rows_are_part_of_the_identity(data, trained):
    few = load_model("dlrm", replace(data, train=data.train.head(600)), settings=QUICK, progress=False)
    assert trained.manifest["state"] != few.manifest["state"]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: change_a_bit(f / "model.safetensors"), "model.safetensors has SHA-256 .*, but its manifest says"),
        (lambda f: (f / "model.safetensors").write_bytes(b"12"), "model.safetensors has SHA-256"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "manifest.json").write_text('{"sha256'), "manifest.json is damaged"),
        (lambda f: edit(f / "manifest.json", test_auc=0.99), "manifest.json is damaged .*SHA-256"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (lambda f: (f / "manifest.json").write_text("{}"), "manifest.json is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_refused(data, checkpoint, damage, says):
    damage(checkpoint)
    with pytest.raises(CheckpointError, match=f"{says}.*delete .* to train again"):
        load_model("dlrm", data, settings=QUICK, progress=False)


def test_no_checkpoint(tmp_path):
    refuses(lambda: read_checkpoint(tmp_path), FileNotFoundError, "there is no checkpoint")


def test_dlrm_on_real_movielens(real_data):
    """The defaults but for a single epoch, on the whole of MovieLens-1M (all of them: `make bench BENCH=quality`)."""
    data = load_dataset("movielens-1m/full", real_data)
    settings = replace(default_settings("dlrm", data.train.dataset), epochs=1)
    model = load_model("dlrm", data, settings=settings, progress=False)
    assert model.manifest["test_auc"] > 0.78


def test_plain_numbers_whatever_was_given():
    settings = Settings(epochs=np.int64(2), learning_rate=np.float32(0.5), table_learning_rate=np.float64(0.25))
    values = settings.epochs, settings.learning_rate, settings.table_learning_rate
    assert [type(value) for value in values] == [int, float, float]


REFUSED = [("batch_size", 1), ("table_learning_rate", -1), ("weight_decay", -1e-6), ("patience", 0)]
REFUSED += [("table_optimizer", "rowwise"), ("precision", "float16")]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_makes_no_sense_is_refused(name, value):
    refuses(lambda: Settings(**{name: value}), ValueError, name, value)


def test_weight_decay_of_tables():
    assert Settings(weight_decay=1e-4).table_weight_decay == 1e-4
    assert Settings(weight_decay=1e-4, table_optimizer="adagrad").table_weight_decay == 0
    with pytest.raises(ValueError, match="table_weight_decay .* 1e-06"):
        Settings(table_optimizer="sgd", table_weight_decay=1e-6)


@needs_gpu
@pytest.mark.parametrize("more", [{}, {"table_optimizer": "rowwise_adagrad"}, {"precision": "bfloat16"}], ids=str)
def test_learns_what_a_cpu_learns(data, more):
    aucs = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = build_model("dlrm", data.schema).to(device)
        aucs.append(fit(model, data, Settings(epochs=3, batch_size=256, **more), progress=False)[-1].valid_auc)
        assert {parameter.device.type for parameter in model.parameters()} == {device}
    assert abs(aucs[0] - aucs[1]) < 0.02


@needs_gpu
def test_the_cached_model_is_on_the_cpu(data, empty_cache):
    model = load_model("wide_deep", data, settings=Settings(epochs=1, batch_size=512), progress=False)
    assert model.manifest["device"] == "cuda" and {p.device.type for p in model.parameters()} == {"cpu"}
    assert np.isfinite(score(model, padded_batches(data.test), len(data.test))).all()


def fused(optimizer, **more):
    return Settings(epochs=2, batch_size=512, table_optimizer=optimizer, table_learning_rate=0.1, **more)


def built(name, data):
    torch.manual_seed(3)
    return build_model(name, data.schema)


def one_step(model, batch):
    logits = model(dense_features=batch.dense_features, sparse_features=batch.sparse_features)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()


def tables(model):
    return {
        name: p.detach().clone() for name, p in model.named_parameters() if "embedding_bags" in name and p.shape[1] > 1
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_steps_are_those_of_the_formula(data, optimizer):
    """w -= rate * g; Adagrad: g / (sqrt(sum of g^2) + eps), row-wise with the mean of g^2 over the row. Single-hot features
    are summed, genres are averaged: two kernels in one collection, and `genres` is not the last feature of the model."""
    batches = [data.train.batch(slice(start, start + 300)) for start in (0, 300)]
    plain, ours = built("dlrm", data), built("dlrm", data)
    moment = {name: torch.zeros_like(table) for name, table in tables(plain).items()}
    with fused_tables(ours, fused(optimizer)) as taken:
        assert len(taken) == 1
        for batch in batches:
            plain.zero_grad()
            one_step(plain, batch)
            one_step(ours, batch)
            with torch.no_grad():
                for name, parameter in plain.named_parameters():
                    if name not in moment:
                        continue
                    gradient = parameter.grad
                    if optimizer == "sgd":
                        parameter -= 0.1 * gradient
                        continue
                    square = gradient**2
                    moment[name] += square.mean(dim=1, keepdim=True) if optimizer == "rowwise_adagrad" else square
                    parameter -= 0.1 * gradient / (moment[name].sqrt() + 1e-8)
    for name, table in tables(ours).items():
        torch.testing.assert_close(table, tables(plain)[name], rtol=1e-5, atol=2e-5, msg=name)  # steps are 0.1 wide
        assert (table != tables(built("dlrm", data))[name]).any()


def test_look_ups_are_the_collections_own(data):
    model, batch = built("dlrm", data).eval(), data.test.batch()
    golden = model(batch.dense_features, batch.sparse_features)
    with fused_tables(model, fused("sgd")):
        torch.testing.assert_close(model(batch.dense_features, batch.sparse_features), golden)
    assert torch.equal(model(batch.dense_features, batch.sparse_features), golden)
    memories = {table.untyped_storage().data_ptr() for _, table in model.named_parameters()}
    assert len(memories) == len(list(model.parameters()))  # each its own again


def test_afterwards_the_collection_is_as_it_was(data):
    model = built("dlrm", data)
    before, parameters = state_digest(model), list(model.parameters())
    with pytest.raises(ZeroDivisionError), fused_tables(model, fused("adagrad")):
        raise ZeroDivisionError
    assert state_digest(model) == before and all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert "forward" not in vars(model.sparse_arch.embedding_bag_collection)


def test_what_fbgemm_cannot_take_stays_with_adam(data):
    """First-order weights are tables of width 1."""
    model = built("wide_deep", data)
    with fused_tables(model, fused("sgd")) as taken:
        assert [one.collection for one in taken] == [model.embeddings]
    with fused_tables(model, Settings()) as taken:
        assert taken == []
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    curve = fit(model, data, fused("rowwise_adagrad"), progress=False)
    assert all((parameter != before[name]).any() for name, parameter in model.named_parameters())
    again = built("wide_deep", data)
    assert fit(again, data, fused("rowwise_adagrad"), progress=False)[-1].train_loss < curve[0].train_loss
    assert state_digest(again) == state_digest(model)  # training is repeatable


def test_ids_that_no_table_has_are_refused(data):
    model, batch = built("dlrm", data), data.train.batch(slice(0, 8))
    jagged = batch.sparse_features
    wrong = torchrec().KeyedJaggedTensor(keys=jagged.keys(), values=jagged.values() + 10**6, lengths=jagged.lengths())
    with fused_tables(model, fused("sgd")), pytest.raises(RuntimeError):
        model(batch.dense_features, wrong)
