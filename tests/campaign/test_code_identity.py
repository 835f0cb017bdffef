"""A default store is found again for the same code and data alone, and its first trials are checked whenever it is used."""

import functools
import json
import os
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import drsrobust as dr
from drsrobust._provenance import machine
from drsrobust.campaign.store import StoreError

SCALE = {"by": 1.0}


class Small(nn.Module):
    """Scores of two dense features."""

    def __init__(self):
        super().__init__()
        self.hidden, self.act, self.last = nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)
        self.guard = False

    def forward(self, dense):
        logits = self.last(self.act(self.hidden(dense)))
        return logits.nan_to_num(0.0).clamp(-3, 3) if self.guard else logits


class Clamped(Small):
    """Another forward with the class's name and weights."""

    def forward(self, dense):
        return super().forward(dense).clamp(max=0.0)


Clamped.__qualname__ = Clamped.__name__ = "Small"


@dataclass(frozen=True)
class Shifted(dr.BitFlip):
    """A BitFlip with a setting of its own, which its label does not name."""

    shift: int = 0

    def sample(self, space, *, seed, **options):
        return super().sample(space, seed=seed + self.shift, **options)


class Ranges(dr.WeightRange):
    """A protection of a user that can be switched off by an attribute."""

    active = True

    def screen(self, error_map, space, *, seed):
        return super().screen(error_map, space, seed=seed) if self.active else error_map


def helped(scores):
    return scores.mean() * SCALE["by"]


def metric(labels, scores, golden_scores, users):
    return float(np.nan_to_num(helped(scores)))


def weighted(labels, scores, golden_scores, users, *, weights):
    return float(np.nan_to_num(scores)[: len(weights)] @ weights)


class Counted:
    """A metric with a private setting."""

    def __init__(self, hidden):
        self._hidden = hidden

    def __call__(self, labels, scores, golden_scores, users):
        return float(np.nan_to_num(scores).mean()) * self._hidden


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(300, 2, generator=generator)
    labels = (dense.sum(dim=1) > 0).int()
    return dr.data.from_batches([{"dense": dense, "labels": labels}])


def made(rows, *, cls=Small, change=lambda model: None, forward=None, error=None, mitigation=None, **options):
    torch.manual_seed(0)
    model = cls()
    change(model)
    forward = forward or (lambda model, batch: model(batch["dense"]))
    mitigations = [None if mitigation is None else mitigation(model)]
    evaluator = dr.Evaluator(model, rows, forward=forward)
    return dr.Campaign(evaluator, errors=[error or dr.BitFlip(1e-2)], mitigations=mitigations, trials=4, **options)


def hooked(factor):
    return lambda model: model.act.register_forward_hook(lambda module, given, output: output * factor)


def protected(active):
    def of(model):
        ranges = Ranges.fit(model)
        ranges.active = active
        return ranges

    return of


def replaced(module):
    return lambda model: setattr(model, "act", module)


PLAIN = {}
SAME = {
    "again": (PLAIN, PLAIN),
    "another lambda of the same code": (PLAIN, {"forward": lambda model, batch: model(batch["dense"])}),
    "a hook, again": ({"change": hooked(2.0)}, {"change": hooked(2.0)}),
    "a metric, again": ({"metrics": {"mine": metric}}, {"metrics": {"mine": metric}}),
    "a subclass, again": ({"error": Shifted(1e-2, shift=1)}, {"error": Shifted(1e-2, shift=1)}),
    "a mitigation, again": ({"mitigation": protected(True)}, {"mitigation": protected(True)}),
    "the mode": (PLAIN, {"change": lambda model: model.eval()}),
}
WEIGHTS = np.ones(5)
CHANGED = {
    "another forward=": (PLAIN, {"forward": lambda model, batch: model(batch["dense"]).clamp(max=5.0)}),
    "an edited forward": (PLAIN, {"cls": Clamped}),
    "a plain attribute": (PLAIN, {"change": lambda model: setattr(model, "guard", True)}),
    "ReLU replaced": (PLAIN, {"change": replaced(nn.Hardtanh(0, 1e9))}),
    "a hook": (PLAIN, {"change": hooked(1.0)}),
    "another hook": ({"change": hooked(1.0)}, {"change": hooked(1.0 + 1e-9)}),
    "a tensor that is no buffer": (PLAIN, {"change": lambda model: setattr(model, "mean", torch.ones(2))}),
    "a metric's array": tuple(
        {"metrics": {"mine": functools.partial(weighted, weights=weights)}} for weights in (WEIGHTS, WEIGHTS + 1e-12)
    ),
    "a metric's private setting": ({"metrics": {"mine": Counted(1.0)}}, {"metrics": {"mine": Counted(1.0 + 1e-12)}}),
    "an error model's attribute": ({"error": Shifted(1e-2)}, {"error": Shifted(1e-2, shift=1)}),
    "a subclass of an error model": (PLAIN, {"error": Shifted(1e-2)}),
    "a mitigation's attribute": ({"mitigation": protected(True)}, {"mitigation": protected(False)}),
}


@pytest.mark.parametrize("case", SAME)
@pytest.mark.filterwarnings("ignore:trials run in this process alone")
def test_the_same_code_finds_its_store(rows, empty_cache, case):
    first, second = SAME[case]
    table = made(rows, **first).run(progress=False)
    again = made(rows, **second)
    pd.testing.assert_frame_equal(again.table(), table)
    pd.testing.assert_frame_equal(again.run(progress=False), table)


@pytest.mark.parametrize("case", CHANGED)
@pytest.mark.filterwarnings("ignore:trials run in this process alone", "ignore:errors cannot hit mean")
def test_changed_code_is_another_campaign(rows, empty_cache, case):
    first, second = CHANGED[case]
    made(rows, **first).run(progress=False)
    assert len(made(rows, **first).table()) == 4 and len(made(rows, **second).table()) == 0


def test_a_helper_of_a_metric_counts(rows, empty_cache, monkeypatch):
    options = {"metrics": {"mine": metric}}
    before = made(rows, **options).run(progress=False)
    with monkeypatch.context() as patch:
        patch.setitem(SCALE, "by", 2.0)
        assert len(made(rows, **options).table()) == 0
        patch.setattr(sys.modules[__name__], "helped", lambda scores: scores.max())
        assert len(made(rows, **options).table()) == 0
    pd.testing.assert_frame_equal(made(rows, **options).table(), before)


def test_a_refusal_names_the_code(rows, tmp_path):
    made(rows, store=tmp_path / "s").run(progress=False)
    with pytest.raises(StoreError, match="they differ in forward code.\n"):
        made(rows, forward=lambda model, batch: model(batch["dense"]) * 1.0, store=tmp_path / "s")


def test_what_has_no_digest_gets_no_default_store(rows, empty_cache, tmp_path):
    lock = threading.Lock()

    def forward(model, batch):
        with lock:
            return model(batch["dense"])

    with pytest.warns(
        UserWarning, match=r"results are not kept, .*forward uses lock \(cannot pickle '_thread.lock'"
    ) as said:
        campaign = made(rows, forward=forward)
    assert len(said) == 1 and len(campaign.run(progress=False)) == 4
    folder = campaign.store.folder
    with pytest.warns(UserWarning, match="results are not kept"):
        assert len(made(rows, forward=forward).table()) == 0
    del campaign
    assert not folder.exists()
    named = made(rows, forward=forward, store=tmp_path / "s")  # no warning: the second net remains
    pd.testing.assert_frame_equal(named.run(progress=False), made(rows, forward=forward, store=tmp_path / "s").table())


def environment_decides(model, batch):
    logits = model(batch["dense"])
    return torch.where(logits.abs() > float(os.environ.get("DRSROBUST_TEST_LIMIT", "inf")), -logits, logits)


def test_the_first_trials_are_computed_again(rows, tmp_path, monkeypatch):
    """What no digest sees, as an environment variable, shows in the first trial of a condition."""
    options = {"forward": environment_decides, "store": tmp_path / "s", "seed": 1}
    table = made(rows, **options).run(progress=False)
    monkeypatch.setenv("DRSROBUST_TEST_LIMIT", "4")  # golden scores stay
    changed = made(rows, **options)
    pd.testing.assert_frame_equal(changed.table(), table)  # readers never compute
    with pytest.raises(StoreError) as refused:
        changed.run(progress=False)
    text = str(refused.value)
    assert f"{tmp_path / 's'} holds other results" in text and "trial 0 of BitFlip" in text
    assert str(table["auc"][0]) in text or "logloss" in text
    monkeypatch.delenv("DRSROBUST_TEST_LIMIT")
    pd.testing.assert_frame_equal(made(rows, **options).run(progress=False), table)


def test_another_machine_is_compared_within_a_tolerance(rows, tmp_path, monkeypatch):
    options = {"forward": environment_decides, "store": tmp_path / "s", "seed": 1}
    table = made(rows, **options).run(progress=False)
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert manifest["about"]["machine"]["processor"] == machine()["processor"]
    manifest["about"]["machine"]["processor"] = "an older one"
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match="made with other processor; .* agree within 1e-06 in AUC"):
        pd.testing.assert_frame_equal(made(rows, **options).run(progress=False), table)
    monkeypatch.setenv("DRSROBUST_TEST_LIMIT", "4")
    with pytest.raises(StoreError, match=r"give \(made with other processor\): trial 0 of .* has auc "):
        made(rows, **options).run(progress=False)


class Drifting(dr.BitFlip):
    """Draws other errors at each call."""

    calls = iter(range(10_000))

    def sample(self, space, *, seed, **options):
        return super().sample(space, seed=next(type(self).calls), **options)


def test_a_trial_that_changes_from_run_to_run(rows, tmp_path, monkeypatch):
    """It is not called other code."""
    monkeypatch.setattr("drsrobust.campaign.trial_code.short_digest", lambda *_, **__: "0" * 16)
    made(rows, error=Drifting(1e-2), store=tmp_path / "s").run(progress=False)
    with pytest.raises(
        StoreError, match=r"trial 0 of .* is not deterministic: \w+ .*, and .* when it is computed twice here"
    ):
        made(rows, error=Drifting(1e-2), store=tmp_path / "s").run(progress=False)


@pytest.mark.long
def test_scripts_find_their_store_from_another_folder_and_after_an_unrelated_edit(empty_cache, tmp_path, warm_python):
    script = textwrap.dedent("""
        import sys, torch
        from torch import nn
        import drsrobust as dr
        from my_parts import scaled

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 1)
            def forward(self, x):
                return scaled(self.layer(x))

        torch.manual_seed(0)
        x = torch.randn(200, 2)
        rows = dr.data.from_batches([{"x": x, "labels": (x.sum(1) > 0).int()}])
        evaluator = dr.Evaluator(Net(), rows, forward=lambda model, batch: model(batch["x"]))
        campaign = dr.Campaign(evaluator, errors=[dr.BitFlip(1e-2)], trials=3)
        print(len(campaign.table()))
        campaign.run(progress=False)
    """)
    parts = "def scaled(x):\n    return x * 2\n\ndef unrelated(x):\n    return x\n"

    def run(folder, script=script, parts=parts):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / "my_parts.py").write_text(parts)
        (place / "script.py").write_text(script)
        done = warm_python.run("script.py", cwd=place)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert run("here") == 0
    assert run("here") == 3
    assert run("there", parts="# edited\n\n" + parts.replace("return x\n", "return x + 1\n")) == 3
    assert run("there", parts=parts.replace("x * 2", "x * 3")) == 0
    assert Path(empty_cache, "campaigns").is_dir()


@pytest.mark.long
def test_a_campaign_of_a_file_sees_an_edit_of_the_models_file(empty_cache, tmp_path, warm_python):
    """`drsrobust campaign` in a new process, before and after the edit."""
    module = textwrap.dedent("""
        import torch
        import drsrobust as dr

        def make():
            torch.manual_seed(0)
            return torch.nn.Linear(2, 1)

        def forward(model, batch):
            return model(batch["x"])

        def rows():
            x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
            return dr.data.from_batches([{"x": x, "labels": (x.sum(1) > 0).int()}])
    """)
    (tmp_path / "study.toml").write_text(
        '[model]\nmake = "edited_parts:make"\nforward = "edited_parts:forward"\n[rows]\nmake = "edited_parts:rows"\n'
        '[campaign]\nerrors = [{ kind = "BitFlip", ber = [1e-1] }]\ntrials = 5\n'
    )

    def drop(text):
        (tmp_path / "edited_parts.py").write_text(text)
        command = [Path(sys.executable).with_name("drsrobust"), "campaign", "study.toml"]
        done = warm_python.run(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = drop(module)
    assert drop("# a comment\n" + module) == first
    changed = drop(module.replace('model(batch["x"])', 'model(batch["x"]).nan_to_num(0.0).clamp(-2, 2)'))
    assert changed != first
