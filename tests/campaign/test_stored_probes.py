"""Probes in a store: results of targets whose trials reach no row, and what is known of the model's tensors."""

import json

import pytest
import torch
from torch import nn

from drsrobust.campaign import Campaign
from drsrobust.campaign.store import StoreError
from drsrobust.data import from_batches
from drsrobust.evaluation import Evaluator
from drsrobust.evaluation import evaluator as evaluators
from drsrobust.injection import BitFlip, FixedCount


class Net(nn.Module):
    """A network whose guard is a file, which no digest of code can see."""

    def __init__(self, flag):
        super().__init__()
        self.flag, self.top = str(flag), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        scores = self.top(x)
        with open(self.flag) as file:
            return scores.clamp(-9, 9).nan_to_num() if file.read() else scores


def forward(model, batch):
    return model(batch[0])


@pytest.fixture
def flag(tmp_path):
    (tmp_path / "flag").write_text("")
    return tmp_path / "flag"


RARE = (BitFlip(1e-12),)


def campaign(flag, store, model=None, errors=RARE):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    rows = from_batches([(x, (x.sum(1) > 0).float())])
    made = Net(flag) if model is None else model
    return Campaign(Evaluator(made.eval(), rows, forward=forward), errors=list(errors), trials=3, store=store)


def run(*args, **options):
    return campaign(*args, **options).run(workers=1, progress=False)


def test_a_guard_that_no_stored_trial_shows_is_refused(flag, tmp_path):
    store = tmp_path / "store"
    table = run(flag, store)
    assert (table["rows_reached"] == 0).all()
    assert run(flag, store).equals(table)
    flag.write_text("guarded")
    with pytest.raises(StoreError, match="a probe of all under none"):
        run(flag, store)
    flag.write_text("")
    assert run(flag, store).equals(table)


def test_targets_whose_trials_reach_rows_have_none(flag, tmp_path):
    run(flag, tmp_path / "store", errors=[FixedCount(5)])
    assert json.loads((tmp_path / "store" / "probes.json").read_text())["targets"] == {}


def test_tensors_are_probed_once_for_a_store(flag, tmp_path, monkeypatch):
    run(flag, tmp_path / "store", errors=[FixedCount(5)])
    monkeypatch.setattr(evaluators, "probe_tensors", lambda *_, **__: pytest.fail("they were probed again"))
    run(flag, tmp_path / "store", errors=[FixedCount(5)])
    (tmp_path / "store" / "probes.json").write_text("{")  # what cannot be read is made again
    with pytest.raises(pytest.fail.Exception):
        run(flag, tmp_path / "store", errors=[FixedCount(5)])


class Unused(Net):
    def __init__(self, flag):
        super().__init__(flag)
        self.training_head = nn.Linear(16, 1)


def test_targeted_tensors_that_no_batch_reads_are_named(flag, tmp_path):
    with pytest.warns(UserWarning, match=r"no batch reads training_head.bias, training_head.weight, and no score"):
        table = run(flag, tmp_path / "store", Unused(flag), errors=[FixedCount(5)])
    assert len(table) == 3
