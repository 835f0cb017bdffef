"""Code that decides a campaign: a default store is found again for the same code alone; code that changes while a campaign, or
its workers, live is refused by the name of what changed; and what no digest sees shows in trials that are computed again."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module

import drsrobust as dr
from drsrobust._provenance import machine
from drsrobust.campaign import StoreError, workers
from drsrobust_extras.experiments.training_errors.campaign import TrainingCampaign
from drsrobust_extras.experiments.training_errors.detectors import GradientNorm
from tests.refusals import refuses


class Net(nn.Module):
    """Scores of two dense features."""

    cap = 1e9

    def __init__(self):
        super().__init__()
        self.hidden, self.act, self.last = nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)

    def forward(self, dense):
        self.width = dense.shape[1]  # an attribute that it gets when it is first called
        return self.last(self.act(self.hidden(dense))).clamp(max=self.cap)


def forward(model, batch):
    return model(batch["dense"])


class Mean:
    def __init__(self):
        self.by = 1.0

    def __call__(self, labels, scores, golden_scores, users):
        return float(np.nan_to_num(scores).mean()) * self.by


class Flip(dr.BitFlip):
    """A user's error model with a setting of its class."""

    shift = 0

    def sample(self, space, *, seed, **options):
        return super().sample(space, seed=seed + self.shift, **options)


class Ranges(dr.WeightRange):
    """A user's protection that can be switched off by an attribute."""

    active = True

    def screen(self, error_map, space, *, seed):
        return super().screen(error_map, space, seed=seed) if self.active else error_map


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(300, 2, generator=generator)
    return dr.data.from_batches([{"dense": dense, "labels": (dense.sum(dim=1) > 0).int()}])


def evaluator_of(rows, forward=forward):
    torch.manual_seed(0)
    return dr.Evaluator(Net(), rows, forward=forward)


def made(rows, folder, forward=forward, **options):
    evaluator = evaluator_of(rows, forward)
    own = {"errors": [Flip(1e-2)], "metrics": {"mean": Mean()}, "mitigations": [None, Ranges.fit(evaluator.model)]}
    return dr.Campaign(evaluator, store=folder, trials=3, **own | options)


def again(campaign, folder):
    """A campaign of the same objects, made now."""
    metrics = {name: metric.function for name, metric in campaign.own_metrics.items()}
    mitigations = [condition.mitigation for condition in campaign.conditions]
    options = {"metrics": metrics, "mitigations": mitigations, "trials": 3, "store": folder}
    return dr.Campaign(campaign.evaluator, errors=[Flip(1e-2)], **options)


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def double(module, given, output):
    return 2 * output


# By the part that a refusal names: what changes, by a function of the campaign and pytest's monkeypatch, or in a block.
PARTS = {
    "model code": {
        "a hook": lambda c, patch: patch.setitem(c.evaluator.model.act._forward_hooks, 1, double),
        "an attribute": lambda c, patch: patch.setitem(vars(c.evaluator.model), "cap", 60),
        "a module": lambda c, patch: patch.setitem(c.evaluator.model._modules, "act", nn.Hardtanh(0, 9)),
        "a class attribute": lambda c, patch: patch.setattr(Net, "cap", 60),
        "a method": lambda c, patch: patch.setattr(Net, "forward", lambda self, x: self.last(self.hidden(x))),
        "a patched forward": lambda c, patch: patch.setattr(nn.ReLU, "forward", lambda self, x: x.clamp(0, 9)),
    },
    "patched functions": {
        "a function": lambda c, patch: patch.setattr(functional, "relu", lambda x, inplace=False: x.clamp(0, 9)),
        "a method of tensors": lambda c, patch: patch.setattr(torch.Tensor, "clamp", lambda x, max: x),
        "NumPy's": lambda c, patch: patch.setattr(np, "nan_to_num", lambda x: x),
    },
    "global hooks": {"a hook of all": lambda c, patch: patch.setitem(module._global_forward_hooks, 1, double)},
    "torch modes": {"a mode": lambda c, patch: Mode()},
    "metrics": {"a metric's setting": lambda c, patch: patch.setattr(c.own_metrics["mean"].function, "by", 2.0)},
    "conditions": {"an error model's class": lambda c, patch: patch.setattr(Flip, "shift", 1)},
    "mitigations": {"an attribute of one": lambda c, patch: patch.setattr(c.conditions[1].mitigation, "active", False)},
    "seed": {"the seed": lambda c, patch: patch.setattr(c, "seed", 5)},
    "protocol": {"the label": lambda c, patch: patch.setattr(c, "label", "other")},
    "numerics": {
        "the matrix products": lambda c, patch: torch.set_float32_matmul_precision("medium"),
        "the default dtype": lambda c, patch: torch.set_default_dtype(torch.float64),
    },
}
CHANGES = {change: (how, part) for part, changes in PARTS.items() for change, how in changes.items()}
OF_THE_OBJECT = ("a hook", "an attribute", "a module")  # which workers get with the model
NO_CODE = ("the seed", "the label", "the matrix products", "the default dtype")


@contextmanager
def changed(change, campaign):
    """Makes a change inside the block; yields the part that a refusal names."""
    how, part = CHANGES[change]
    with pytest.MonkeyPatch.context() as patch:
        try:
            with how(campaign, patch) or nullcontext():
                yield part
        finally:
            torch.set_float32_matmul_precision("highest")
            torch.set_default_dtype(torch.float32)


def test_the_same_code_finds_its_store(rows, empty_cache, tmp_path):
    """Another lambda of the same code, objects made again, and a model in another mode; other code has other folders."""

    def campaign(factor, store=None):
        torch.manual_seed(0)
        evaluator = dr.Evaluator(Net(), rows, forward=lambda model, batch: factor * model(batch["dense"]))
        own = {"metrics": {"mean": Mean()}, "mitigations": [None, Ranges.fit(evaluator.model)]}
        return dr.Campaign(evaluator, errors=[Flip(1e-2)], trials=4, store=store, **own)

    table = campaign(1.0).run(progress=False)
    found = campaign(1.0)
    found.evaluator.model.eval()
    pd.testing.assert_frame_equal(found.table(), table)
    pd.testing.assert_frame_equal(found.run(progress=False), table)
    assert len(campaign(1.0 + 1e-12).table()) == 0
    campaign(1.0, tmp_path / "s").run(progress=False)
    refuses(lambda: campaign(1.0 + 1e-12, tmp_path / "s"), StoreError, "they differ in forward code.\n")


def test_what_has_no_digest_gets_no_default_store(rows, empty_cache, tmp_path):
    lock = threading.Lock()

    def forward(model, batch):
        with lock:
            return model(batch["dense"])

    lacking = r"results are not kept, .*forward uses lock \(cannot pickle '_thread.lock'"
    with pytest.warns(UserWarning, match=lacking) as said:
        campaign = made(rows, None, forward=forward)
    assert len(said) == 1 and len(campaign.run(progress=False)) == 6
    folder = campaign.store.folder
    with pytest.raises(ValueError, match="a shard's results must be kept: pass store="):
        campaign.run(shard=(0, 2))
    with pytest.warns(UserWarning, match="results are not kept"):
        assert len(made(rows, None, forward=forward).table()) == 0
    del campaign
    assert not folder.exists()
    named = made(rows, tmp_path / "s", forward=forward)  # no warning: the second net remains
    pd.testing.assert_frame_equal(named.run(progress=False), made(rows, tmp_path / "s", forward=forward).table())


def environment_decides(model, batch):
    logits = model(batch["dense"])
    return torch.where(logits.abs() > float(os.environ.get("DRSROBUST_TEST_LIMIT", "inf")), -logits, logits)


def test_another_machine_is_compared_within_a_tolerance(rows, tmp_path, monkeypatch):
    options = {"forward": environment_decides, "folder": tmp_path / "s", "seed": 1}
    table = made(rows, **options).run(progress=False)
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert manifest["about"]["machine"]["processor"] == machine()["processor"]
    manifest["about"]["machine"]["processor"] = "an older one"
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match="made with other processor; .* agree within 1e-06 in AUC"):
        pd.testing.assert_frame_equal(made(rows, **options).run(progress=False), table)
    monkeypatch.setenv("DRSROBUST_TEST_LIMIT", "4")
    with pytest.raises(StoreError, match=r"give \(made with other processor\): trial \d+ of .* has auc "):
        made(rows, **options).run(progress=False)


class Drifting(dr.BitFlip):
    calls = iter(range(10_000))

    def sample(self, space, *, seed, **options):
        return super().sample(space, seed=next(type(self).calls), **options)


def test_a_trial_that_changes_from_run_to_run(rows, tmp_path, monkeypatch):
    """It is not called other code."""
    monkeypatch.setattr("drsrobust.campaign.trial_code.short_digest", lambda *_, **__: "0" * 16)
    made(rows, tmp_path / "s", errors=[Drifting(1e-2)]).run(progress=False)
    said = r"trial \d of .* is not deterministic: \w+ .*, and .* when it is computed twice here"
    with pytest.raises(StoreError, match=said):
        made(rows, tmp_path / "s", errors=[Drifting(1e-2)]).run(progress=False)


@pytest.mark.parametrize("finished", [False, True])
def test_code_that_changes_after_the_campaign_was_made_is_refused(rows, tmp_path, finished):
    """And is another campaign's."""
    campaign = made(rows, tmp_path / "s")
    assert again(campaign, tmp_path / "t").store.identity == campaign.store.identity
    if finished:
        campaign.run(progress=False)
    files = sorted(path.name for path in (tmp_path / "s").glob("*.parquet"))
    for change in CHANGES:
        with changed(change, campaign) as part:
            said = part, " changed since this Campaign was made, ", " make a new Campaign"
            refuses(campaign.run, ValueError, *said)
            assert change in NO_CODE or again(campaign, tmp_path / "t").store.identity != campaign.store.identity
    assert sorted(path.name for path in (tmp_path / "s").glob("*.parquet")) == files and bool(files) == finished
    pd.testing.assert_frame_equal(campaign.run(progress=False), made(rows, tmp_path / "t").run(progress=False))


def test_what_trials_move_is_no_change(rows, tmp_path):
    """A forward and a metric that count their calls; shards move them too."""
    calls = []

    def counting(model, batch):
        calls.append(1)
        return model(batch["dense"])

    def noting(labels, scores, golden_scores, users):
        calls.append(2)
        return float(np.nan_to_num(scores).mean())

    campaign = made(rows, tmp_path / "s", forward=counting, metrics={"mean": noting})
    campaign.run(shard=(0, 2), progress=False)
    campaign.run(shard=(1, 2), progress=False)
    table = campaign.run(progress=False)
    pd.testing.assert_frame_equal(campaign.run(progress=False), table)


def test_a_training_campaign_refuses_changed_code(tmp_path, monkeypatch):
    data = dr.load_dataset("synthetic-movielens", rows=2_000)
    short = {"warm_up": 2, "evaluate_at": (2,), "when": 0, "settings": dr.training.Settings(batch_size=256)}
    options = short | {"targets": ["over_mlp"], "errors": dr.SingleBit(3), "trials": 1, "detectors": [GradientNorm()]}
    campaign = TrainingCampaign("dlrm", data, store=tmp_path / "s", **options)
    campaign.run(progress=False)
    for target, name, value, part in (
        (nn.Linear, "forward", lambda self, x: functional.linear(x, self.weight, self.bias) * 1.5, "model code"),
        (functional, "linear", lambda x, w, b=None: x @ w.T, "patched functions"),
        (campaign, "_seed", 3, "seed"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            refuses(campaign.run, ValueError, f"{part} changed since this TrainingCampaign was made")
    assert len(campaign.run(progress=False)) == 1


def test_a_worker_with_other_code_is_refused(rows, tmp_path):
    """A worker of another process has what it imported: here the change comes between the files and the worker."""
    campaign = made(rows, tmp_path / "s")
    with campaign._worker_spec(1) as spec:
        elsewhere = type(spec)(**vars(spec) | {"process": "another:1"})
        for each in (spec, elsewhere):
            workers.unpacked(each)
        for change in CHANGES.keys() - {*OF_THE_OBJECT, *NO_CODE}:
            with changed(change, campaign) as part, pytest.raises(RuntimeError) as refused:
                workers.unpacked(elsewhere)
            assert "other code than the campaign's: they differ in" in str(refused.value) and part in str(refused.value)


def test_a_factory_that_forgets_the_guard_is_refused(rows, tmp_path):
    model, options = Net(), {"errors": [dr.BitFlip(1e-2)], "trials": 2, "sampling": "plain"}
    with ThreadPoolExecutor(1) as pool:
        evaluator = dr.Evaluator(model, rows, forward=forward, factory=Net)
        assert len(dr.Campaign(evaluator, store=tmp_path / "s", **options).run(progress=False, executor=pool)) == 2
        model.act.register_forward_hook(lambda module, given, output: output.nan_to_num(0.0))
        evaluator = dr.Evaluator(model, rows, forward=forward, factory=Net)
        with pytest.raises(RuntimeError, match="differ in model code"):
            dr.Campaign(evaluator, store=tmp_path / "t", **options).run(progress=False, executor=pool)


def test_a_living_worker_computes_with_the_code_of_each_campaign(rows, tmp_path):
    """Both have one identity, since the view of a dictionary's keys has no digest."""

    def clamped(limit):
        limits = {limit: 0}.keys()
        return lambda model, batch: model(batch["dense"]).nan_to_num(0.0).clamp(-max(limits), max(limits))

    options = {"metrics": (), "mitigations": [None], "errors": [dr.BitFlip(5e-2)]}
    tables, identities = [], set()
    with ThreadPoolExecutor(1) as pool:
        for limit in (100, 5):
            there, here = (made(rows, tmp_path / f"{n} {limit}", clamped(limit), **options) for n in range(2))
            identities.add(there.store.identity)
            tables.append(there.run(progress=False, executor=pool))
            pd.testing.assert_frame_equal(tables[-1], here.run(progress=False))
    assert len(identities) == 1 and not tables[0].equals(tables[1])
