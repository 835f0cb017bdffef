"""Code that changes while a campaign, or its workers, live: refused by the name of what changed, and nothing is stored."""

import importlib
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook

import drsrobust as dr
from drsrobust._processes import process_context
from drsrobust.campaign import workers
from drsrobust_extras.experiments.training_errors.campaign import TrainingCampaign
from drsrobust_extras.experiments.training_errors.detectors import GradientNorm


class Net(nn.Module):
    """Scores of two dense features."""

    cap = 1e9

    def __init__(self):
        super().__init__()
        self.hidden, self.act, self.last = nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)

    def forward(self, dense):
        return self.last(self.act(self.hidden(dense))).clamp(max=self.cap)


def forward(model, batch):
    return model(batch["dense"])


class Mean:
    """A metric with a setting."""

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


class Mode(torch.overrides.TorchFunctionMode):
    """Passes every call on."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def double(module, given, output):
    return 2 * output


# What changes: a function of the campaign and pytest's monkeypatch; and the part that a refusal names.
CHANGES = {
    "a hook": (lambda c, patch: patch.setitem(c.evaluator.model.act._forward_hooks, 1, double), "model code"),
    "an attribute": (lambda c, patch: patch.setitem(vars(c.evaluator.model), "cap", 60), "model code"),
    "a module": (lambda c, patch: patch.setitem(c.evaluator.model._modules, "act", nn.Hardtanh(0, 9)), "model code"),
    "a class attribute": (lambda c, patch: patch.setattr(Net, "cap", 60), "model code"),
    "a method": (
        lambda c, patch: patch.setattr(Net, "forward", lambda self, x: self.last(self.hidden(x))),
        "model code",
    ),
    "a patched forward": (
        lambda c, patch: patch.setattr(nn.ReLU, "forward", lambda self, x: x.clamp(0, 9)),
        "model code",
    ),
    "a forward of another class": (lambda c, patch: patch.setattr(nn.ReLU, "forward", nn.GELU.forward), "model code"),
    "a decorated forward": (
        lambda c, patch: patch.setattr(nn.Linear, "forward", torch.no_grad()(lambda self, x: x @ self.weight.T)),
        "model code",
    ),
    "a patched function": (
        lambda c, patch: patch.setattr(functional, "relu", lambda x, inplace=False: x.clamp(0, 9)),
        "patched functions",
    ),
    "a function of another name": (
        lambda c, patch: patch.setattr(functional, "relu", functional.gelu),
        "patched functions",
    ),
    "a patched method of tensors": (lambda c, patch: patch.setattr(torch.Tensor, "clamp", lambda x, max: x), "patched"),
    "NumPy patched": (lambda c, patch: patch.setattr(np, "nan_to_num", lambda x: x), "patched functions"),
    "a metric's setting": (lambda c, patch: patch.setattr(c.own_metrics["mean"].function, "by", 2.0), "metrics"),
    "an error model's class": (lambda c, patch: patch.setattr(Flip, "shift", 1), "conditions"),
    "a protection's attribute": (
        lambda c, patch: patch.setattr(c.conditions[1].mitigation, "active", False),
        "mitigations",
    ),
    "the seed": (lambda c, patch: patch.setattr(c, "seed", 5), "seed"),
    "the label": (lambda c, patch: patch.setattr(c, "label", "other"), "protocol"),
    "the matrix products": (lambda c, patch: torch.set_float32_matmul_precision("medium"), "numerics"),
    "the default dtype": (lambda c, patch: torch.set_default_dtype(torch.float64), "numerics"),
}


OF_THE_OBJECT = ("a hook", "an attribute", "a module")  # which workers get with the model


@contextmanager
def changed(change, campaign):
    """Makes a change inside the block; yields the part that a refusal names."""
    how, part = CHANGES[change]
    with pytest.MonkeyPatch.context() as patch:
        try:
            how(campaign, patch)
            yield part
        finally:
            torch.set_float32_matmul_precision("highest")
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("finished", [False, True])
def test_code_that_changes_after_the_campaign_was_made_is_refused(rows, tmp_path, finished):
    campaign = made(rows, tmp_path / "s")
    if finished:
        campaign.run(progress=False)
    files = sorted(path.name for path in (tmp_path / "s").glob("*.parquet"))
    for change in CHANGES:
        with changed(change, campaign) as part:
            said = f"{part}.* changed since this Campaign was made, .* make a new Campaign"
            with pytest.raises(ValueError, match=said):
                campaign.run(progress=False)
    assert sorted(path.name for path in (tmp_path / "s").glob("*.parquet")) == files and bool(files) == finished
    pd.testing.assert_frame_equal(campaign.run(progress=False), made(rows, tmp_path / "t").run(progress=False))


def test_hooks_of_all_modules_and_modes_are_refused(rows, tmp_path):
    campaign = made(rows, tmp_path / "s")
    handle = register_module_forward_hook(lambda module, given, output: output)
    with pytest.raises(ValueError, match="global hooks changed"):
        campaign.run(progress=False)
    handle.remove()
    with Mode(), pytest.raises(ValueError, match="torch modes changed"):
        campaign.run(progress=False)
    assert len(campaign.run(progress=False)) == 6


def test_hooks_modes_and_patches_are_another_campaign(rows, empty_cache, monkeypatch):
    made(rows, None).run(progress=False)
    assert len(made(rows, None).table()) == 6
    with monkeypatch.context() as patch:
        patch.setattr(functional, "relu", lambda x, inplace=False: x.clamp(min=0))
        assert len(made(rows, None).table()) == 0
    handle = register_module_forward_hook(lambda module, given, output: output)
    assert len(made(rows, None).table()) == 0
    handle.remove()
    with Mode():
        assert len(made(rows, None).table()) == 0
    assert len(made(rows, None).table()) == 6


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
            with pytest.raises(ValueError, match=f"{part} changed since this TrainingCampaign was made"):
                campaign.run(progress=False)
    assert len(campaign.run(progress=False)) == 1


def test_a_worker_with_other_code_is_refused(rows, tmp_path):
    """A worker of another process has what it imported: here the change comes between the files and the worker."""
    campaign = made(rows, tmp_path / "s")
    names = ("model code", "patched functions", "metrics", "conditions", "mitigations")
    with campaign._worker_spec(1) as spec:
        elsewhere = type(spec)(**vars(spec) | {"process": "another:1"})
        for each in (spec, elsewhere):
            workers.unpacked(each)
        for change in [name for name in CHANGES if CHANGES[name][1] in names and name not in OF_THE_OBJECT]:
            with changed(change, campaign) as part, pytest.raises(RuntimeError) as refused:
                workers.unpacked(elsewhere)
            assert "other code than the campaign's: they differ in" in str(refused.value) and part in str(refused.value)


def test_a_factory_that_forgets_the_guard_is_refused(rows, tmp_path):
    torch.manual_seed(0)
    model = Net()
    model.act.register_forward_hook(lambda module, given, output: output.nan_to_num(0.0))
    evaluator = dr.Evaluator(model, rows, forward=forward, factory=Net)
    campaign = dr.Campaign(evaluator, errors=[dr.BitFlip(1e-2)], trials=2, store=tmp_path / "s")
    with pytest.raises(RuntimeError, match="differ in model code"), ThreadPoolExecutor(1) as pool:
        campaign.run(progress=False, executor=pool)


class Lazy(Net):
    """It gets an attribute when it is first called."""

    def forward(self, dense):
        self.width = dense.shape[1]
        return super().forward(dense)


def test_a_factory_whose_model_changes_at_its_first_call_works(rows, tmp_path):
    torch.manual_seed(0)
    evaluator = dr.Evaluator(Lazy(), rows, forward=forward, factory=Lazy)
    campaign = dr.Campaign(evaluator, errors=[dr.BitFlip(1e-2)], trials=2, store=tmp_path / "s")
    with ThreadPoolExecutor(1) as pool:
        assert len(campaign.run(progress=False, executor=pool)) == 2


def test_a_living_worker_computes_with_the_code_of_each_campaign(rows, tmp_path):
    """Both have one identity, since the view of a dictionary's keys has no digest."""

    def clamped(limit):
        limits = {limit: 0}.keys()
        return lambda model, batch: model(batch["dense"]).nan_to_num(0.0).clamp(-max(limits), max(limits))

    options = {"metrics": (), "mitigations": [None], "errors": [dr.BitFlip(5e-2)]}
    tables, identities = [], set()
    with ThreadPoolExecutor(1) as pool:
        for limit in (100, 5):
            campaign = made(rows, tmp_path / f"pool {limit}", forward=clamped(limit), **options)
            identities.add(campaign.store.identity)
            tables.append(campaign.run(progress=False, executor=pool))
    here = [made(rows, tmp_path / f"here {limit}", forward=clamped(limit), **options) for limit in (100, 5)]
    for table, campaign in zip(tables, here, strict=True):
        pd.testing.assert_frame_equal(table, campaign.run(progress=False))
    assert len(identities) == 1 and not tables[0].equals(tables[1])


@pytest.mark.long
def test_a_living_process_does_not_run_an_edited_module(rows, tmp_path, monkeypatch):
    """The pool outlives the edit, and would compute with the old file."""
    code = textwrap.dedent("""
        def forward(model, batch):
            return model(batch["dense"])
    """)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "edited_forward.py").write_text(code)
    module = importlib.import_module("edited_forward")
    options = {"metrics": (), "mitigations": [None], "errors": [dr.BitFlip(5e-2)]}
    try:
        with ProcessPoolExecutor(1, mp_context=process_context()) as pool:
            first = made(rows, tmp_path / "one", forward=module.forward, **options).run(progress=False, executor=pool)
            guarded = code.replace('batch["dense"])', 'batch["dense"]).nan_to_num(0.0).clamp(-50, 50)')
            (tmp_path / "edited_forward.py").write_text(guarded)
            importlib.reload(module)
            again = made(rows, tmp_path / "two", forward=module.forward, **options)
            with pytest.raises(RuntimeError, match="differ in forward code. Restart the workers"):
                again.run(progress=False, executor=pool)
            assert not list((tmp_path / "two").glob("*.parquet"))
        table = again.run(progress=False)
    finally:
        sys.modules.pop("edited_forward", None)
    assert (table["nan_rows"] == 0).all() and (first["nan_rows"] > 0).any()
